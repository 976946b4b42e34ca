//! Runs one task and one socket for each vendor file with `connects: program`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    socket::VendorSocket,
    status::LiveVendorStatus,
    task_messages::{VendorEvent, VendorRequest},
    vendor_task::{
        SnapshotReader, StatusPublisher, VendorTaskDeps, VendorTaskInputs, run_vendor_task,
    },
};
use machinist_base::{
    backoff::{Backoff, jitter},
    error_chain::chain,
    rate_limit::{LogRates, sleep_until_opt},
    shutdown::Tasks,
};
use machinist_device::{
    registry::{DirWatch, PathChecker, Registry, WatchDepth, changed_or_timeout},
    source::ResourceSource,
    vendor_declaration::{Vendor, VendorTransport, Vendors},
};
use machinist_rootfs::Root;

/// Questions queued for one vendor.
const REQUEST_QUEUE_LEN: usize = 32;
/// Events queued from sessions; each session has one message at most.
const EVENT_QUEUE_LEN: usize = 8;
/// Retry of a socket that cannot be created; no event announces when it could be.
const SOCKET_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// How often sockets are checked where the kernel does not report all changes.
const SOCKET_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The handle to one vendor's task.
#[derive(Clone, Debug)]
pub(super) struct VendorHandle {
    pub(super) vendor: watch::Receiver<Arc<Vendor>>,
    pub(super) path_checker: PathChecker,
    pub(super) requests: mpsc::Sender<VendorRequest>,
    pub(super) status: watch::Receiver<LiveVendorStatus>,
    pub(super) problem: watch::Receiver<Option<String>>,
}

pub(super) type VendorHandles = BTreeMap<String, VendorHandle>;

/// One running vendor.
struct SupervisedVendor {
    spec: watch::Sender<Arc<Vendor>>,
    handle: VendorHandle,
    events: mpsc::Sender<VendorEvent>,
    problem: watch::Sender<Option<String>>,
    removed: CancellationToken,
    /// Resolves when its task has ended.
    ended: oneshot::Receiver<()>,
    socket: Option<VendorSocket>,
    /// When its socket is retried, and how often it failed.
    socket_retry: Option<(Instant, u32)>,
}

pub(super) struct VendorSupervisor {
    pub(super) root: Root,
    pub(super) registry: Registry,
    pub(super) tasks: Tasks,
    pub(super) handles: watch::Sender<Arc<VendorHandles>>,
    /// Why hardware has to be released; `None` when it need not be.
    pub(super) quiesced: watch::Receiver<Option<String>>,
    /// Bumped on every change of any vendor's status.
    pub(super) status_changes: Arc<watch::Sender<u64>>,
    vendors: BTreeMap<String, SupervisedVendor>,
    /// Signalled when one of the sockets broke.
    socket_broken: Arc<Notify>,
    /// Reports changes of the sockets' names; `None` where the kernel does not support it.
    socket_watch: Option<DirWatch>,
    /// By vendor: its program can remove or replace the socket in its directory at will.
    log_rates: LogRates,
}

impl VendorSupervisor {
    pub(super) fn new(
        root: Root,
        registry: Registry,
        tasks: Tasks,
        handles: watch::Sender<Arc<VendorHandles>>,
        (quiesced, status_changes): (watch::Receiver<Option<String>>, Arc<watch::Sender<u64>>),
    ) -> Self {
        let watch = DirWatch::new(&root).inspect_err(|error| {
            tracing::warn!(
                "vendor socket watch failed, removed sockets may be noticed late: {}",
                chain(error)
            );
        });
        Self {
            socket_watch: watch.ok(),
            socket_broken: Arc::default(),
            root,
            registry,
            tasks,
            handles,
            quiesced,
            status_changes,
            vendors: BTreeMap::new(),
            log_rates: LogRates::default(),
        }
    }

