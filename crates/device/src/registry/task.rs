//! The registry task: owns the registry state, scans devices on events and publishes the inventory.

mod event_sources;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinError,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use event_sources::{changed, hear, listen, watcher};

use super::{
    OfferOutcome, RegistryRequest, RegistrySettings,
    background_scan::{ScanJob, ScanResult, ScanWorker},
    change_log::ChangeLogger,
    checkpoint::{self, CheckpointWriter},
    config_files, declaration_dirs,
    dir_watch::{DirChange, DirWatch},
    scan::{self, Scan, UnitStates},
    watch_target::watch_for,
};
use crate::{
    declaration::{Declaration, HealthProbe},
    inventory::Inventory,
    registry_state::RegistryState,
    uevent::{Uevent, UeventError, UeventResult, Uevents},
};
use machinist_base::{abs_path::AbsPath, error_chain::chain, rate_limit::RateLimiter};
use machinist_rootfs::Root;

/// Plugging one device makes several events, and udevd adds its links some milliseconds after the kernel's event:
/// one scan covers all. Removals are published at once and scanned at most this often.
const SCAN_DEBOUNCE: Duration = Duration::from_millis(50);
/// The rescan interval without uevents or some directory watch: inotify alone does not see hardware without a node
/// in `/dev`, and without inotify, changes of files go unnoticed.
const RESCAN_INTERVAL_WITHOUT_EVENTS: Duration = Duration::from_secs(60);
/// The rescan interval while health probes read sysfs attributes, whose changes cause no event.
const ATTRIBUTE_RESCAN_INTERVAL: Duration = Duration::from_secs(10);
/// How long after the agent's start devices of an earlier boot may be absent before they are removed: slow buses
/// and firmware take tens of seconds to bring up theirs.
const ABSENT_DEVICE_GRACE: Duration = Duration::from_secs(60);
/// How long requests wait at the start for the first scan, which takes milliseconds. If a file system hangs, live
/// sources, which need no scan, are served after this time.
const FIRST_SCAN_TIMEOUT: Duration = Duration::from_secs(10);

/// When a failed save is retried, for example after the disk was full.
const SAVE_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// The average interval of saves while the inventory keeps changing, such as a reported temperature.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);
/// How long the shutdown waits for the last save, which only speeds up the next start.
const SHUTDOWN_SAVE_TIMEOUT: Duration = Duration::from_millis(500);

/// Deadlines of the pending work.
#[derive(Debug, Default)]
struct RegistryDeadlines {
    files: Option<Instant>,
    look: Option<Instant>,
    save: Option<Instant>,
    /// When the next device of a live source has been present for long enough to become allocatable.
    settle: Option<Instant>,
}

impl RegistryDeadlines {
    /// The first event of a burst sets the deadline; later ones do not postpone it.
    fn soon(at: &mut Option<Instant>) {
        let soon = Instant::now() + SCAN_DEBOUNCE;
        *at = Some(at.map_or(soon, |at| at.min(soon)));
    }

    fn passed(at: Option<Instant>) -> bool {
        at.is_some_and(|at| at <= Instant::now())
    }
}

pub(super) struct RegistryTask {
    root: Root,
    ledger: RegistryState,
    looking: ScanWorker,
    keeper: CheckpointWriter,
    files: Option<DirWatch>,
    nodes: Option<DirWatch>,
    uevents: Option<Uevents>,
    /// The interval between full rescans, which find changes whose events were lost (full queues).
    rescan: Duration,
    /// The state of the systemd units that health probes name.
    units: watch::Receiver<UnitStates>,
    publish: watch::Sender<Arc<Inventory>>,
    started: Instant,
    /// When the last scan began.
    looked: Option<Instant>,
    /// Device nodes that were removed since the last scan began, which may still have seen them.
    gone: BTreeSet<AbsPath>,
    due: RegistryDeadlines,
    /// Limits how often the list is saved: each save writes and syncs the whole list.
    saves: RateLimiter,
    announcer: ChangeLogger,
    forgot: bool,
}

/// The events that wake the task.
enum RegistryEvent {
    Looked(Result<ScanResult, JoinError>),
    Saved(checkpoint::WriteOutcome),
    Files,
    Nodes(DirChange),
    Kernel(Result<UeventResult, UeventError>),
    Units,
    Time,
    Asked(RegistryRequest, oneshot::Sender<()>),
    Stop,
}

