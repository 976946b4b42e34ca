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
    Read,
    Look(Scanner),
}

/// The scheduler of reads and scans.
pub(super) struct ScanWorker {
    under_way: Option<(JoinHandle<ScanResult>, Instant)>,
    /// None while a scan uses it.
    scanner: Option<Scanner>,
    read: bool,
    look: bool,
    /// The number of consecutive scans so far.
    rounds: u32,
    /// Whether no scan has finished yet.
    first: bool,
    /// Whether to clear the scanner's cache as soon as the scan returns it.
    forget: bool,
    /// Whether the slow scan has been logged.
    complained: bool,
    /// Callers that wait for a pass that has not started yet.
    asked: Vec<oneshot::Sender<()>>,
    /// Callers that wait for the pass that is under way.
    waiting: Vec<oneshot::Sender<()>>,
}

impl ScanWorker {
    pub(super) fn new(root: Root) -> Self {
        Self {
            under_way: None,
            scanner: Some(Scanner::new(root)),
            read: false,
            look: false,
            rounds: 0,
            first: true,
            forget: false,
            complained: false,
            asked: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// Requests a scan, after a read of the declaration files if `files` is set.
    pub(super) fn request_scan(&mut self, files: bool) {
        self.read |= files;
        self.look = true;
        self.rounds = 0;
    }

    /// Requests a full read and scan, and replies when both are done.
    pub(super) fn request_full_scan(&mut self, reply: oneshot::Sender<()>) {
        self.asked.push(reply);
        self.request_scan(true);
    }

    /// Whether no scan has finished yet.
    pub(super) const fn is_first(&self) -> bool {
        self.first
    }

    /// Clears the scanner's cache, because devices may have changed places.
    pub(super) fn forget(&mut self) {
        match &mut self.scanner {
            Some(scanner) => scanner.forget(),
            None => self.forget = true,
        }
    }

    /// The next step; none while one is under way, or if none is requested.
    pub(super) fn next(&mut self) -> Option<ScanJob> {
        if self.under_way.is_some() {
            return None;
        }
        if std::mem::take(&mut self.read) {
            self.waiting.append(&mut self.asked);
            return Some(ScanJob::Read);
        }
        if std::mem::take(&mut self.look) {
            self.rounds += 1;
            return self.scanner.take().map(ScanJob::Look);
        }
        None
    }

    /// Starts the step on a blocking thread.
    pub(super) fn run(&mut self, work: impl FnOnce() -> ScanResult + Send + 'static) {
        self.complained = false;
        self.under_way = Some((spawn_blocking(work), Instant::now() + SLOW_SCAN_AFTER));
    }

    /// Waits for the end of the current step. Cancel-safe.
    pub(super) async fn done(&mut self) -> Result<ScanResult, JoinError> {
        match &mut self.under_way {
            Some((work, _)) => {
                let looked = work.await;
                self.under_way = None;
                looked
            }
            None => std::future::pending().await,
        }
    }

    /// Records the end of a scan; `more` requests one more. Returns whether it was the last one.
    pub(super) fn end(&mut self, mut scanner: Scanner, more: bool) -> bool {
        if std::mem::take(&mut self.forget) {
            scanner.forget();
        }
        self.scanner = Some(scanner);
        if more && self.rounds < MAX_FOLLOWUP_SCANS {
            self.look = true;
            return false;
        }
        self.rounds = 0;
        self.first = false;
        true
    }

    /// Records that the current step panicked or was cancelled; a lost scanner is replaced.
    pub(super) fn record_panic(&mut self, root: Root) {
        self.scanner.get_or_insert_with(|| Scanner::new(root));
        self.first = false;
    }

    /// Replies to the callers that waited for the pass that ended.
    pub(super) fn notify_callers(&mut self) {
        for reply in self.waiting.drain(..) {
            // The caller may have stopped waiting.
            let _ = reply.send(());
        }
    }

    /// When to log that the current step is slow; none if it was logged already.
    pub(super) fn slow_log_time(&self) -> Option<Instant> {
        let under_way = self.under_way.as_ref().filter(|_| !self.complained);
        under_way.map(|(_, late)| *late)
    }

    /// Logs a slow step, once.
    pub(super) fn log_slow_step(&mut self) {
        if self
            .slow_log_time()
            .is_some_and(|late| late <= Instant::now())
        {
            self.complained = true;
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
    async fn a_look_that_hangs_keeps_nobody_and_what_is_asked_meanwhile_is_done_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut looking = ScanWorker::new(Root::open(dir.path()).unwrap());
        looking.request_scan(true);
        assert!(matches!(looking.next(), Some(ScanJob::Read)));
        let (end, hangs) = std::sync::mpsc::channel::<()>();
        looking.run(move || {
            let _ = hangs.recv();
            ScanResult::Files(ConfigFiles::new())
        });
        let (reply, mut told) = oneshot::channel();
        looking.request_full_scan(reply);
        assert!(looking.next().is_none(), "one thing at a time");
        let waits = tokio::time::timeout(Duration::from_millis(20), looking.done());
        assert!(waits.await.is_err() && looking.slow_log_time().is_some());
        drop(end);
        assert!(matches!(looking.done().await, Ok(ScanResult::Files(_))));
        // The request waits for a pass of its own.
        looking.notify_callers();
        assert!(told.try_recv().is_err());
        assert!(matches!(looking.next(), Some(ScanJob::Read)));
        looking.notify_callers();
        assert!(told.try_recv().is_ok());
        let Some(ScanJob::Look(scanner)) = looking.next() else {
            panic!("it looks after it read");
        };
        assert!(looking.is_first() && looking.end(scanner, false) && !looking.is_first());
    }
}
