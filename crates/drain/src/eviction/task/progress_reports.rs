//! When the progress of a drain is published.

use std::time::Duration;

use tokio::time::Instant;

/// Debounce of progress updates: 250 pods that are evicted in one second cause ten updates, not
/// five hundred.
const PROGRESS_DEBOUNCE: Duration = Duration::from_millis(100);

/// Minimum update interval of the spent time, which the caller stores.
const SPENT_TIME_INTERVAL: Duration = Duration::from_secs(60);

/// The schedule of progress reports.
pub(super) struct ProgressReports {
    last_published: Option<Instant>,
    has_changes: bool,
}

impl ProgressReports {
    pub(super) const fn new() -> Self {
        Self {
            last_published: None,
            has_changes: true,
        }
    }

    pub(super) const fn record_change(&mut self) {
        self.has_changes = true;
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        let debounced = self
            .last_published
            .is_none_or(|published| now >= published + PROGRESS_DEBOUNCE);
        self.has_changes && debounced
    }

    pub(super) const fn record_published(&mut self, now: Instant) {
        (self.last_published, self.has_changes) = (Some(now), false);
    }

    /// When the next report is due if no other event occurs.
    pub(super) fn next_at(&self, now: Instant) -> Instant {
        let interval = match self.has_changes {
            true => PROGRESS_DEBOUNCE,
            false => SPENT_TIME_INTERVAL,
        };
        self.last_published.unwrap_or(now) + interval
    }
}
