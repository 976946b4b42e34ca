//! Runs reads and scans outside the registry task, one at a time. If a file system is slow or hangs,
//! the known devices stay listed, and live sources are served all the same.

use std::time::Duration;

use tokio::{
    sync::oneshot,
    task::{JoinError, JoinHandle, spawn_blocking},
    time::Instant,
};

use super::scan::{Scan, Scanner};
use crate::registry_state::ConfigFiles;
use machinist_rootfs::Root;

/// Longer than any normal scan takes; a longer one is logged once.
const SLOW_SCAN_AFTER: Duration = Duration::from_secs(30);
/// The maximum number of consecutive scans that newly watched directories cause.
const MAX_FOLLOWUP_SCANS: u32 = 2;

/// The result of a read or a scan.
pub(super) enum ScanResult {
    Files(ConfigFiles),
    Machine(Scanner, Scan),
}

/// The next step.
pub(super) enum ScanJob {
    ReadFiles,
    Scan(Scanner),
}

/// The scheduler of reads and scans.
pub(super) struct ScanWorker {
    running: Option<(JoinHandle<ScanResult>, Instant)>,
    /// None while a scan uses it.
    scanner: Option<Scanner>,
    read_requested: bool,
    scan_requested: bool,
    /// The number of consecutive scans so far.
    scan_count: u32,
    /// Whether no scan has finished yet.
    is_first_scan: bool,
    /// Whether to clear the scanner's cache as soon as the scan returns it.
    is_cache_stale: bool,
    /// Whether the slow scan has been logged.
    slow_logged: bool,
    /// Callers that wait for a pass that has not started yet.
    next_callers: Vec<oneshot::Sender<()>>,
    /// Callers that wait for the pass that is under way.
    callers: Vec<oneshot::Sender<()>>,
}

impl ScanWorker {
    pub(super) fn new(root: Root) -> Self {
        Self {
            running: None,
            scanner: Some(Scanner::new(root)),
            read_requested: false,
            scan_requested: false,
            scan_count: 0,
            is_first_scan: true,
            is_cache_stale: false,
            slow_logged: false,
            next_callers: Vec::new(),
            callers: Vec::new(),
        }
    }

    /// Requests a scan, after a read of the declaration files if `files` is set.
    pub(super) fn request_scan(&mut self, files: bool) {
        self.read_requested |= files;
        self.scan_requested = true;
        self.scan_count = 0;
    }

    /// Requests a full read and scan, and replies when both are done.
    pub(super) fn request_full_scan(&mut self, reply: oneshot::Sender<()>) {
        self.next_callers.push(reply);
        self.request_scan(true);
    }

    /// Whether no scan has finished yet.
    pub(super) const fn is_first(&self) -> bool {
        self.is_first_scan
    }

    /// Clears the scanner's cache, because devices may have changed places.
    pub(super) fn clear_cache(&mut self) {
        match &mut self.scanner {
            Some(scanner) => scanner.clear_cache(),
            None => self.is_cache_stale = true,
        }
    }

    /// The next step; none while one is under way, or if none is requested.
    pub(super) fn next_job(&mut self) -> Option<ScanJob> {
        if self.running.is_some() {
            return None;
        }
        if std::mem::take(&mut self.read_requested) {
            self.callers.append(&mut self.next_callers);
            return Some(ScanJob::ReadFiles);
        }
        if std::mem::take(&mut self.scan_requested) {
            self.scan_count += 1;
            return self.scanner.take().map(ScanJob::Scan);
        }
        None
    }

    /// Starts the step on a blocking thread.
    pub(super) fn run(&mut self, work: impl FnOnce() -> ScanResult + Send + 'static) {
        self.slow_logged = false;
        self.running = Some((spawn_blocking(work), Instant::now() + SLOW_SCAN_AFTER));
    }

    /// Waits for the end of the current step. Cancel-safe.
    pub(super) async fn finished(&mut self) -> Result<ScanResult, JoinError> {
        match &mut self.running {
            Some((work, _)) => {
                let result = work.await;
                self.running = None;
                result
            }
            None => std::future::pending().await,
        }
    }

    /// Records the end of a scan; `more` requests one more. Returns whether it was the last one.
    pub(super) fn record_scan(&mut self, mut scanner: Scanner, more: bool) -> bool {
        if std::mem::take(&mut self.is_cache_stale) {
            scanner.clear_cache();
        }
        self.scanner = Some(scanner);
        if more && self.scan_count < MAX_FOLLOWUP_SCANS {
            self.scan_requested = true;
            return false;
        }
        self.scan_count = 0;
        self.is_first_scan = false;
        true
    }

    /// Records that the current step panicked or was cancelled; a lost scanner is replaced.
    pub(super) fn record_panic(&mut self, root: Root) {
        self.scanner.get_or_insert_with(|| Scanner::new(root));
        self.is_first_scan = false;
    }

    /// Replies to the callers that waited for the pass that ended.
    pub(super) fn notify_callers(&mut self) {
        for reply in self.callers.drain(..) {
            // The caller may have stopped waiting.
            let _ = reply.send(());
        }
    }

    /// When to log that the current step is slow; none if it was logged already.
    pub(super) fn slow_log_time(&self) -> Option<Instant> {
        let running = self.running.as_ref().filter(|_| !self.slow_logged);
        running.map(|(_, late)| *late)
    }

    /// Logs a slow step, once.
    pub(super) fn log_slow_step(&mut self) {
        if self
            .slow_log_time()
            .is_some_and(|late| late <= Instant::now())
        {
            self.slow_logged = true;
            tracing::warn!(
                "device scan takes longer than {} s: a file system hangs; keeping the last device list",
                SLOW_SCAN_AFTER.as_secs()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hanging_scan_blocks_no_caller_and_later_requests_follow_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut worker = ScanWorker::new(Root::open(dir.path()).unwrap());
        worker.request_scan(true);
        assert!(matches!(worker.next_job(), Some(ScanJob::ReadFiles)));
        let (end, release_receiver) = std::sync::mpsc::channel::<()>();
        worker.run(move || {
            let _ = release_receiver.recv();
            ScanResult::Files(ConfigFiles::new())
        });
        let (reply, mut notified) = oneshot::channel();
        worker.request_full_scan(reply);
        assert!(worker.next_job().is_none(), "one thing at a time");
        let waits = tokio::time::timeout(Duration::from_millis(20), worker.finished());
        assert!(waits.await.is_err() && worker.slow_log_time().is_some());
        drop(end);
        assert!(matches!(worker.finished().await, Ok(ScanResult::Files(_))));
        // The request waits for a pass of its own.
        worker.notify_callers();
        assert!(notified.try_recv().is_err());
        assert!(matches!(worker.next_job(), Some(ScanJob::ReadFiles)));
        worker.notify_callers();
        assert!(notified.try_recv().is_ok());
        let Some(ScanJob::Scan(scanner)) = worker.next_job() else {
            panic!("it looks after it read");
        };
        assert!(worker.is_first() && worker.record_scan(scanner, false) && !worker.is_first());
    }
}