    /// Follows the files until their channel closes, which means the agent stops.
    pub(super) async fn run(mut self, mut vendors: watch::Receiver<Arc<Vendors>>) {
        loop {
            let declared = vendors.borrow_and_update().clone();
            self.withdraw_undeclared(&declared).await;
            self.apply_files(&declared).await;
            let socket_retry = self
                .vendors
                .values()
                .filter_map(|entry| Some(entry.socket_retry?.0))
                .min();
            tokio::select! {
                // Safe to drop: a change stays marked as unseen.
                changed = vendors.changed() => if changed.is_err() { return },
                // Safe to drop: the deadlines are stored.
                () = sleep_until_opt(socket_retry) => {}
                // Safe to drop: events stay in the kernel's queue, and a broken socket stays broken.
                () = changed(&mut self.socket_watch) => self.schedule_missing_sockets(),
                () = self.socket_broken.notified() => self.schedule_missing_sockets(),
            }
        }
    }

    /// Schedules sockets that were removed or broke for re-creation; after a delay, in case it repeats.
    fn schedule_missing_sockets(&mut self) {
        for (name, entry) in &mut self.vendors {
            if entry
                .socket
                .as_ref()
                .is_some_and(|socket| !socket.is_open())
            {
                if let Some(suppressed) = self.log_rates.take(name) {
                    tracing::warn!(vendor = %name, suppressed, "the socket of vendor {name} was removed; creating it again");
                }
                entry.socket = None;
                entry.socket_retry = Some((Instant::now() + SOCKET_BACKOFF.wait(0, jitter()), 0));
            }
        }
    }

    /// Watches the directories of all sockets, and detects at once a socket that changed or was removed before its
    /// watch began.
    fn watch_sockets(&mut self) {
        let Some(watch) = &mut self.socket_watch else {
            return;
        };
        let sockets = self
            .vendors
            .values()
            .filter_map(|entry| entry.socket.as_ref());
        let dirs = sockets.filter_map(|socket| Some((socket.directory()?, WatchDepth::Names)));
        watch.set(&dirs.collect());
        self.schedule_missing_sockets();
    }

    /// Withdraws what an earlier agent left of vendors that no file declares any more.
    async fn withdraw_undeclared(&self, declared: &Vendors) {
        // It is unknown which vendor a file declares that was never valid.
        if declared.blind {
            return;
        }
        let inventory = self.registry.inventory().borrow().clone();
        for resource in inventory.resources.values() {
            let ResourceSource::Vendor(name) = &resource.source else {
                continue;
            };
            let is_declared = declared
                .by_name
                .get(name)
                .is_some_and(|vendor| is_ours(vendor));
            if !is_declared
                && let Err(error) = self.registry.withdraw(resource.source.clone(), None).await
            {
                tracing::warn!("failed to withdraw the resources of vendor {name}: {error}");
            }
        }
    }

    async fn apply_files(&mut self, vendors: &Vendors) {
        let declared = |name: &String| vendors.by_name.get(name).filter(|vendor| is_ours(vendor));
        let undeclared: Vec<String> = self
            .vendors
            .keys()
            .filter(|name| declared(name).is_none())
            .cloned()
            .collect();
        for name in undeclared {
            self.remove(&name).await;
        }
        for (name, vendor) in vendors.by_name.iter().filter(|(_, vendor)| is_ours(vendor)) {
            match self.vendors.get_mut(name) {
                None => self.add(name, vendor),
                Some(entry) => {
                    if entry.spec.borrow().group != vendor.group {
                        entry.socket = None;
                    }
                    entry.spec.send_if_modified(|spec| {
                        let is_changed = spec != vendor;
                        if is_changed {
                            *spec = Arc::clone(vendor);
                        }
                        is_changed
                    });
                }
            }
        }
        self.create_sockets();
        self.watch_sockets();
        let handles = self
            .vendors
            .iter()
            .map(|(name, entry)| (name.clone(), entry.handle.clone()));
        let handles: VendorHandles = handles.collect();
        self.handles.send_if_modified(|published| {
            let is_changed = !published.keys().eq(handles.keys());
            *published = Arc::new(handles);
            is_changed
        });
    }

