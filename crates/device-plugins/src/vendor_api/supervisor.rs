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
    vendor_task::{VendorTaskDeps, run_vendor_task},
};
use machinist_base::{
    backoff::{Backoff, jitter},
    error_chain::chain,
    rate_limit::sleep_until_opt,
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
    pub(super) looks: PathChecker,
    pub(super) asks: mpsc::Sender<VendorRequest>,
    pub(super) status: watch::Receiver<LiveVendorStatus>,
    pub(super) problem: watch::Receiver<Option<String>>,
}

pub(super) type VendorHandles = BTreeMap<String, VendorHandle>;

/// One running vendor.
struct SupervisedVendor {
    spec: watch::Sender<Arc<Vendor>>,
    desk: VendorHandle,
    events: mpsc::Sender<VendorEvent>,
    problem: watch::Sender<Option<String>>,
    gone: CancellationToken,
    /// Resolves when its task has ended.
    done: oneshot::Receiver<()>,
    socket: Option<VendorSocket>,
    /// When its socket is retried, and how often it failed.
    again: Option<(Instant, u32)>,
}

pub(super) struct VendorSupervisor {
    pub(super) root: Root,
    pub(super) registry: Registry,
    pub(super) tasks: Tasks,
    pub(super) desks: watch::Sender<Arc<VendorHandles>>,
    /// Why hardware has to be released; `None` when it need not be.
    pub(super) quiesced: watch::Receiver<Option<String>>,
    /// Bumped on every change of any vendor's status.
    pub(super) news: Arc<watch::Sender<u64>>,
    kept: BTreeMap<String, SupervisedVendor>,
    /// Signalled when one of the sockets broke.
    broken: Arc<Notify>,
    /// Reports changes of the sockets' names; `None` where the kernel does not support it.
    watch: Option<DirWatch>,
}

impl VendorSupervisor {
    pub(super) fn new(
        root: Root,
        registry: Registry,
        tasks: Tasks,
        desks: watch::Sender<Arc<VendorHandles>>,
        (quiesced, news): (watch::Receiver<Option<String>>, Arc<watch::Sender<u64>>),
    ) -> Self {
        let watch = DirWatch::new(&root).inspect_err(|error| {
            tracing::warn!(
                "vendor socket watch failed, removed sockets may be noticed late: {}",
                chain(error)
            );
        });
        Self {
            watch: watch.ok(),
            broken: Arc::default(),
            root,
            registry,
            tasks,
            desks,
            quiesced,
            news,
            kept: BTreeMap::new(),
        }
    }

    /// Follows the files until their channel closes, which means the agent stops.
    pub(super) async fn run(mut self, mut vendors: watch::Receiver<Arc<Vendors>>) {
        loop {
            let known = vendors.borrow_and_update().clone();
            self.forget_strangers(&known).await;
            self.follow(&known).await;
            let again = self
                .kept
                .values()
                .filter_map(|kept| Some(kept.again?.0))
                .min();
            tokio::select! {
                // Safe to drop: a change stays marked as unseen.
                changed = vendors.changed() => if changed.is_err() { return },
                // Safe to drop: the deadlines are stored.
                () = sleep_until_opt(again) => {}
                // Safe to drop: events stay in the kernel's queue, and a broken socket stays broken.
                () = changed(&mut self.watch) => self.make_again(),
                () = self.broken.notified() => self.make_again(),
            }
        }
    }

    /// Schedules sockets that were removed or broke for re-creation; after a delay, in case it repeats.
    fn make_again(&mut self) {
        for (name, kept) in &mut self.kept {
            if kept.socket.as_ref().is_some_and(|socket| !socket.is_open()) {
                tracing::warn!(vendor = %name, "the socket of vendor {name} was removed; creating it again");
                kept.socket = None;
                kept.again = Some((Instant::now() + SOCKET_BACKOFF.wait(0, jitter()), 0));
            }
        }
    }

    /// Watches the directories of all sockets, and detects at once a socket that changed or was removed before its
    /// watch began.
    fn watch_sockets(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let sockets = self.kept.values().filter_map(|kept| kept.socket.as_ref());
        let dirs = sockets.filter_map(|socket| Some((socket.directory()?, WatchDepth::Names)));
        watch.set(&dirs.collect());
        self.make_again();
    }

