//! Whether the registration server runs, and when it is started again.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::DropGuard;

/// Minimum time between two creations of our socket, in case another process keeps removing it.
const MIN_BIND_INTERVAL: Duration = Duration::from_secs(1);

/// The running server and its next restart.
#[derive(Debug, Default)]
pub(super) struct ServerState {
    /// Dropping it ends the server.
    running: Option<DropGuard>,
    restart_at: Option<Instant>,
}

impl ServerState {
    pub(super) fn stop(&mut self) {
        self.running = None;
    }

    pub(super) fn record_start(&mut self, guard: DropGuard) {
        self.running = Some(guard);
    }

    pub(super) fn schedule_restart(&mut self) {
        self.restart_at
            .get_or_insert_with(|| Instant::now() + MIN_BIND_INTERVAL);
    }

    pub(super) const fn restart_at(&self) -> Option<Instant> {
        self.restart_at
    }

    /// Whether a restart is due; it is then no longer scheduled.
    pub(super) fn take_due_restart(&mut self, now: Instant) -> bool {
        let due = self.restart_at.is_some_and(|at| at <= now);
        if due {
            self.restart_at = None;
        }
        due
    }
}
