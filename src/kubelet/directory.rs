//! The directory where plugins and the kubelet meet: whether it is there, who may serve in it, and
//! whether there is a new kubelet.

mod attach;
mod dialing;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::{
    attach::Attached,
    dialing::{Redial, SocketIdentity},
};
use super::{
    Registering,
    names::{DIRECTORY, KUBELET_SOCKET, is_found, is_ours},
    plugin::{Kubelet, Resource, Shared},
    registrar::REGISTRY,
    state::Board,
};
use crate::{
    device::{Inventory, ResourceName, answer::Answerers},
    path::AbsPath,
    rate::until,
    root::{Kind, Root, RootError, Watch, WatchEvent, WatchKind},
    shutdown::Tasks,
    telemetry::chain,
};

/// Beside the sockets, so that it is shared by all who could serve there. No socket: the kubelet
/// leaves it alone when it starts.
const LOCK: &str = "m.lock";
/// How often a directory that cannot be used is tried again.
const FAULT_PAUSE: Duration = Duration::from_secs(60);
/// A starting kubelet removes our sockets a moment before it makes its own. Only when that does
/// not come within this time did somebody else remove them.
const REPAIR_WAIT: Duration = Duration::from_secs(1);

/// After the lock file was removed its directory is likely to follow. Making a new one at once
/// would be in the way of whoever clears up; the other end of a doubling wait is [`FAULT_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The task that watches the directory and has the resources' tasks.
pub(super) struct Directory {
    root: Root,
    inventory: watch::Receiver<Arc<Inventory>>,
    answerers: Answerers,
    registering: Registering,
    board: Board,
    tasks: Tasks,
    stop: CancellationToken,
    kubelet: watch::Sender<Option<Kubelet>>,
    doubt: Arc<Notify>,
    life: u64,
    seen: Option<SocketIdentity>,
    repair_at: Option<Instant>,
    redial: Redial,
}

impl Directory {
    pub(super) fn new(
        root: Root,
        (inventory, answerers, registering): (
            watch::Receiver<Arc<Inventory>>,
            Answerers,
            Registering,
        ),
        board: Board,
        tasks: Tasks,
    ) -> Self {
        Self {
            root,
            inventory,
            answerers,
            registering,
            board,
            stop: tasks.token(),
            tasks,
            kubelet: watch::Sender::new(None),
            doubt: Arc::new(Notify::new()),
            life: 0,
            seen: None,
            repair_at: None,
            redial: Redial::default(),
        }
    }

