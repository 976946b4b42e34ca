//! When the pods of the node are listed, and what the last list has shown.

use std::time::Duration;

use tokio::time::Instant;

/// Minimum interval between surveys, and between watches that end immediately.
pub(super) const MIN_REQUEST_SPACING: Duration = Duration::from_secs(1);

/// The schedule of surveys of the node; at most one runs at a time.
pub(super) struct SurveySchedule {
    /// None if no survey is needed or one is already running.
    next_at: Option<Instant>,
    running: bool,
    last_started: Option<Instant>,
    has_succeeded: bool,
    /// The last survey found no pod that must leave.
    node_is_clear: bool,
}

impl SurveySchedule {
    pub(super) const fn new(first_at: Instant) -> Self {
        Self {
            next_at: Some(first_at),
            running: false,
            last_started: None,
            has_succeeded: false,
            node_is_clear: false,
        }
    }

    pub(super) const fn next_at(&self) -> Option<Instant> {
        self.next_at
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        !self.running && self.next_at.is_some_and(|at| at <= now)
    }

    pub(super) fn record_start(&mut self, now: Instant) {
        (self.running, self.next_at, self.last_started) = (true, None, Some(now));
    }

    pub(super) fn record_end(&mut self) {
        self.running = false;
    }

    /// Schedules a survey now, unless one is running or scheduled.
    pub(super) fn ensure_scheduled(&mut self, now: Instant) {
        if !self.running {
            self.next_at.get_or_insert(now);
        }
    }

    /// Schedules a survey as soon as the minimum interval permits, unless one is scheduled.
    pub(super) fn schedule_soon(&mut self, now: Instant) {
        let soon = self
            .last_started
            .map_or(now, |started| now.max(started + MIN_REQUEST_SPACING));
        self.next_at.get_or_insert(soon);
    }

    pub(super) fn reschedule(&mut self, at: Instant) {
        self.next_at = Some(at);
    }

    /// Records a success; returns whether it is the first.
    pub(super) fn record_success(&mut self) -> bool {
        !std::mem::replace(&mut self.has_succeeded, true)
    }

    /// Whether the pods have been listed at least once.
    pub(super) const fn has_succeeded(&self) -> bool {
        self.has_succeeded
    }

    pub(super) const fn set_node_is_clear(&mut self, clear: bool) {
        self.node_is_clear = clear;
    }

    pub(super) const fn node_is_clear(&self) -> bool {
        self.node_is_clear
    }
}