impl RegistryTask {
    /// Restores the state that an earlier agent saved. No scan has been made yet.
    pub(super) fn new(root: Root, settings: RegistrySettings) -> Self {
        let mut ledger = RegistryState::new(settings.allowances);
        let mut keeper = CheckpointWriter::new(root.clone());
        if let Some(saved) = keeper.load() {
            ledger.restore(saved, keeper.boot_id(), |node| scan::is_device(&root, node));
        }
        ledger.set_allocation_disabled(settings.withheld);
        Self {
            files: watcher(&root),
            nodes: watcher(&root),
            uevents: settings.uevents.then(listen).flatten(),
            rescan: settings.rescan,
            units: settings.units,
            looking: ScanWorker::new(root.clone()),
            publish: watch::Sender::new(Arc::new(ledger.inventory())),
            root,
            ledger,
            forgot: !keeper.is_new_boot(),
            keeper,
            started: Instant::now(),
            looked: None,
            gone: BTreeSet::new(),
            due: RegistryDeadlines::default(),
            saves: RateLimiter::per_interval(SAVE_INTERVAL, 10),
            announcer: ChangeLogger::default(),
        }
    }

    pub(super) fn inventory(&self) -> watch::Receiver<Arc<Inventory>> {
        self.publish.subscribe()
    }

    pub(super) async fn run(
        mut self,
        mut asked: mpsc::Receiver<(RegistryRequest, oneshot::Sender<()>)>,
        stop: CancellationToken,
    ) {
        self.looking.request_scan(true);
        loop {
            self.begin();
            let alarm = self.alarm();
            // Before the first scan it is not known which resource names the declaration files own.
            let open = !self.looking.is_first() || self.started.elapsed() >= FIRST_SCAN_TIMEOUT;
            let woken = tokio::select! {
                biased;
                () = stop.cancelled() => RegistryEvent::Stop,
                // Cancel-safe: a request stays in the channel.
                Some((ask, reply)) = asked.recv(), if open => RegistryEvent::Asked(ask, reply),
                // Both are cancel-safe: the work goes on, and its result stays available.
                looked = self.looking.done() => RegistryEvent::Looked(looked),
                end = self.keeper.wait_for_save() => RegistryEvent::Saved(end),
                // Cancel-safe: events stay in the kernel's queues.
                _ = changed(&mut self.files) => RegistryEvent::Files,
                change = changed(&mut self.nodes) => RegistryEvent::Nodes(change),
                heard = hear(self.uevents.as_ref()) => RegistryEvent::Kernel(heard),
                // Cancel-safe: a change stays marked as unseen.
                Ok(()) = self.units.changed() => RegistryEvent::Units,
                // Cancel-safe: the deadline is computed again.
                () = sleep_until(alarm) => RegistryEvent::Time,
            };
            match woken {
                RegistryEvent::Stop => break,
                woken => self.handle(woken),
            }
        }
        // State without pending changes is on the disk already, or being written.
        let save = self.keeper.save(&self.ledger, self.due.save.is_some());
        if timeout(SHUTDOWN_SAVE_TIMEOUT, save).await.is_err() {
            tracing::warn!("saving devices timed out: the next start may use an older list");
        }
    }

    fn handle(&mut self, woken: RegistryEvent) {
        match woken {
            RegistryEvent::Looked(looked) => self.looked(looked),
            RegistryEvent::Saved(end) => {
                if !self.keeper.record_result(end) {
                    let again = || Instant::now() + SAVE_RETRY_INTERVAL;
                    self.due.save.get_or_insert_with(again);
                }
            }
            RegistryEvent::Files => RegistryDeadlines::soon(&mut self.due.files),
            RegistryEvent::Nodes(DirChange::Gone(names)) => self.went(&names),
            RegistryEvent::Nodes(DirChange::Other) | RegistryEvent::Units => {
                RegistryDeadlines::soon(&mut self.due.look)
            }
            RegistryEvent::Kernel(Ok(UeventResult::Event(event))) if !self.concerns(&event) => {}
            RegistryEvent::Kernel(Ok(_)) => {
                self.looking.forget();
                RegistryDeadlines::soon(&mut self.due.look);
            }
            RegistryEvent::Kernel(Err(error)) => {
                tracing::warn!(
                    "no kernel device events; detecting hot plug by watching /dev instead: {}",
                    chain(&error)
                );
                self.uevents = None;
                // The last events may be lost, and from now on rescans are more frequent.
                self.looking.forget();
                RegistryDeadlines::soon(&mut self.due.look);
            }
            RegistryEvent::Asked(ask, reply) => {
                if let Some(reply) = self.asked(ask, reply) {
                    // The caller may have stopped waiting.
                    let _ = reply.send(());
                }
            }
            RegistryEvent::Time => self.on_time(),
            RegistryEvent::Stop => {}
        }
    }

