//! Whether the API server responds, and the time of a drain that excludes its outages.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use machinist_base::backoff::{Backoff, jitter};

/// Backoff of requests while the API server is unreachable.
const OUTAGE_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));

/// Time that counts for the force limit; it stops while the API server is unreachable.
struct SpentTime {
    before: Duration,
    running_since: Option<Instant>,
}

impl SpentTime {
    fn at(&self, now: Instant) -> Duration {
        let running = self
            .running_since
            .map(|since| now.saturating_duration_since(since));
        self.before + running.unwrap_or_default()
    }

    fn stop(&mut self, at: Instant) {
        self.before = self.at(at);
        self.running_since = None;
    }
}

/// State of an outage of the API server.
struct ApiOutage {
    since: Instant,
    /// The wall clock when it was noticed, for reports.
    noticed_at: Timestamp,
    failures: u32,
}

/// Tracks outages of the API server.
pub(super) struct ApiReachability {
    outage: Option<ApiOutage>,
    spent: SpentTime,
}

impl ApiReachability {
    /// `spent` is the time that earlier runs of the drain have spent.
    pub(super) const fn new(spent: Duration) -> Self {
        Self {
            outage: None,
            spent: SpentTime {
                before: spent,
                running_since: None,
            },
        }
    }

    pub(super) const fn is_reachable(&self) -> bool {
        self.outage.is_none()
    }

    /// The wall-clock time at which the current outage was noticed.
    pub(super) fn unreachable_since(&self) -> Option<Timestamp> {
        self.outage.as_ref().map(|outage| outage.noticed_at)
    }

    /// Time that counts for the force limit.
    pub(super) fn spent(&self, now: Instant) -> Duration {
        self.spent.at(now)
    }

    /// Records that a call started at `since` got no response; returns the delay before the next
    /// attempt.
    pub(super) fn record_failure(&mut self, since: Instant, wall: Timestamp) -> Duration {
        if self.outage.is_none() {
            self.spent.stop(since);
        }
        let outage = self.outage.get_or_insert(ApiOutage {
            since,
            noticed_at: wall,
            failures: 0,
        });
        let delay = OUTAGE_BACKOFF.wait(outage.failures, jitter());
        outage.failures += 1;
        delay
    }

    /// Whether the current outage has lasted this long.
    pub(super) fn is_unreachable_for(&self, patience: Duration, now: Instant) -> bool {
        self.outage
            .as_ref()
            .is_some_and(|outage| now >= outage.since + patience)
    }

    /// Records a response, from which on time counts; returns the length of an outage that ended.
    pub(super) fn record_response(&mut self, now: Instant) -> Option<Duration> {
        self.spent.running_since.get_or_insert(now);
        let outage = self.outage.take()?;
        Some(now.saturating_duration_since(outage.since))
    }
}