    pub(super) async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let attached = match self.attach().await {
                Ok(Attached::Ours(watch, lock)) => {
                    pause = FIRST_PAUSE;
                    let left = self.attend(watch).await;
                    self.kubelet.send_replace(None);
                    self.seen = None;
                    drop(lock);
                    left.map(|()| Attached::Later(FIRST_PAUSE))
                }
                other => other,
            };
            match attached {
                Ok(Attached::Later(time)) => sleep(time).await,
                Ok(_) => {}
                // Directories may vanish between any two calls; that is settled by looking again.
                Err(error) => {
                    if !error.is_not_found() {
                        self.fault(&error);
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(FAULT_PAUSE);
                }
            }
        }
    }

    /// Published for the agent, which says it once where devices are declared: on a machine that
    /// was never meant to have a kubelet it is no news.
    fn absent(&self, why: &str) {
        if self.board.presence(Some(why)) {
            tracing::debug!("{why}");
        }
    }

    fn fault(&self, error: &RootError) {
        let why = chain(error);
        if self.board.presence(Some(&why)) {
            tracing::warn!("devices cannot be offered: {why}");
        }
    }

    fn path(name: &str) -> Option<AbsPath> {
        AbsPath::new(format!("{DIRECTORY}/{name}")).ok()
    }

    /// Works in the directory until it is gone.
    async fn attend(&mut self, watch: Watch) -> Result<(), RootError> {
        self.remove_stale()?;
        let mut crew = JoinSet::new();
        let left = self.work(watch, &mut crew).await;
        // Nobody keeps the books of a resource from here on, which may go or be served otherwise meanwhile.
        crew.shutdown().await;
        self.board.forget_all();
        left
    }

    async fn work(
        &mut self,
        mut watch: Watch,
        crew: &mut JoinSet<ResourceName>,
    ) -> Result<(), RootError> {
        let stop = self.stop.child_token();
        let _ends_with_us = stop.clone().drop_guard();
        let mut at_work = BTreeSet::new();
        self.look_anew(true).await;
        loop {
            self.staff(crew, &mut at_work, &stop);
            let (repair_at, redial_at) = (self.repair_at, self.redial.at);
            tokio::select! {
                // Safe to drop: events stay in the kernel's queue.
                events = watch.next() => if self.on_events(&events?).await { break },
                // Safe to drop: a change stays marked as unseen.
                changed = self.inventory.changed() => if changed.is_err() { break },
                // Safe to drop: a task that ended stays in the set.
                Some(ended) = crew.join_next() => match ended {
                    Ok(name) => drop(at_work.remove(&name)),
                    // Ends this task, and with it the daemon: a resource that nobody serves any more
                    // must not look served.
                    Err(lost) if lost.is_panic() => std::panic::resume_unwind(lost.into_panic()),
                    Err(_) => {}
                },
                // Safe to drop: one doubt is remembered.
                () = self.doubt.notified() => self.probe(),
                // Safe to drop: the time stays.
                () = until(redial_at) => self.dial_again().await,
                // Safe to drop: the time stays.
                () = until(repair_at) => {
                    self.repair_at = None;
                    self.kubelet.send_modify(|kubelet| {
                        kubelet.iter_mut().for_each(|kubelet| kubelet.repair += 1);
                    });
                }
            }
        }
        Ok(())
    }

    /// A task for each resource that has something to list. One that never had a device is not
    /// registered: the Node object would keep its zero for ever.
    fn staff(
        &self,
        crew: &mut JoinSet<ResourceName>,
        at_work: &mut BTreeSet<ResourceName>,
        stop: &CancellationToken,
    ) {
        let inventory = self.inventory.borrow().clone();
        for (name, resource) in &inventory.resources {
            if at_work.contains(name) || resource.listed().next().is_none() {
                continue;
            }
            let shared = Shared {
                root: self.root.clone(),
                inventory: self.inventory.clone(),
                answerers: self.answerers.clone(),
                registering: self.registering,
                kubelet: self.kubelet.subscribe(),
                doubt: Arc::clone(&self.doubt),
                board: self.board.clone(),
                tasks: self.tasks.clone(),
            };
            at_work.insert(name.clone());
            let task = Resource::new(name.clone(), shared, stop.clone());
            crew.spawn_on(
                self.tasks.tracker().track_future(task.run()),
                &tokio::runtime::Handle::current(),
            );
        }
    }

    /// Sockets of an agent that did not end in order, whichever way it registered. The lock says that nobody
    /// serves them.
    fn remove_stale(&self) -> Result<(), RootError> {
        let found = self.remove_sockets(REGISTRY, is_found);
        // Without a plugin watcher there is no such directory.
        found.or_else(|error| match error.is_not_found() {
            true => Ok(()),
            false => Err(error),
        })?;
        self.remove_sockets(DIRECTORY, is_ours)
    }

    fn remove_sockets(&self, below: &str, ours: fn(&str) -> bool) -> Result<(), RootError> {
        let Ok(directory) = AbsPath::new(below) else {
            return Ok(());
        };
        for entry in self.root.list(&directory)? {
            if entry.kind == Kind::Socket
                && ours(&entry.name)
                && let Ok(path) = directory.join(&entry.name)
            {
                self.root.remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Says whether the directory is gone.
    async fn on_events(&mut self, events: &[WatchEvent]) -> bool {
        let mut came = false;
        let mut changed = false;
        for event in events {
            let name = event.name.as_deref().unwrap_or_default();
            let appeared = matches!(event.kind, WatchKind::Created | WatchKind::MovedTo);
            match event.kind {
                WatchKind::DirGone => return true,
                WatchKind::Overflow => {
                    changed = true;
                    self.expect_repair();
                }
                _ if name == KUBELET_SOCKET => {
                    changed = true;
                    came |= appeared;
                }
                // The lock holds nobody off any more. Besides, an open file keeps a removed directory
                // from being reported as gone.
                WatchKind::Deleted | WatchKind::MovedFrom if name == LOCK => return true,
                _ if is_ours(name) && !appeared => self.expect_repair(),
                _ => {}
            }
        }
        if changed {
            self.look_anew(came).await;
        }
        false
    }

    fn expect_repair(&mut self) {
        self.repair_at
            .get_or_insert_with(|| Instant::now() + REPAIR_WAIT);
    }
}
