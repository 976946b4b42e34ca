//! The registry task: owns the registry state, scans devices on events and publishes the inventory.

mod checkpoint_saves;
mod event_sources;
mod inventory_publisher;
mod scan_progress;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinError,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::{
    checkpoint_saves::CheckpointSaves,
    event_sources::EventSources,
    inventory_publisher::InventoryPublisher,
    scan_progress::{ABSENT_DEVICE_GRACE, ScanProgress},
};

use super::{
    OfferOutcome, RegistryRequest, RegistrySettings,
    background_scan::{ScanJob, ScanResult},
    checkpoint::{self, CheckpointWriter},
    config_files, declaration_dirs,
    dir_watch::DirChange,
    scan::{self, Scan},
};
use crate::{
    declaration::Declaration,
    inventory::Inventory,
    registry_state::RegistryState,
    uevent::{Uevent, UeventError, UeventResult},
};
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_rootfs::Root;

/// Plugging one device makes several events, and udevd adds its links some milliseconds after the kernel's event:
/// one scan covers all. Removals are published at once and scanned at most this often.
const SCAN_DEBOUNCE: Duration = Duration::from_millis(50);
/// How long requests wait at the start for the first scan, which takes milliseconds. If a file system hangs, live
/// sources, which need no scan, are served after this time.
const FIRST_SCAN_TIMEOUT: Duration = Duration::from_secs(10);

/// Deadlines of the pending work.
#[derive(Debug, Default)]
struct RegistryDeadlines {
    files: Option<Instant>,
    scan: Option<Instant>,
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

/// The registry of one machine. Each part owns what it needs to decide; the task joins them.
pub(super) struct RegistryTask {
    root: Root,
    state: RegistryState,
    started_at: Instant,
    sources: EventSources,
    scans: ScanProgress,
    saves: CheckpointSaves,
    publisher: InventoryPublisher,
    deadlines: RegistryDeadlines,
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
        state.set_allocation_disabled(settings.allocation_disabled);
        Self {
            sources: EventSources::new(&root, settings.uevents, settings.units, settings.rescan),
            scans: ScanProgress::new(root.clone(), checkpoint_writer.is_new_boot()),
            saves: CheckpointSaves::new(checkpoint_writer, settings.save_timeout),
            publisher: InventoryPublisher::new(state.inventory()),
            root,
            state,
            started_at: Instant::now(),
            deadlines: RegistryDeadlines::default(),
        }
    }

    pub(super) fn inventory(&self) -> watch::Receiver<Arc<Inventory>> {
        self.publisher.subscribe()
    }

