//! Handles operator requests (refresh, retry, proceed now) and the time at which an update may begin.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

use super::{DesiredConfig, RebootPolicy, Reconciler, ReconcilerHooks};
use crate::{
    phase::{Phase, PhaseEvent},
    service_port::Services,
};
use machinist_base::maintenance_window;

/// Maximum time before the clock is checked again while a maintenance window is closed.
const MAX_CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(600);

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
            self.repair = None;
        }
        (desired, is_requested)
    }

    /// Returns the event that an operator's request causes if the config itself causes none.
    pub(super) fn event_for_request(&self) -> Option<PhaseEvent> {
        match self.progress.phase() {
            Phase::Idle | Phase::Waiting => Some(PhaseEvent::Desired),
            Phase::RebootPending => Some(PhaseEvent::Retry),
            Phase::Failed => Some(self.retry_event()),
            _ => None,
        }
    }

    /// Plans a waiting update again, or withdraws it if the source has no readable config now.
    pub(super) fn reconsider(&self) -> PhaseEvent {
        match self.desired.current() {
            DesiredConfig::Config(..) => PhaseEvent::Desired,
            DesiredConfig::Unknown
            | DesiredConfig::Nothing
            | DesiredConfig::Refused(_)
            | DesiredConfig::Barred(..) => PhaseEvent::Withdrawn,
        }
    }

    /// Returns whether the planned update must wait for its time. An update that waits for its reboot, or that is
    /// being undone, has already begun.
    pub(super) fn is_time_limited(&self) -> bool {
        let planned = self.planned.as_ref().map(|planned| planned.digest);
        !self.desired.is_approved(planned)
            && self.repair.is_none()
            && self.journal.cordon.is_none()
            && self.journal.transactions.is_empty()
    }

    /// Returns when the planned update may begin: within a maintenance window, and not before the cluster allows
    /// it. Returns `None` if it may begin now.
    pub(super) fn closed_until(&self) -> Option<Timestamp> {
        if !self.is_time_limited() {
            return None;
        }
        let now = Timestamp::now();
        let from = self.earliest.map_or(now, |earliest| earliest.max(now));
        match self.options.current().windows.state(from) {
            maintenance_window::WindowState::Open => (from > now).then_some(from),
            maintenance_window::WindowState::Closed { opens } => Some(opens),
        }
    }

    /// Returns whether only the cluster delays the planned update.
    pub(super) fn waits_for_the_cluster(&self) -> bool {
        let windows = self.options.current().windows.state(Timestamp::now());
        self.earliest.is_some()
            && windows == maintenance_window::WindowState::Open
            && self.closed_until().is_some()
    }

    /// Returns when to check the maintenance window again: when it opens, but soon enough to notice a changed clock
    /// or a machine that was suspended.
    pub(super) fn window_due(&self) -> Option<tokio::time::Instant> {
        let opens = (self.progress.phase() == Phase::Waiting).then(|| self.closed_until())?;
        let wait = opens.map_or(Duration::ZERO, |opens| {
            let wait = opens.duration_since(Timestamp::now());
            Duration::try_from(wait)
                .unwrap_or_default()
                .min(MAX_CLOCK_CHECK_INTERVAL)
        });
        Some(tokio::time::Instant::now() + wait)
    }

    /// Returns whether a needed reboot may be requested now.
    pub(super) fn may_reboot(&self) -> bool {
        match self.options.current().reboot {
            RebootPolicy::Auto => true,
            RebootPolicy::Ask => self.desired.has_approval(),
            RebootPolicy::Never => false,
        }
    }
}
