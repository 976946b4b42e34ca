//! The registry task: owns the registry state, scans devices on events and publishes the inventory.

mod event_sources;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinError,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use event_sources::{changed, listen, next_uevent, watcher};

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
    scan: Option<Instant>,
    save: Option<Instant>,
    /// When the next device of a live source has been present for long enough to become allocatable.
    flap_release: Option<Instant>,
}

impl RegistryDeadlines {
    /// The first event of a burst sets the deadline; later ones do not postpone it.
    fn debounce(at: &mut Option<Instant>) {
        let soon = Instant::now() + SCAN_DEBOUNCE;
        *at = Some(at.map_or(soon, |at| at.min(soon)));
    }

    fn passed(at: Option<Instant>) -> bool {
        at.is_some_and(|at| at <= Instant::now())
    }
}

pub(super) struct RegistryTask {
    root: Root,
    state: RegistryState,
    scan_worker: ScanWorker,
    checkpoint_writer: CheckpointWriter,
    file_watch: Option<DirWatch>,
    node_watch: Option<DirWatch>,
    uevents: Option<Uevents>,
    /// The interval between full rescans, which find changes whose events were lost (full queues).
    rescan_interval: Duration,
    /// The state of the systemd units that health probes name.
    units: watch::Receiver<UnitStates>,
    published: watch::Sender<Arc<Inventory>>,
    started_at: Instant,
    /// When the last scan began.
    last_scan_at: Option<Instant>,
    /// Device nodes that were removed since the last scan began, which may still have seen them.
    removed_nodes: BTreeSet<AbsPath>,
    deadlines: RegistryDeadlines,
    /// Limits how often the list is saved: each save writes and syncs the whole list.
    save_rate: RateLimiter,
    change_logger: ChangeLogger,
    absent_removed: bool,
}

/// The events that wake the task.
enum RegistryEvent {
    WorkDone(Result<ScanResult, JoinError>),
    Saved(checkpoint::WriteOutcome),
    Files,
    Nodes(DirChange),
    Kernel(Result<UeventResult, UeventError>),
    Units,
    Time,
    Request(RegistryRequest, oneshot::Sender<()>),
    Stop,
}

impl RegistryTask {
    /// Restores the state that an earlier agent saved. No scan has been made yet.
    pub(super) fn new(root: Root, settings: RegistrySettings) -> Self {
        let mut state = RegistryState::new(settings.allowances);
        let mut checkpoint_writer = CheckpointWriter::new(root.clone());
        if let Some(saved) = checkpoint_writer.load() {
            state.restore(saved, checkpoint_writer.boot_id(), |node| {
                scan::is_device(&root, node)
            });
        }
        state.set_allocation_disabled(settings.withheld);
        Self {
            file_watch: watcher(&root),
            node_watch: watcher(&root),
            uevents: settings.uevents.then(listen).flatten(),
            rescan_interval: settings.rescan,
            units: settings.units,
            scan_worker: ScanWorker::new(root.clone()),
            published: watch::Sender::new(Arc::new(state.inventory())),
            root,
            state,
            absent_removed: !checkpoint_writer.is_new_boot(),
            checkpoint_writer,
            started_at: Instant::now(),
            last_scan_at: None,
            removed_nodes: BTreeSet::new(),
            deadlines: RegistryDeadlines::default(),
            save_rate: RateLimiter::per_interval(SAVE_INTERVAL, 10),
            change_logger: ChangeLogger::default(),
        }
    }

    pub(super) fn inventory(&self) -> watch::Receiver<Arc<Inventory>> {
        self.published.subscribe()
    }

