//! Handles a barred desired config, for which no update may begin: an operator has cancelled it, or another daemon
//! manages this machine.

use super::{BlockReason, Reconciler, ReconcilerHooks};
use crate::{
    phase::{Phase, PhaseEvent},
    service_port::Services,
};
use machinist_base::{digest::Digest, reason::Reason};

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Returns whether the machine is unchanged by the desired config and no change is about to happen.
    pub(super) fn is_blocked(&self) -> bool {
        let begun =
            !self.journal.transactions.is_empty() || self.progress.phase() == Phase::Staging;
        !begun && !self.is_base_desired()
    }

    /// Returns the event that the bar causes in the current phase.
    ///
    /// Only an update that has changed nothing is abandoned. One that has begun is partly on the disk, or waits for
    /// a reboot: stopping there would be worse than completing it or rolling it back.
    pub(super) fn event_for_blocked(
        &mut self,
        digest: Digest,
        bar: &BlockReason,
    ) -> Option<PhaseEvent> {
        let base = self.journal.base_digest();
        if let Some(top) = self.journal.top() {
            let known = top.to.digest == digest || base == Some(digest);
            // If an operator cancels too late, the report shows that, and the update continues to the newest
            // config. Beside another daemon, no further config is begun.
            let goes_on = known || bar.reason == Reason::Cancelled;
            return goes_on.then(|| self.event_for(digest)).flatten();
        }
        let retryable = self.journal.failure.as_ref().is_some_and(|it| it.retryable);
        let gives_up = match self.progress.phase() {
            phase if phase.is_before_staging() => true,
            Phase::Failed => retryable,
            Phase::Idle => self.journal.cordon.is_some(),
            _ => false,
        };
        if !gives_up {
            return None;
        }
        if self.journal.failure.take().is_some() || self.plan.take().is_some() {
            tracing::info!(reason = %bar.reason, "update not started: {}", bar.message);
        }
        self.plan.end_repair();
        Some(PhaseEvent::Withdrawn)
    }
}
