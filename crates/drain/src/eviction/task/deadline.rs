//! The time limit of a whole drain.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// When a drain fails because it takes too long. Outages of the API server count.
pub(super) struct DrainDeadline {
    limit: Option<Duration>,
    started_at: Instant,
    /// The same deadline on the wall clock, for comparison with the deadlines of pods.
    expires_at: Option<Timestamp>,
}

impl DrainDeadline {
    pub(super) fn new(limit: Option<Duration>, started_at: Instant, wall: Timestamp) -> Self {
        Self {
            limit,
            started_at,
            expires_at: limit.and_then(|limit| wall.checked_add(limit).ok()),
        }
    }

    /// The limit, if it is over.
    pub(super) fn exceeded(&self, now: Instant) -> Option<Duration> {
        self.limit.filter(|limit| now >= self.started_at + *limit)
    }

    pub(super) fn at(&self) -> Option<Instant> {
        self.limit.map(|limit| self.started_at + limit)
    }

    pub(super) const fn expires_at(&self) -> Option<Timestamp> {
        self.expires_at
    }
}
