//! When the registry saves its state.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::{
    registry::checkpoint::{CheckpointWriter, SAVE_DEBOUNCE, WriteOutcome},
    registry_state::RegistryState,
};
use machinist_base::rate_limit::RateLimiter;

/// When a failed save is retried, for example after the disk was full.
const SAVE_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// The average interval of saves while the inventory keeps changing, such as a reported temperature.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);

/// The writer of the checkpoint, and when it writes next.
pub(super) struct CheckpointSaves {
    writer: CheckpointWriter,
    due: Option<Instant>,
    /// Limits how often the list is saved: each save writes and syncs the whole list.
    rate: RateLimiter,
    /// How long a stop waits for the last save.
    stop_timeout: Duration,
}

impl CheckpointSaves {
    pub(super) fn new(writer: CheckpointWriter, stop_timeout: Duration) -> Self {
        Self {
            writer,
            due: None,
            rate: RateLimiter::per_interval(SAVE_INTERVAL, 10),
            stop_timeout,
        }
    }

    /// When the next save is due.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Schedules a save of a change.
    pub(super) fn schedule(&mut self) {
        let at = || (Instant::now() + SAVE_DEBOUNCE).max(self.rate.ready());
        self.due.get_or_insert_with(at);
    }

    /// Waits for the end of the save that is under way. Cancel-safe.
    pub(super) async fn wait_for_save(&mut self) -> WriteOutcome {
        self.writer.wait_for_save().await
    }

    /// Records the end of a save; a failed one is repeated.
    pub(super) fn record_result(&mut self, end: WriteOutcome) {
        if !self.writer.record_result(end) {
            let again = || Instant::now() + SAVE_RETRY_INTERVAL;
            self.due.get_or_insert_with(again);
        }
    }

    /// Starts a save that is due.
    pub(super) fn start_if_due(&mut self, state: &RegistryState) {
        if self.due.is_none_or(|at| at > Instant::now()) {
            return;
        }
        // A save with older content is under way: save again when that is done.
        self.due = match self.writer.start_save(state) {
            true => {
                self.rate.take();
                None
            }
            false => Some(Instant::now() + SAVE_DEBOUNCE),
        };
    }

    /// Saves at the shutdown. State without pending changes is on the disk already, or being written.
    pub(super) async fn finish(&mut self, state: &RegistryState) {
        let save = self.writer.save(state, self.due.is_some());
        if timeout(self.stop_timeout, save).await.is_err() {
            tracing::warn!(
                "saving the device list timed out: after a restart the agent may use an older list"
            );
        }
    }
}
