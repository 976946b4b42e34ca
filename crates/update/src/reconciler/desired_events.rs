//! Determines what a new desired config, or an operator request (refresh, retry, proceed now), causes.

use tokio::sync::watch;

use super::{DesiredConfig, Reconciler, ReconcilerHooks};
use crate::{
    journal::Direction,
    observe_and_plan,
    phase::{Phase, PhaseEvent},
    service_port::Services,
};
use machinist_base::digest::Digest;
use machinist_ignition::Refusal;

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Subscribes to operator requests. The sender increments the number together with a change of the desired
    /// config, so that both are received together.
    #[must_use]
    pub fn with_operator_requests(mut self, requests: watch::Receiver<u64>) -> Self {
        self.desired.subscribe_to_requests(requests);
        self
    }

    /// Receives the desired config, and whether an operator has requested it since the last call.
    pub(super) fn receive_desired(&mut self) -> (DesiredConfig, bool) {
        let (desired, is_requested) = self.desired.receive();
        if is_requested {
            self.plan.end_repair();
        }
        (desired, is_requested)
    }

    /// Returns the event that the desired config causes in the current phase.
    pub(super) fn event_for_desired(&mut self) -> Option<PhaseEvent> {
        let (desired, is_requested) = self.receive_desired();
        self.rename_update();
        match desired {
            DesiredConfig::Unknown | DesiredConfig::Nothing => {
                self.publish();
                None
            }
            DesiredConfig::Refused(refusals) => {
                self.report_refused(&refusals);
                None
            }
            DesiredConfig::Blocked(_, digest, block) => {
                let event = self.event_for_blocked(digest, &block);
                if event.is_none() {
                    self.publish();
                }
                event
            }
            DesiredConfig::Config(_, digest) => {
                let mut event = self.event_for(digest);
                if event.is_none() && is_requested {
                    event = self.event_for_request();
                }
                if event.is_none() {
                    // There is nothing to do, but the report must show its name.
                    self.publish();
                }
                event
            }
        }
    }

    /// Returns the event that a desired config with this digest causes in the current phase.
    pub(super) fn event_for(&mut self, digest: Digest) -> Option<PhaseEvent> {
        let base = self.journal.base_digest();
        let failure = self.journal.failure.as_ref();
        if self.progress.phase().is_before_staging() {
            let planned = self.plan.digest();
            return match planned == Some(digest) {
                true => None,
                false if base == Some(digest) && self.journal.top().is_none() => {
                    Some(PhaseEvent::Withdrawn)
                }
                false => Some(PhaseEvent::Desired),
            };
        }
        match self.journal.top() {
            // An undo is completed first; only the wait for its next attempt is interrupted.
            Some(tx) if tx.direction == Direction::Undo => None,
            Some(tx) if tx.to.digest == digest => None,
            Some(_) if self.journal.withdrawn_by(digest).is_some() => Some(PhaseEvent::Withdrawn),
            Some(_) if self.must_end_trial() || self.is_rejected(digest) => None,
            None if base == Some(digest) => {
                if failure.is_some() && self.progress.phase() == Phase::Failed {
                    return Some(PhaseEvent::Withdrawn);
                }
                if self.journal.failure.take().is_some() {
                    tracing::info!("the source contains the machine's config again");
                }
                // The node is still cordoned for a config that is no longer desired.
                (self.progress.phase() == Phase::Idle && self.is_stale_cordon())
                    .then_some(PhaseEvent::Withdrawn)
            }
            // The same config would fail the same way; a transient failure has its own retry delay, unless the retry
            // has waited for a grant, or an earlier process recorded the failure beside an open update.
            top if failure.is_some_and(|failure| {
                let is_idle = self.progress.phase() == Phase::Idle || top.is_some();
                failure.digest == Some(digest) && !(failure.retryable && is_idle)
            }) =>
            {
                None
            }
            _ => {
                self.plan.end_repair();
                Some(PhaseEvent::Desired)
            }
        }
    }

    fn report_refused(&mut self, refusals: &[Refusal]) {
        for refusal in refusals {
            tracing::error!(reason = %refusal.reason, "{refusal}");
        }
        match observe_and_plan::current(&self.journal) {
            Some(current) => tracing::warn!("keeping the last valid config: {}", current.name),
            None => {
                tracing::warn!("no changes until the source contains a valid config")
            }
        }
        self.publish();
    }

    /// Returns the event that an operator's request causes if the config itself causes none.
    fn event_for_request(&mut self) -> Option<PhaseEvent> {
        match self.progress.phase() {
            Phase::Idle | Phase::Waiting => Some(PhaseEvent::Desired),
            Phase::RebootPending | Phase::Failed if self.newer_config_retry().is_some() => {
                Some(PhaseEvent::Desired)
            }
            Phase::RebootPending => Some(PhaseEvent::Retry),
            Phase::Failed => {
                self.reset_attempts();
                Some(self.retry_event())
            }
            _ => None,
        }
    }

    /// Plans a waiting update again, or withdraws it if the source has no readable config now.
    pub(super) fn event_for_waiting(&self) -> PhaseEvent {
        match self.desired.current() {
            DesiredConfig::Config(..) => PhaseEvent::Desired,
            DesiredConfig::Unknown
            | DesiredConfig::Nothing
            | DesiredConfig::Refused(_)
            | DesiredConfig::Blocked(..) => PhaseEvent::Withdrawn,
        }
    }
}
