//! Continues an open update if a newer config cannot begin: its plan is refused, or its download or drain fails.

use tokio::time::Instant;

use super::{DesiredConfig, Reconciler, ReconcilerHooks};
use crate::{
    journal::{Direction, TransactionState},
    phase::{Phase, PhaseEvent},
    service_port::Services,
};
use machinist_base::digest::Digest;

/// A config that could not begin while the update to an earlier one was open. The failure in the journal may be replaced
/// by one of the open update.
#[derive(Clone, Copy, Debug)]
pub(super) struct RejectedConfig {
    digest: Digest,
    /// `None` if only a change of the config helps.
    retry_at: Option<Instant>,
}

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Replaces an event that would end the attempt to begin a newer config, and with that leave the open update neither
    /// checked nor rolled back.
    pub(super) fn event_for_open_update(&mut self, event: PhaseEvent) -> PhaseEvent {
        let phase = self.progress.phase();
        let has_begun = phase != Phase::Planned && !phase.is_before_staging();
        if has_begun || self.plan.is_repair() || !self.has_committed_update() {
            return event;
        }
        match event {
            PhaseEvent::StepFailed | PhaseEvent::PlanRefused => self.reject_failed_config(),
            // The plan was not approved, or the source has no usable config any more.
            PhaseEvent::Withdrawn => {
                if let DesiredConfig::Config(_, digest) = self.desired.current() {
                    let retry_at = None;
                    self.plan.rejected = Some(RejectedConfig { digest, retry_at });
                }
            }
            event => return event,
        }
        self.plan.discard();
        PhaseEvent::Resume
    }

    fn has_committed_update(&self) -> bool {
        self.journal.top().is_some_and(|tx| {
            tx.direction == Direction::Forward && tx.mark == TransactionState::Committed
        })
    }

    fn reject_failed_config(&mut self) {
        let open = self.journal.top().map(|tx| tx.to.digest);
        let failure = self.journal.failure.as_ref();
        let failed = failure.and_then(|failure| failure.digest);
        let failed = failed.filter(|digest| Some(*digest) != open);
        let digest = failed.or_else(|| self.plan.digest());
        // Without a digest, it would be planned again at once.
        let digest = digest.or_else(|| self.desired.digest());
        let retry_at = failure
            .filter(|failure| failure.retryable)
            .map(|_| Instant::now() + self.progress.retry_delay());
        self.plan.rejected = digest.map(|digest| RejectedConfig { digest, retry_at });
    }

    /// Returns whether this config could not begin since the open update was committed.
    pub(super) fn is_rejected(&self, digest: Digest) -> bool {
        let rejected = self.plan.rejected.as_ref();
        rejected.is_some_and(|rejected| rejected.digest == digest) && self.journal.top().is_some()
    }

    /// Returns the event that the desired config causes: also if it could not begin, and is due to be planned again.
    pub(super) fn event_for_desired_or_retry(&mut self) -> Option<PhaseEvent> {
        let event = self.event_for_desired();
        let is_due = || {
            self.newer_config_retry()
                .is_some_and(|at| at <= Instant::now())
        };
        event.or_else(|| is_due().then_some(PhaseEvent::Desired))
    }

    /// Returns when the desired config is planned again, if it could not begin and that may pass.
    pub(super) fn newer_config_retry(&self) -> Option<Instant> {
        let rejected = self.plan.rejected.filter(|_| self.has_committed_update())?;
        match self.desired.current() {
            DesiredConfig::Config(_, digest) if digest == rejected.digest => rejected.retry_at,
            _ => None,
        }
    }
}