    /// Withdraws what an earlier agent left of vendors that no file declares any more.
    async fn forget_strangers(&self, known: &Vendors) {
        // It is unknown which vendor a file declares that was never valid.
        if known.blind {
            return;
        }
        let inventory = self.registry.inventory().borrow().clone();
        for resource in inventory.resources.values() {
            let ResourceSource::Vendor(name) = &resource.source else {
                continue;
            };
            let declared = known
                .by_name
                .get(name)
                .is_some_and(|vendor| is_ours(vendor));
            if !declared
                && let Err(error) = self.registry.withdraw(resource.source.clone(), None).await
            {
                tracing::warn!("failed to withdraw the resources of vendor {name}: {error}");
            }
        }
    }

    async fn follow(&mut self, vendors: &Vendors) {
        let declared = |name: &String| vendors.by_name.get(name).filter(|vendor| is_ours(vendor));
        let gone: Vec<String> = self
            .kept
            .keys()
            .filter(|name| declared(name).is_none())
            .cloned()
            .collect();
        for name in gone {
            self.remove(&name).await;
        }
        for (name, vendor) in vendors.by_name.iter().filter(|(_, vendor)| is_ours(vendor)) {
            match self.kept.get_mut(name) {
                None => self.add(name, vendor),
                Some(kept) => {
                    if kept.spec.borrow().group != vendor.group {
                        kept.socket = None;
                    }
                    kept.spec.send_if_modified(|known| {
                        let news = known != vendor;
                        if news {
                            *known = Arc::clone(vendor);
                        }
                        news
                    });
                }
            }
        }
        self.serve();
        self.watch_sockets();
        let desks = self
            .kept
            .iter()
            .map(|(name, kept)| (name.clone(), kept.desk.clone()));
        let desks: VendorHandles = desks.collect();
        self.desks.send_if_modified(|known| {
            let news = !known.keys().eq(desks.keys());
            *known = Arc::new(desks);
            news
        });
    }

    /// Removes a vendor: first its session, then its offers, then its socket.
    async fn remove(&mut self, name: &str) {
        if let Some(kept) = self.kept.remove(name) {
            kept.gone.cancel();
            // A task that ended by itself is done as well.
            let _ = kept.done.await;
            tracing::info!(vendor = %name, "vendor {name} is no longer declared; withdrawing its resources");
        }
    }

    fn add(&mut self, name: &str, vendor: &Arc<Vendor>) {
        let (spec, vendor) = watch::channel(Arc::clone(vendor));
        let (asks, asked) = mpsc::channel(REQUEST_QUEUE_LEN);
        let (events, heard) = mpsc::channel(EVENT_QUEUE_LEN);
        let (publish, status) = watch::channel(LiveVendorStatus::default());
        let (problem, told) = watch::channel(None);
        let (finished, done) = oneshot::channel();
        let gone = CancellationToken::new();
        let looks = PathChecker::default();
        let surroundings = VendorTaskDeps {
            root: self.root.clone(),
            looks: looks.clone(),
            registry: self.registry.clone(),
            vendor: vendor.clone(),
            asks: asked,
            quiesced: self.quiesced.clone(),
            events: heard,
            status: publish,
            news: Arc::clone(&self.news),
            gone: gone.clone(),
            stop: self.tasks.token(),
        };
        self.tasks.spawn("vendor", async move {
            run_vendor_task(surroundings).await;
            // The receiver is gone when the agent stops.
            let _ = finished.send(());
        });
        let desk = VendorHandle {
            vendor,
            looks,
            asks,
            status,
            problem: told,
        };
        self.kept.insert(
            name.to_owned(),
            SupervisedVendor {
                spec,
                desk,
                events,
                problem,
                gone,
                done,
                socket: None,
                again: None,
            },
        );
    }

    /// Creates the sockets that are missing.
    fn serve(&mut self) {
        let now = Instant::now();
        for (name, kept) in &mut self.kept {
            let wait = kept.again.is_some_and(|(at, _)| at > now);
            if kept.socket.is_some() || wait {
                continue;
            }
            match VendorSocket::serve(
                &self.root,
                &kept.desk.vendor,
                &kept.events,
                &self.tasks,
                &self.broken,
            ) {
                Ok(socket) => {
                    kept.socket = Some(socket);
                    kept.again = None;
                    kept.problem.send_replace(None);
                }
                Err(error) => {
                    let failures = kept.again.map_or(0, |(_, failures)| failures + 1);
                    let why = chain(&error);
                    if kept.problem.borrow().as_ref() != Some(&why) {
                        tracing::warn!(vendor = %name, "failed to serve the socket of vendor {name}: {why}");
                    }
                    kept.problem.send_replace(Some(why));
                    kept.again = Some((now + SOCKET_BACKOFF.wait(failures, jitter()), failures));
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