    /// Publishes removed devices as unhealthy, before a scan, which takes longer with more devices.
    fn went(&mut self, names: &BTreeSet<AbsPath>) {
        let told = self.ledger.mark_removed(names, self.started.elapsed());
        if !told.is_empty() {
            self.publish();
        }
        if !names.is_empty() && told.len() == names.len() {
            RegistryDeadlines::soon(&mut self.due.look);
        } else {
            // The remaining names may belong to other devices; only a scan can find out.
            let now = Instant::now();
            let at = self.looked.map_or(now, |at| (at + SCAN_DEBOUNCE).max(now));
            self.due.look = Some(self.due.look.map_or(at, |due| due.min(at)));
        }
        self.gone.extend(told);
    }

    /// Whether an event calls for a scan: those about device nodes do, and those of PCI and USB (such as a driver
    /// binding) while a declaration selects hardware by more than its name.
    fn concerns(&self, event: &Uevent) -> bool {
        let bus = matches!(event.subsystem.as_deref(), Some("pci" | "usb"));
        event.node.is_some() || bus && self.ledger.in_force().any(Declaration::asks_hardware)
    }

    /// Carries out a request. Returns the reply channel when done; none if the reply is sent later.
    fn asked(
        &mut self,
        ask: RegistryRequest,
        reply: oneshot::Sender<()>,
    ) -> Option<oneshot::Sender<()>> {
        let now = self.started.elapsed();
        match ask {
            RegistryRequest::Rescan => {
                self.looking.request_full_scan(reply);
                return None;
            }
            RegistryRequest::Withhold(why) => self.ledger.set_allocation_disabled(why),
            RegistryRequest::Offer(offer, standing) => {
                let source = offer.source.clone();
                let by = self.ledger.offer(offer, now);
                self.settle();
                let told = if by == source {
                    OfferOutcome::InForce
                } else {
                    OfferOutcome::Taken { by }
                };
                let _ = standing.send(told);
            }
            RegistryRequest::Withdraw(source, resource) => self.less(|ledger| {
                ledger.withdraw(&source, resource.as_ref());
            }),
            RegistryRequest::Only(source, names) => {
                self.less(|ledger| ledger.only(&source, &names))
            }
        }
        self.publish();
        Some(reply)
    }

    /// Removes an offer. A declaration that waited for the resource's name may be in force then, and its devices
    /// have not been scanned yet.
    fn less(&mut self, change: impl FnOnce(&mut RegistryState)) {
        let in_force = |ledger: &RegistryState| ledger.in_force().count();
        let before = in_force(&self.ledger);
        change(&mut self.ledger);
        if in_force(&self.ledger) > before {
            RegistryDeadlines::soon(&mut self.due.look);
        }
    }

    /// Updates which flapping devices of live sources are held back.
    fn settle(&mut self) {
        let wait = self.ledger.release_held_devices(self.started.elapsed());
        self.due.settle = wait.map(|wait| Instant::now() + wait);
    }

    fn on_time(&mut self) {
        if RegistryDeadlines::passed(self.due.files) {
            self.due.files = None;
            self.looking.request_scan(true);
        } else if RegistryDeadlines::passed(self.due.look) {
            self.due.look = None;
            self.looking.request_scan(!self.hears_of_files());
        }
        if RegistryDeadlines::passed(self.due.settle) {
            self.settle();
            self.publish();
        }
        if RegistryDeadlines::passed(self.due.save) {
            // A save with older content is under way: save again when that is done.
            self.due.save = match self.keeper.begin(&self.ledger) {
                true => {
                    self.saves.take();
                    None
                }
                false => Some(Instant::now() + checkpoint::SAVE_DEBOUNCE),
            };
        }
        self.looking.log_slow_step();
    }

    /// The earliest pending deadline; without one, the next rescan.
    fn alarm(&self) -> Instant {
        let first = self
            .looking
            .is_first()
            .then(|| self.started + FIRST_SCAN_TIMEOUT);
        let first = first.filter(|at| *at > Instant::now());
        let due = [
            self.due.files,
            self.due.look,
            self.due.save,
            self.due.settle,
            self.looking.slow_log_time(),
            first,
        ];
        due.into_iter()
            .flatten()
            .min()
            .unwrap_or_else(|| Instant::now() + self.rescan)
    }