    /// Removes a vendor: first its session, then its offers, then its socket.
    async fn remove(&mut self, name: &str) {
        if let Some(entry) = self.vendors.remove(name) {
            entry.removed.cancel();
            // A task that ended by itself is done as well.
            let _ = entry.ended.await;
            tracing::info!(vendor = %name, "vendor {name} is no longer declared; withdrawing its resources");
        }
    }

    fn add(&mut self, name: &str, vendor: &Arc<Vendor>) {
        let (spec, vendor) = watch::channel(Arc::clone(vendor));
        let (requests_sender, requests) = mpsc::channel(REQUEST_QUEUE_LEN);
        let (events, event_receiver) = mpsc::channel(EVENT_QUEUE_LEN);
        let (publish, status) = watch::channel(LiveVendorStatus::default());
        let (problem, problem_watch) = watch::channel(None);
        let (finished, ended) = oneshot::channel();
        let removed = CancellationToken::new();
        let path_checker = PathChecker::default();
        let deps = VendorTaskDeps {
            snapshots: SnapshotReader {
                root: self.root.clone(),
                path_checker: path_checker.clone(),
            },
            registry: self.registry.clone(),
            status: StatusPublisher {
                status: publish,
                change_count: Arc::clone(&self.status_changes),
            },
        };
        let inputs = VendorTaskInputs {
            vendor: vendor.clone(),
            quiesced: self.quiesced.clone(),
            inventory: self.registry.inventory(),
            requests,
            events: event_receiver,
            removed: removed.clone(),
            stop: self.tasks.token(),
        };
        self.tasks.spawn("vendor", async move {
            run_vendor_task(deps, inputs).await;
            // The receiver is gone when the agent stops.
            let _ = finished.send(());
        });
        let handle = VendorHandle {
            vendor,
            path_checker,
            requests: requests_sender,
            status,
            problem: problem_watch,
        };
        self.vendors.insert(
            name.to_owned(),
            SupervisedVendor {
                spec,
                handle,
                events,
                problem,
                removed,
                ended,
                socket: None,
                socket_retry: None,
            },
        );
    }

    /// Creates the sockets that are missing.
    fn create_sockets(&mut self) {
        let now = Instant::now();
        for (name, entry) in &mut self.vendors {
            let wait = entry.socket_retry.is_some_and(|(at, _)| at > now);
            if entry.socket.is_some() || wait {
                continue;
            }
            match VendorSocket::serve(
                &self.root,
                &entry.handle.vendor,
                &entry.events,
                &self.tasks,
                &self.socket_broken,
            ) {
                Ok(socket) => {
                    entry.socket = Some(socket);
                    entry.socket_retry = None;
                    entry.problem.send_replace(None);
                }
                Err(error) => {
                    let failures = entry.socket_retry.map_or(0, |(_, failures)| failures + 1);
                    let why = chain(&error);
                    if entry.problem.borrow().as_ref() != Some(&why)
                        && let Some(suppressed) = self.log_rates.take(name)
                    {
                        tracing::warn!(vendor = %name, suppressed, "failed to serve the socket of vendor {name}: {why}");
                    }
                    entry.problem.send_replace(Some(why));
                    entry.socket_retry =
                        Some((now + SOCKET_BACKOFF.wait(failures, jitter()), failures));
                }
            }
        }
    }
}

fn is_ours(vendor: &Vendor) -> bool {
    vendor.connects == VendorTransport::Program
}

/// Waits until something may have changed a socket.
async fn changed(watch: &mut Option<DirWatch>) {
    if let Err(error) = changed_or_timeout(watch, SOCKET_POLL_INTERVAL).await {
        tracing::warn!(
            "vendor socket watch failed, removed sockets may be noticed late: {}",
            chain(&error)
        );
    }
}

#[cfg(test)]
mod tests;