    pub(super) async fn run(
        mut self,
        mut requests: mpsc::Receiver<(RegistryRequest, oneshot::Sender<()>)>,
        stop: CancellationToken,
    ) {
        self.scan_worker.request_scan(true);
        loop {
            self.start_next_job();
            let deadline = self.next_deadline();
            // Before the first scan it is not known which resource names the declaration files own.
            let open =
                !self.scan_worker.is_first() || self.started_at.elapsed() >= FIRST_SCAN_TIMEOUT;
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => RegistryEvent::Stop,
                // Cancel-safe: a request stays in the channel.
                Some((request, reply)) = requests.recv(), if open => RegistryEvent::Request(request, reply),
                // Both are cancel-safe: the work goes on, and its result stays available.
                result = self.scan_worker.finished() => RegistryEvent::WorkDone(result),
                end = self.checkpoint_writer.wait_for_save() => RegistryEvent::Saved(end),
                // Cancel-safe: events stay in the kernel's queues.
                _ = changed(&mut self.file_watch) => RegistryEvent::Files,
                change = changed(&mut self.node_watch) => RegistryEvent::Nodes(change),
                uevent = next_uevent(self.uevents.as_ref()) => RegistryEvent::Kernel(uevent),
                // Cancel-safe: a change stays marked as unseen.
                Ok(()) = self.units.changed() => RegistryEvent::Units,
                // Cancel-safe: the deadline is computed again.
                () = sleep_until(deadline) => RegistryEvent::Time,
            };
            match event {
                RegistryEvent::Stop => break,
                event => self.handle(event),
            }
        }
        // State without pending changes is on the disk already, or being written.
        let save = self
            .checkpoint_writer
            .save(&self.state, self.deadlines.save.is_some());
        if timeout(SHUTDOWN_SAVE_TIMEOUT, save).await.is_err() {
            tracing::warn!("saving devices timed out: the next start may use an older list");
        }
    }

    fn handle(&mut self, event: RegistryEvent) {
        match event {
            RegistryEvent::WorkDone(result) => self.record_worker_result(result),
            RegistryEvent::Saved(end) => {
                if !self.checkpoint_writer.record_result(end) {
                    let again = || Instant::now() + SAVE_RETRY_INTERVAL;
                    self.deadlines.save.get_or_insert_with(again);
                }
            }
            RegistryEvent::Files => RegistryDeadlines::debounce(&mut self.deadlines.files),
            RegistryEvent::Nodes(DirChange::Gone(names)) => self.record_removed_nodes(&names),
            RegistryEvent::Nodes(DirChange::Other) | RegistryEvent::Units => {
                RegistryDeadlines::debounce(&mut self.deadlines.scan)
            }
            RegistryEvent::Kernel(Ok(UeventResult::Event(event))) if !self.needs_scan(&event) => {}
            RegistryEvent::Kernel(Ok(_)) => {
                self.scan_worker.clear_cache();
                RegistryDeadlines::debounce(&mut self.deadlines.scan);
            }
            RegistryEvent::Kernel(Err(error)) => {
                tracing::warn!(
                    "no kernel device events; detecting hot plug by watching /dev instead: {}",
                    chain(&error)
                );
                self.uevents = None;
                // The last events may be lost, and from now on rescans are more frequent.
                self.scan_worker.clear_cache();
                RegistryDeadlines::debounce(&mut self.deadlines.scan);
            }
            RegistryEvent::Request(request, reply) => {
                if let Some(reply) = self.handle_request(request, reply) {
                    // The caller may have stopped waiting.
                    let _ = reply.send(());
                }
            }
            RegistryEvent::Time => self.handle_deadlines(),
            RegistryEvent::Stop => {}
        }
    }

    /// Publishes removed devices as unhealthy, before a scan, which takes longer with more devices.
    fn record_removed_nodes(&mut self, names: &BTreeSet<AbsPath>) {
        let removed = self.state.mark_removed(names, self.started_at.elapsed());
        if !removed.is_empty() {
            self.publish();
        }
        if !names.is_empty() && removed.len() == names.len() {
            RegistryDeadlines::debounce(&mut self.deadlines.scan);
        } else {
            // The remaining names may belong to other devices; only a scan can find out.
            let now = Instant::now();
            let at = self
                .last_scan_at
                .map_or(now, |at| (at + SCAN_DEBOUNCE).max(now));
            self.deadlines.scan = Some(self.deadlines.scan.map_or(at, |due| due.min(at)));
        }
        self.removed_nodes.extend(removed);
    }

    /// Whether an event calls for a scan: those about device nodes do, and those of PCI and USB (such as a driver
    /// binding) while a declaration selects hardware by more than its name.
    fn needs_scan(&self, event: &Uevent) -> bool {
        let bus = matches!(event.subsystem.as_deref(), Some("pci" | "usb"));
        event.node.is_some() || bus && self.state.in_force().any(Declaration::asks_hardware)
    }

    /// Carries out a request. Returns the reply channel when done; none if the reply is sent later.
    fn handle_request(
        &mut self,
        request: RegistryRequest,
        reply: oneshot::Sender<()>,
    ) -> Option<oneshot::Sender<()>> {
        let now = self.started_at.elapsed();
        match request {
            RegistryRequest::Rescan => {
                self.scan_worker.request_full_scan(reply);
                return None;
            }
            RegistryRequest::SetAllocationDisabled(why) => self.state.set_allocation_disabled(why),
            RegistryRequest::Offer(offer, outcome_reply) => {
                let source = offer.source.clone();
                let by = self.state.offer(offer, now);
                self.release_held_devices();
                let outcome = if by == source {
                    OfferOutcome::InForce
                } else {
                    OfferOutcome::Taken { by }
                };
                let _ = outcome_reply.send(outcome);
            }
            RegistryRequest::Withdraw(source, resource) => self.remove_offers(|state| {
                state.withdraw(&source, resource.as_ref());
            }),
            RegistryRequest::RetainOffers(source, names) => {
                self.remove_offers(|state| state.retain_offers(&source, &names))
            }
        }
        self.publish();
        Some(reply)
    }

    /// Removes an offer. A declaration that waited for the resource's name may be in force then, and its devices
    /// have not been scanned yet.
    fn remove_offers(&mut self, change: impl FnOnce(&mut RegistryState)) {
        let in_force = |state: &RegistryState| state.in_force().count();
        let before = in_force(&self.state);
        change(&mut self.state);
        if in_force(&self.state) > before {
            RegistryDeadlines::debounce(&mut self.deadlines.scan);
        }
    }

    /// Updates which flapping devices of live sources are held back.
    fn release_held_devices(&mut self) {
        let wait = self.state.release_held_devices(self.started_at.elapsed());
        self.deadlines.flap_release = wait.map(|wait| Instant::now() + wait);
    }

    fn handle_deadlines(&mut self) {
        if RegistryDeadlines::passed(self.deadlines.files) {
            self.deadlines.files = None;
            self.scan_worker.request_scan(true);
        } else if RegistryDeadlines::passed(self.deadlines.scan) {
            self.deadlines.scan = None;
            self.scan_worker.request_scan(!self.watches_all_files());
        }
        if RegistryDeadlines::passed(self.deadlines.flap_release) {
            self.release_held_devices();
            self.publish();
        }
        if RegistryDeadlines::passed(self.deadlines.save) {
            // A save with older content is under way: save again when that is done.
            self.deadlines.save = match self.checkpoint_writer.start_save(&self.state) {
                true => {
                    self.save_rate.take();
                    None
                }
                false => Some(Instant::now() + checkpoint::SAVE_DEBOUNCE),
            };
        }
        self.scan_worker.log_slow_step();
    }

    /// The earliest pending deadline; without one, the next rescan.
    fn next_deadline(&self) -> Instant {
        let first = self
            .scan_worker
            .is_first()
            .then(|| self.started_at + FIRST_SCAN_TIMEOUT);
        let first = first.filter(|at| *at > Instant::now());
        let due = [
            self.deadlines.files,
            self.deadlines.scan,
            self.deadlines.save,
            self.deadlines.flap_release,
            self.scan_worker.slow_log_time(),
            first,
        ];
        due.into_iter()
            .flatten()
            .min()
            .unwrap_or_else(|| Instant::now() + self.rescan_interval)
    }

    /// Starts reading files or scanning, if that is requested and neither is under way.
    fn start_next_job(&mut self) {
        match self.scan_worker.next_job() {
            Some(ScanJob::ReadFiles) => {
                let (root, dirs) = (self.root.clone(), declaration_dirs());
                if let Some(watch) = &mut self.file_watch {
                    watch.set(&dirs.iter().map(|dir| watch_for(&root, dir)).collect());
                }
                let user = nix::unistd::geteuid().as_raw();
                self.scan_worker
                    .run(move || ScanResult::Files(config_files::read_files(&root, &dirs, user)));
            }
            Some(ScanJob::Scan(mut scanner)) => {
                // Retry a watch that failed. Whether it covers all directories is known after the scan.
                let again = || DirWatch::new(&self.root).ok();
                self.node_watch = self.node_watch.take().or_else(again);
                self.file_watch = self.file_watch.take().or_else(again);
                self.last_scan_at = Some(Instant::now());
                self.removed_nodes.clear();
                if self.uevents.is_none() {
                    // Without uevents a device number may be reused for another device unnoticed.
                    scanner.clear_cache();
                }
                self.schedule_rescan();
                let declared: Vec<Declaration> = self.state.in_force().cloned().collect();
                let units = self.units.borrow_and_update().clone();
                let known = self.published.borrow().clone();
                self.scan_worker.run(move || {
                    let scan = scanner.scan(declared.iter(), &units, &known);
                    ScanResult::Machine(scanner, scan)
                });
            }
            None => {}
        }
    }

    /// Whether inotify covers all directories of declarations.
    fn watches_all_files(&self) -> bool {
        self.file_watch.as_ref().is_some_and(DirWatch::is_complete)
    }

    /// Schedules the next scan without an event.
    fn schedule_rescan(&mut self) {
        let watches_all =
            self.watches_all_files() && self.node_watch.as_ref().is_some_and(DirWatch::is_complete);
        let mut slow = match self.uevents.is_some() && watches_all {
            true => self.rescan_interval,
            false => self.rescan_interval.min(RESCAN_INTERVAL_WITHOUT_EVENTS),
        };
        let reads_attributes = |one: &Declaration| {
            one.probes
                .iter()
                .any(|probe| matches!(probe, HealthProbe::Sysfs { .. }))
        };
        if self.state.in_force().any(reads_attributes) {
            slow = slow.min(ATTRIBUTE_RESCAN_INTERVAL);
        }
        self.deadlines.scan = Some(Instant::now() + slow);
    }

    /// Records the files that were read, or the result of a scan.
    fn record_worker_result(&mut self, result: Result<ScanResult, JoinError>) {
        match result {
            Ok(ScanResult::Files(files)) => self.state.set_files(files),
            Ok(ScanResult::Machine(scanner, mut scan)) => {
                if !self.removed_nodes.is_empty() {
                    scan.remove_nodes(&self.removed_nodes);
                }
                self.record_scan(&scan);
                let watch = self.node_watch.as_mut();
                // Changes before a new watch was set up are missed: one more scan finds them.
                let more = watch.is_some_and(|watch| watch.set(&scan.dirs));
                if self.scan_worker.record_scan(scanner, more) {
                    self.publish();
                    self.scan_worker.notify_callers();
                }
            }
            Err(error) => {
                tracing::error!(%error, "device scan aborted");
                self.scan_worker.record_panic(self.root.clone());
                self.publish();
                self.scan_worker.notify_callers();
            }
        }
    }

    fn record_scan(&mut self, scan: &Scan) {
        let now = self.started_at.elapsed();
        let late = now >= ABSENT_DEVICE_GRACE
            && !self.absent_removed
            && self.checkpoint_writer.is_new_boot();
        self.absent_removed |= now >= ABSENT_DEVICE_GRACE;
        self.state.record_unscanned(&scan.unscanned);
        if let Some(wait) = self.state.record_scan(&scan.discoveries, now, late) {
            let again = Instant::now() + wait;
            self.deadlines.scan = Some(self.deadlines.scan.map_or(again, |at| at.min(again)));
        }
        if !self.absent_removed {
            let late = self.started_at + ABSENT_DEVICE_GRACE;
            self.deadlines.scan = Some(self.deadlines.scan.map_or(late, |at| at.min(late)));
        }
    }

    fn publish(&mut self) {
        let now = Arc::new(self.state.inventory());
        let before = self.published.borrow().clone();
        if before == now {
            return;
        }
        // Subscribers are notified before the changes are logged.
        self.published.send_replace(Arc::clone(&now));
        self.change_logger.log_changes(&before, &now);
        let at = || (Instant::now() + checkpoint::SAVE_DEBOUNCE).max(self.save_rate.ready());
        self.deadlines.save.get_or_insert_with(at);
    }
}
