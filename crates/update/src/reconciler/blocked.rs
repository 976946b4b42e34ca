//! Handles a blocked desired config, for which no update may begin: an operator has cancelled it, or another daemon
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
        let has_begun =
            !self.journal.transactions.is_empty() || self.progress.phase() == Phase::Staging;
        !has_begun && !self.is_base_desired()
    }

    /// Returns the event that the block causes in the current phase.
    ///
    /// Only an update that has changed nothing is abandoned. One that has begun is partly on the disk, or waits for
    /// a reboot: stopping there would be worse than completing it or rolling it back.
    pub(super) fn event_for_blocked(
        &mut self,
        digest: Digest,
        block: &BlockReason,
    ) -> Option<PhaseEvent> {
        let base = self.journal.base_digest();
        if let Some(top) = self.journal.top() {
            let is_current = top.to.digest == digest || base == Some(digest);
            // If an operator cancels too late, the report shows that, and the update continues to the newest
            // config. Beside another daemon, no further config is begun.
            let continues = is_current || block.reason == Reason::Cancelled;
            return match continues {
                true => self.event_for(digest),
                false => {
                    (self.progress.phase().is_before_staging()).then_some(PhaseEvent::Withdrawn)
                }
            };
        }
        let retryable = self
            .journal
            .failure
            .as_ref()
            .is_some_and(|failure| failure.retryable);
        let is_abandoned = match self.progress.phase() {
            phase if phase.is_before_staging() => true,
            Phase::Failed => retryable,
            Phase::Idle => self.journal.cordon.is_some(),
            _ => false,
        };
        if !is_abandoned {
            return None;
        }
        if self.is_refused_until_granted(digest, block) {
            // The node reports it until the next grant, with which the config is tried again.
            self.plan.discard();
            self.enter(Phase::Idle);
            return None;
        }
        if self.journal.failure.take().is_some() || self.plan.take().is_some() {
            tracing::info!(reason = %block.reason, "update not started: {}", block.message);
        }
        self.plan.end_repair();
        Some(PhaseEvent::Withdrawn)
    }

    /// Returns whether the plan of this config was refused, and its grant has ended with that.
    fn is_refused_until_granted(&self, digest: Digest, block: &BlockReason) -> bool {
        let failure = self.journal.failure.as_ref();
        block.reason == Reason::AwaitingGrant
            && self.journal.cordon.is_none()
            && failure.is_some_and(|failure| {
                failure.digest == Some(digest) && !failure.refusals.is_empty()
            })
    }
}
