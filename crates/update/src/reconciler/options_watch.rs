//! The reconciler's current options, and the changes of the settings that replace them.

use std::time::Duration;

use tokio::sync::watch;

use super::{RebootPolicy, ReconcilerOptions};

/// The options in force.
#[derive(Debug)]
pub(super) struct OptionsWatch {
    current: ReconcilerOptions,
    /// Changes of the settings; `None` if they do not change.
    changes: Option<watch::Receiver<ReconcilerOptions>>,
}

impl OptionsWatch {
    pub(super) const fn fixed(current: ReconcilerOptions) -> Self {
        Self {
            current,
            changes: None,
        }
    }

    pub(super) fn follow(&mut self, changes: watch::Receiver<ReconcilerOptions>) {
        self.changes = Some(changes);
    }

    pub(super) const fn current(&self) -> &ReconcilerOptions {
        &self.current
    }

    /// Adopts the newest settings.
    pub(super) fn refresh(&mut self) {
        if let Some(changes) = &mut self.changes {
            self.current = changes.borrow_and_update().clone();
        }
    }

    /// Waits for other settings and adopts them; waits forever if they do not change. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        let is_open = match &mut self.changes {
            Some(changes) => changes.changed().await.is_ok(),
            None => false,
        };
        if !is_open {
            std::future::pending().await
        }
        self.refresh();
    }

    /// Returns whether the root is the one of the running machine.
    pub(super) const fn is_live(&self) -> bool {
        self.current.capabilities.live
    }

    /// Returns whether reboots are left to an operator.
    pub(super) fn leaves_reboots_to_operators(&self) -> bool {
        self.current.reboot != RebootPolicy::Auto
    }

    /// Returns the time limit of a job, and how long a restarted unit is watched.
    pub(super) const fn job_limits(&self) -> (Duration, Duration) {
        (self.current.job_timeout, self.current.settle)
    }
}
