//! Watches the kubelet's device plugin directory: whether it exists, whether this agent may serve
//! in it, and whether a new kubelet runs.

mod kubelet_probe;
mod lock;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::{
    kubelet_probe::{RedialSchedule, SocketIdentity},
    lock::{DirectoryState, EarlierLock},
};
use super::{
    RegistrationMode,
    plugin_deps::{KubeletRun, PluginDeps},
    plugin_watcher_info::PLUGINS_REGISTRY_DIR,
    resource_registration::ResourceTask,
    socket_names::{DEVICE_PLUGIN_DIR, KUBELET_SOCKET, is_found, is_ours},
    status::KubeletStatusWriter,
};
use machinist_base::{
    abs_path::AbsPath, error_chain::chain, rate_limit::sleep_until_opt, shutdown::Tasks,
};
use machinist_device::{Inventory, ResourceName, allocator::Allocators};
use machinist_rootfs::{FileKind, Root, RootError, Watch, WatchEvent, WatchKind};

/// The lock of earlier versions, in the kubelet's directory. As it is no socket, a starting kubelet
/// leaves it alone.
const EARLIER_LOCK_NAME: &str = "m.lock";
/// How often a directory that cannot be used is tried again.
const FAULT_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// A starting kubelet removes our sockets a moment before it creates its own. If its socket does
/// not appear within this time, another process removed ours.
const REPAIR_DELAY: Duration = Duration::from_secs(1);

/// When the directory was removed, its parents are likely to be removed next. This is the first
/// delay after an error; it doubles up to [`FAULT_RETRY_INTERVAL`].
const MIN_FAULT_BACKOFF: Duration = Duration::from_millis(50);

/// The task that watches the directory and owns the resources' tasks.
pub(super) struct PluginDirTask {
    root: Root,
    inventory: watch::Receiver<Arc<Inventory>>,
    allocators: Allocators,
    registering: RegistrationMode,
    status_writer: KubeletStatusWriter,
    tasks: Tasks,
    stop: CancellationToken,
    kubelet: watch::Sender<Option<KubeletRun>>,
    probe_request: Arc<Notify>,
    generation: u64,
    last_socket: Option<SocketIdentity>,
    repair_at: Option<Instant>,
    redial: RedialSchedule,
    earlier_lock: EarlierLock,
}

impl PluginDirTask {
    pub(super) fn new(
        root: Root,
        (inventory, allocators, registering): (
            watch::Receiver<Arc<Inventory>>,
            Allocators,
            RegistrationMode,
        ),
        status_writer: KubeletStatusWriter,
        tasks: Tasks,
    ) -> Self {
        Self {
            root,
            inventory,
            allocators,
            registering,
            status_writer,
            stop: tasks.token(),
            tasks,
            kubelet: watch::Sender::new(None),
            probe_request: Arc::new(Notify::new()),
            generation: 0,
            last_socket: None,
            repair_at: None,
            redial: RedialSchedule::default(),
            earlier_lock: EarlierLock::default(),
        }
    }

