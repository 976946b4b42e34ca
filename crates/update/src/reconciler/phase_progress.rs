//! The phase in which the loop is, and the failures on its way.

use std::time::Duration;

use jiff::Timestamp;

use super::RETRY_BACKOFF;
use crate::{
    os::FetchProgress,
    phase::{Phase, PhaseEffect},
};
use machinist_base::backoff::jitter;

/// The current phase, and what the loop needs to continue from it.
#[derive(Debug)]
pub(super) struct PhaseProgress {
    phase: Phase,
    since: Timestamp,
    /// Consecutive failures, for the back-off.
    failures: u32,
    /// The first effect, derived from the journal.
    initial_effect: Option<PhaseEffect>,
    /// The progress of the download that runs.
    download: Option<FetchProgress>,
}

impl PhaseProgress {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Idle,
            since: Timestamp::now(),
            failures: 0,
            initial_effect: None,
            download: None,
        }
    }

    /// Returns the progress of the download.
    pub(super) fn download(&self) -> Option<&FetchProgress> {
        self.download.as_ref()
    }

    /// Sets the progress of the download, and returns whether it differs.
    pub(super) fn set_download(&mut self, progress: Option<FetchProgress>) -> bool {
        let differs = self.download != progress;
        self.download = progress;
        differs
    }

    pub(super) const fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns when the phase began.
    pub(super) const fn since(&self) -> Timestamp {
        self.since
    }

    /// Sets the phase in which the loop begins: it is no transition, so the time remains.
    pub(super) const fn begin_in(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// Enters a phase, and returns the previous one if it is another.
    pub(super) fn enter(&mut self, phase: Phase) -> Option<Phase> {
        if phase == self.phase {
            return None;
        }
        self.since = Timestamp::now();
        Some(std::mem::replace(&mut self.phase, phase))
    }

    pub(super) const fn set_initial_effect(&mut self, effect: Option<PhaseEffect>) {
        self.initial_effect = effect;
    }

    pub(super) const fn has_initial_effect(&self) -> bool {
        self.initial_effect.is_some()
    }

    pub(super) const fn take_initial_effect(&mut self) -> Option<PhaseEffect> {
        self.initial_effect.take()
    }

    pub(super) const fn add_failure(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    pub(super) const fn reset_failures(&mut self) {
        self.failures = 0;
    }

    /// Returns the delay before the next attempt; it grows with the number of consecutive failures.
    pub(super) fn retry_delay(&self) -> Duration {
        RETRY_BACKOFF.wait(self.failures.saturating_sub(1), jitter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_transition_changes_the_start_of_the_phase() {
        let mut progress = PhaseProgress::new();
        let start = progress.since();
        progress.begin_in(Phase::Planned);
        assert_eq!(progress.enter(Phase::Planned), None);
        assert_eq!(
            (progress.phase(), progress.since()),
            (Phase::Planned, start)
        );
        assert_eq!(progress.enter(Phase::Waiting), Some(Phase::Planned));
        assert!(progress.since() >= start);
    }

    #[test]
    fn the_retry_delay_grows_with_consecutive_failures() {
        let mut progress = PhaseProgress::new();
        progress.add_failure();
        let first = progress.retry_delay();
        for _ in 0..6 {
            progress.add_failure();
        }
        assert!(progress.retry_delay() > first);
        progress.reset_failures();
        assert!(progress.retry_delay() < Duration::from_secs(10));
    }
}