    /// Starts reading files or scanning, if that is requested and neither is under way.
    fn begin(&mut self) {
        match self.looking.next() {
            Some(ScanJob::Read) => {
                let (root, dirs) = (self.root.clone(), declaration_dirs());
                if let Some(watch) = &mut self.files {
                    watch.set(&dirs.iter().map(|dir| watch_for(&root, dir)).collect());
                }
                let user = nix::unistd::geteuid().as_raw();
                self.looking
                    .run(move || ScanResult::Files(config_files::read_files(&root, &dirs, user)));
            }
            Some(ScanJob::Look(mut scanner)) => {
                // Retry a watch that failed. Whether it covers all directories is known after the scan.
                let again = || DirWatch::new(&self.root).ok();
                self.nodes = self.nodes.take().or_else(again);
                self.files = self.files.take().or_else(again);
                self.looked = Some(Instant::now());
                self.gone.clear();
                if self.uevents.is_none() {
                    // Without uevents a device number may be reused for another device unnoticed.
                    scanner.forget();
                }
                self.look_again();
                let declared: Vec<Declaration> = self.ledger.in_force().cloned().collect();
                let units = self.units.borrow_and_update().clone();
                let known = self.publish.borrow().clone();
                self.looking.run(move || {
                    let scan = scanner.scan(declared.iter(), &units, &known);
                    ScanResult::Machine(scanner, scan)
                });
            }
            None => {}
        }
    }

    /// Whether inotify covers all directories of declarations.
    fn hears_of_files(&self) -> bool {
        self.files.as_ref().is_some_and(DirWatch::is_complete)
    }

    /// Schedules the next scan without an event.
    fn look_again(&mut self) {
        let hears = self.hears_of_files() && self.nodes.as_ref().is_some_and(DirWatch::is_complete);
        let mut slow = match self.uevents.is_some() && hears {
            true => self.rescan,
            false => self.rescan.min(RESCAN_INTERVAL_WITHOUT_EVENTS),
        };
        let reads = |one: &Declaration| {
            one.probes
                .iter()
                .any(|probe| matches!(probe, HealthProbe::Sysfs { .. }))
        };
        if self.ledger.in_force().any(reads) {
            slow = slow.min(ATTRIBUTE_RESCAN_INTERVAL);
        }
        self.due.look = Some(Instant::now() + slow);
    }

    /// Records the files that were read, or the result of a scan.
    fn looked(&mut self, looked: Result<ScanResult, JoinError>) {
        match looked {
            Ok(ScanResult::Files(files)) => self.ledger.files(files),
            Ok(ScanResult::Machine(scanner, mut scan)) => {
                if !self.gone.is_empty() {
                    scan.without(&self.gone);
                }
                self.take_note(&scan);
                let watch = self.nodes.as_mut();
                // Changes before a new watch was set up are missed: one more scan finds them.
                let more = watch.is_some_and(|watch| watch.set(&scan.dirs));
                if self.looking.end(scanner, more) {
                    self.publish();
                    self.looking.notify_callers();
                }
            }
            Err(error) => {
                tracing::error!(%error, "device scan aborted");
                self.looking.record_panic(self.root.clone());
                self.publish();
                self.looking.notify_callers();
            }
        }
    }

    fn take_note(&mut self, scan: &Scan) {
        let now = self.started.elapsed();
        let late = now >= ABSENT_DEVICE_GRACE && !self.forgot && self.keeper.is_new_boot();
        self.forgot |= now >= ABSENT_DEVICE_GRACE;
        self.ledger.record_unscanned(&scan.unseen);
        if let Some(wait) = self.ledger.record_scan(&scan.sightings, now, late) {
            let again = Instant::now() + wait;
            self.due.look = Some(self.due.look.map_or(again, |at| at.min(again)));
        }
        if !self.forgot {
            let late = self.started + ABSENT_DEVICE_GRACE;
            self.due.look = Some(self.due.look.map_or(late, |at| at.min(late)));
        }
    }

    fn publish(&mut self) {
        let now = Arc::new(self.ledger.inventory());
        let before = self.publish.borrow().clone();
        if before == now {
            return;
        }
        // Subscribers are notified before the changes are logged.
        self.publish.send_replace(Arc::clone(&now));
        self.announcer.announce(&before, &now);
        let at = || (Instant::now() + checkpoint::SAVE_DEBOUNCE).max(self.saves.ready());
        self.due.save.get_or_insert_with(at);
    }
}