    pub(super) async fn run(mut self) {
        let mut pause = MIN_FAULT_BACKOFF;
        loop {
            let attached = match self.attach().await {
                Ok(DirectoryState::Ours(watch, lock)) => {
                    pause = MIN_FAULT_BACKOFF;
                    let result = self.serve_directory(watch).await;
                    self.kubelet.send_replace(None);
                    self.last_socket = None;
                    self.earlier_lock.release();
                    drop(lock);
                    result.map(|()| DirectoryState::Later(MIN_FAULT_BACKOFF))
                }
                other => other,
            };
            match attached {
                Ok(DirectoryState::Later(time)) => sleep(time).await,
                Ok(_) => {}
                // The directory may vanish between any two calls; the next pass notices it.
                Err(error) => {
                    if !error.is_not_found() {
                        self.record_fault(&error);
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(FAULT_RETRY_INTERVAL);
                }
            }
        }
    }

    /// Records that there is no kubelet. The agent logs it once where devices are declared: on a
    /// machine without a kubelet it is normal.
    fn record_absent(&self, why: &str) {
        if self.status_writer.presence(Some(why)) {
            tracing::debug!("{why}");
        }
    }

    fn record_fault(&self, error: &RootError) {
        let why = chain(error);
        if self.status_writer.presence(Some(&why))
            && let Some(suppressed) = self.status_writer.log_rates.take("directory")
        {
            tracing::warn!(suppressed, "failed to serve device plugins: {why}");
        }
    }

    fn path(name: &str) -> Option<AbsPath> {
        AbsPath::new(format!("{DEVICE_PLUGIN_DIR}/{name}")).ok()
    }

    /// Works in the directory until it is removed.
    async fn serve_directory(&mut self, watch: Watch) -> Result<(), RootError> {
        self.remove_stale()?;
        let mut resource_tasks = JoinSet::new();
        let result = self.serve_until_removed(watch, &mut resource_tasks).await;
        // From here on no process tracks registrations, and resources may be removed or served
        // differently meanwhile.
        resource_tasks.shutdown().await;
        self.status_writer.clear();
        result
    }

    async fn serve_until_removed(
        &mut self,
        mut watch: Watch,
        resource_tasks: &mut JoinSet<ResourceName>,
    ) -> Result<(), RootError> {
        let stop = self.stop.child_token();
        let _ends_with_us = stop.clone().drop_guard();
        let mut running = BTreeSet::new();
        self.check_socket(true).await;
        loop {
            self.start_resource_tasks(resource_tasks, &mut running, &stop);
            let (repair_at, redial_at) = (self.repair_at, self.redial.at);
            tokio::select! {
                // Safe to drop: events stay in the kernel's queue.
                events = watch.next() => if self.handle_events(&events?).await { break },
                // Safe to drop: a change stays marked as unseen.
                changed = self.inventory.changed() => if changed.is_err() { break },
                // Safe to drop: a task that ended stays in the set.
                Some(ended) = resource_tasks.join_next() => match ended {
                    Ok(name) => drop(running.remove(&name)),
                    // Ends this task, and with it the daemon: a resource that is no longer served
                    // must not look served.
                    Err(lost) if lost.is_panic() => std::panic::resume_unwind(lost.into_panic()),
                    Err(_) => {}
                },
                // Safe to drop: one notification is kept.
                () = self.probe_request.notified() => self.probe(),
                // Safe to drop: the deadline is stored.
                () = sleep_until_opt(redial_at) => self.redial().await,
                // Safe to drop: the deadline is stored.
                () = sleep_until_opt(repair_at) => {
                    self.repair_at = None;
                    self.kubelet.send_modify(|kubelet| {
                        kubelet.iter_mut().for_each(|kubelet| kubelet.socket_losses += 1);
                    });
                }
            }
        }
        Ok(())
    }

    /// Starts a task for each resource that has something to list. A resource that never had a
    /// device is not registered: the Node object would show its zero for ever.
    fn start_resource_tasks(
        &self,
        resource_tasks: &mut JoinSet<ResourceName>,
        running: &mut BTreeSet<ResourceName>,
        stop: &CancellationToken,
    ) {
        let inventory = self.inventory.borrow().clone();
        for (name, resource) in &inventory.resources {
            if running.contains(name) || resource.advertised().next().is_none() {
                continue;
            }
            let deps = PluginDeps {
                root: self.root.clone(),
                inventory: self.inventory.clone(),
                allocators: self.allocators.clone(),
                registering: self.registering,
                kubelet: self.kubelet.subscribe(),
                probe_request: Arc::clone(&self.probe_request),
                status_writer: self.status_writer.clone(),
                tasks: self.tasks.clone(),
            };
            running.insert(name.clone());
            let task = ResourceTask::new(name.clone(), deps, stop.clone());
            resource_tasks.spawn_on(
                self.tasks.tracker().track_future(task.run()),
                &tokio::runtime::Handle::current(),
            );
        }
    }

    /// Removes the sockets of an agent that crashed, whichever way it registered. We hold the lock,
    /// so no agent serves them.
    fn remove_stale(&self) -> Result<(), RootError> {
        let found = self.remove_sockets(PLUGINS_REGISTRY_DIR, is_found);
        // Without a plugin watcher this directory does not exist.
        found.or_else(|error| match error.is_not_found() {
            true => Ok(()),
            false => Err(error),
        })?;
        self.remove_sockets(DEVICE_PLUGIN_DIR, is_ours)
    }

    fn remove_sockets(&self, below: &str, ours: fn(&str) -> bool) -> Result<(), RootError> {
        let Ok(directory) = AbsPath::new(below) else {
            return Ok(());
        };
        for entry in self.root.list(&directory)? {
            if entry.kind == FileKind::Socket
                && ours(&entry.name)
                && let Ok(path) = directory.join(&entry.name)
            {
                self.root.remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Handles events; returns true when the directory is gone.
    async fn handle_events(&mut self, events: &[WatchEvent]) -> bool {
        let mut socket_created = false;
        let mut changed = false;
        for event in events {
            let name = event.name.as_deref().unwrap_or_default();
            let appeared = matches!(event.kind, WatchKind::Created | WatchKind::MovedTo);
            match event.kind {
                WatchKind::DirGone => return true,
                WatchKind::Overflow => {
                    changed = true;
                    self.schedule_repair();
                }
                _ if name == KUBELET_SOCKET => {
                    changed = true;
                    socket_created |= appeared;
                }
                WatchKind::Deleted | WatchKind::MovedFrom if name == EARLIER_LOCK_NAME => {
                    self.earlier_lock.release();
                }
                _ if is_ours(name) && !appeared => self.schedule_repair(),
                _ => {}
            }
        }
        if changed {
            self.check_socket(socket_created).await;
        }
        false
    }

    fn schedule_repair(&mut self) {
        self.repair_at
            .get_or_insert_with(|| Instant::now() + REPAIR_DELAY);
    }
}