    pub(super) async fn run(
        mut self,
        mut requests: mpsc::Receiver<(RegistryRequest, oneshot::Sender<()>)>,
        stop: CancellationToken,
    ) {
        self.scans.worker.request_scan(true);
        loop {
            self.start_next_job();
            let deadline = self.next_deadline();
            // Before the first scan it is not known which resource names the declaration files own.
            let open =
                !self.scans.worker.is_first() || self.started_at.elapsed() >= FIRST_SCAN_TIMEOUT;
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => RegistryEvent::Stop,
                // Cancel-safe: a request stays in the channel.
                Some((request, reply)) = requests.recv(), if open => RegistryEvent::Request(request, reply),
                // Both are cancel-safe: the work goes on, and its result stays available.
                result = self.scans.worker.finished() => RegistryEvent::WorkDone(result),
                end = self.saves.wait_for_save() => RegistryEvent::Saved(end),
                // Cancel-safe: no source loses an event.
                event = self.sources.next() => event,
                // Cancel-safe: the deadline is computed again.
                () = sleep_until(deadline) => RegistryEvent::Time,
            };
            match event {
                RegistryEvent::Stop => break,
                event => self.handle(event),
            }
        }
        self.saves.finish(&self.state).await;
    }

    fn handle(&mut self, event: RegistryEvent) {
        match event {
            RegistryEvent::WorkDone(result) => self.record_worker_result(result),
            RegistryEvent::Saved(end) => self.saves.record_result(end),
            RegistryEvent::Files => RegistryDeadlines::debounce(&mut self.deadlines.files),
            RegistryEvent::Nodes(DirChange::Removed(names)) => self.record_removed_nodes(&names),
            RegistryEvent::Nodes(DirChange::Other) | RegistryEvent::Units => {
                RegistryDeadlines::debounce(&mut self.deadlines.scan)
            }
            RegistryEvent::Kernel(Ok(UeventResult::Event(event))) if !self.needs_scan(&event) => {}
            RegistryEvent::Kernel(Ok(_)) => {
                self.scans.worker.clear_cache();
                RegistryDeadlines::debounce(&mut self.deadlines.scan);
            }
            RegistryEvent::Kernel(Err(error)) => {
                tracing::warn!(
                    "no kernel device events; detecting hot plug by watching /dev instead: {}",
                    chain(&error)
                );
                self.sources.uevents = None;
                // The last events may be lost, and from now on rescans are more frequent.
                self.scans.worker.clear_cache();
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
            let at = self.scans.earliest();
            self.deadlines.scan = Some(self.deadlines.scan.map_or(at, |due| due.min(at)));
        }
        self.scans.record_removed(removed);
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
                self.scans.worker.request_full_scan(reply);
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
            self.scans.worker.request_scan(true);
        } else if RegistryDeadlines::passed(self.deadlines.scan) {
            self.deadlines.scan = None;
            self.scans
                .worker
                .request_scan(!self.sources.watches_all_files());
        }
        if RegistryDeadlines::passed(self.deadlines.flap_release) {
            self.release_held_devices();
            self.publish();
        }
        self.saves.start_if_due(&self.state);
        self.scans.worker.log_slow_step();
    }

    /// The earliest pending deadline; without one, the next rescan.
    fn next_deadline(&self) -> Instant {
        let first = self
            .scans
            .worker
            .is_first()
            .then(|| self.started_at + FIRST_SCAN_TIMEOUT);
        let first = first.filter(|at| *at > Instant::now());
        let due = [
            self.deadlines.files,
            self.deadlines.scan,
            self.saves.due(),
            self.deadlines.flap_release,
            self.scans.worker.slow_log_time(),
            first,
        ];
        due.into_iter()
            .flatten()
            .min()
            .unwrap_or_else(|| Instant::now() + self.sources.rescan_interval)
    }

    /// Starts reading files or scanning, if that is requested and neither is under way.
    fn start_next_job(&mut self) {
        match self.scans.worker.next_job() {
            Some(ScanJob::ReadFiles) => {
                let (root, dirs) = (self.root.clone(), declaration_dirs());
                self.sources.watch_declarations(&root, &dirs);
                let user = nix::unistd::geteuid().as_raw();
                self.scans
                    .worker
                    .run(move || ScanResult::Files(config_files::read_files(&root, &dirs, user)));
            }
            Some(ScanJob::Scan(mut scanner)) => {
                self.sources.retry_watches(&self.root);
                self.scans.begin();
                if self.sources.uevents.is_none() {
                    // Without uevents a device number may be reused for another device unnoticed.
                    scanner.clear_cache();
                }
                self.schedule_rescan();
                let declared: Vec<Declaration> = self.state.in_force().cloned().collect();
                let units = self.sources.units.borrow_and_update().clone();
                let known = self.publisher.current();
                self.scans.worker.run(move || {
                    let scan = scanner.scan(declared.iter(), &units, &known);
                    ScanResult::Machine(scanner, scan)
                });
            }
            None => {}
        }
    }

    /// Schedules the next scan without an event.
    fn schedule_rescan(&mut self) {
        let wait = self.sources.rescan_wait(self.state.in_force());
        self.deadlines.scan = Some(Instant::now() + wait);
    }

    /// Records the files that were read, or the result of a scan.
    fn record_worker_result(&mut self, result: Result<ScanResult, JoinError>) {
        match result {
            Ok(ScanResult::Files(files)) => self.state.set_files(files),
            Ok(ScanResult::Machine(scanner, mut scan)) => {
                self.scans.leave_out_removed(&mut scan);
                self.record_scan(&scan);
                let watch = self.sources.node_watch.as_mut();
                // Changes before a new watch was set up are missed: one more scan finds them.
                let more = watch.is_some_and(|watch| watch.set(&scan.dirs));
                if self.scans.worker.record_scan(scanner, more) {
                    self.publish();
                    self.scans.worker.notify_callers();
                }
            }
            Err(error) => {
                tracing::error!(%error, "device scan aborted");
                self.scans.worker.record_panic(self.root.clone());
                self.publish();
                self.scans.worker.notify_callers();
            }
        }
    }

    fn record_scan(&mut self, scan: &Scan) {
        let now = self.started_at.elapsed();
        let late = self.scans.takes_absent_devices(now);
        self.state.record_unscanned(&scan.unscanned);
        if let Some(wait) = self.state.record_scan(&scan.discoveries, now, late) {
            let again = Instant::now() + wait;
            self.deadlines.scan = Some(self.deadlines.scan.map_or(again, |at| at.min(again)));
        }
        if self.scans.awaits_absent_devices() {
            let late = self.started_at + ABSENT_DEVICE_GRACE;
            self.deadlines.scan = Some(self.deadlines.scan.map_or(late, |at| at.min(late)));
        }
    }

    fn publish(&mut self) {
        if self.publisher.publish(self.state.inventory()) {
            self.saves.schedule();
        }
    }
}
