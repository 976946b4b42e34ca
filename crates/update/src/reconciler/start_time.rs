//! Determines when a planned update may begin: the maintenance windows, and the time that the cluster has set.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{
    Reconciler, ReconcilerHooks, UpdateError,
    node_call_retry::{NodeCallResult, WaitEnd},
};
use crate::{
    phase::{Phase, PhaseEvent},
    service_port::Services,
};
use machinist_base::maintenance_window::{MaintenanceWindows, WindowState};

/// Maximum time before the clock is checked again while a maintenance window is closed.
const MAX_CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(600);

/// When the cluster allows an update to begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StartTime {
    /// As last returned; `None` if the cluster sets no time.
    earliest: Option<Timestamp>,
}

impl StartTime {
    pub(super) const fn is_set_by_cluster(self) -> bool {
        self.earliest.is_some()
    }

    /// Returns when an update may begin: within a maintenance window, and not before the cluster allows it. Returns
    /// `None` if it may begin now.
    fn closed_until(self, windows: &MaintenanceWindows, now: Timestamp) -> Option<Timestamp> {
        let from = self.earliest.map_or(now, |earliest| earliest.max(now));
        match windows.state(from) {
            WindowState::Open => (from > now).then_some(from),
            WindowState::Closed { opens } => Some(opens),
        }
    }
}

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Waits until the plan may begin, and shows it to the caller for approval. Returns `None` on a stop. An OS image
    /// is downloaded before the start time, and on approval; other images are waited for before the start time.
    pub(super) async fn await_release(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        if self.is_download_needed().await {
            return Ok(Some(match self.is_approved().await? {
                true => PhaseEvent::ImageMissing,
                false => PhaseEvent::Withdrawn,
            }));
        }
        if let Some(ended) = self.wait_before_cordon(stop).await? {
            return Ok(ended);
        }
        let known = self.plan.start;
        if let Some(ended) = self.query_earliest_start(stop).await? {
            return Ok(ended);
        }
        if let Some(opens) = self.closed_until() {
            let to = self.desired.name();
            match known.is_set_by_cluster() && self.plan.start == known {
                true => tracing::debug!("{to} is still waiting until {opens}"),
                false => tracing::info!("{to} is waiting for its start time {opens}"),
            }
            self.publish();
            return self.wait(stop).await;
        }
        if !self.is_approved().await? {
            return Ok(Some(PhaseEvent::Withdrawn));
        }
        match self.drains() {
            // Nothing new begins after a stop.
            drain if drain || !self.node.is_connected() => {
                Ok((!stop.is_cancelled()).then_some(PhaseEvent::Released { drain }))
            }
            _ => self.check_start_without_drain(stop).await,
        }
    }

    /// Shows the plan to the caller once, and returns whether it is approved. A plan that is not is dropped.
    async fn is_approved(&mut self) -> Result<bool, UpdateError> {
        let Some(planned) = self.plan.take() else {
            return Ok(false);
        };
        if planned.is_approved {
            self.plan.set(planned);
            return Ok(true);
        }
        let hooks = Arc::clone(&self.hooks);
        let approval = tokio::task::spawn_blocking(move || {
            let mut planned = planned;
            planned.is_approved = hooks.approve(&planned.plan);
            planned.plan.changes = Vec::new();
            planned
        });
        let planned = self
            .run_responsive(approval)
            .await
            .map_err(UpdateError::Lost)?;
        let is_approved = planned.is_approved;
        if is_approved {
            self.plan.set(planned);
        }
        Ok(is_approved)
    }

    /// Returns whether the planned update must wait for its time. An update that waits for its reboot, or that is
    /// being undone, has already begun.
    pub(super) fn is_time_limited(&self) -> bool {
        !self.desired.is_approved(self.plan.digest())
            && !self.plan.is_repair()
            && self.journal.cordon.is_none()
            && self.journal.transactions.is_empty()
    }

    /// Returns when the planned update may begin; `None` if it may begin now.
    pub(super) fn closed_until(&self) -> Option<Timestamp> {
        let windows = &self.options.current().windows;
        self.is_time_limited()
            .then(|| self.plan.start.closed_until(windows, Timestamp::now()))
            .flatten()
    }

    /// Returns whether only the cluster delays the planned update.
    pub(super) fn waits_for_cluster(&self) -> bool {
        let windows = self.options.current().windows.state(Timestamp::now());
        self.plan.start.is_set_by_cluster()
            && windows == WindowState::Open
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

    /// Waits before an update that drains the node, if the node asks for that. Returns `Some` if another event comes
    /// first.
    async fn wait_before_cordon(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<WaitEnd, UpdateError> {
        if !self.drains() || !self.is_time_limited() {
            return Ok(None);
        }
        let Some(delay) = self.node.port().and_then(|node| node.cordon_delay()) else {
            return Ok(None);
        };
        tracing::info!(reason = %delay.reason, "{} is waiting: {}", self.desired.name(), delay.message);
        self.report_blockers(vec![delay]);
        let waited = self
            .retry_until_answered(stop, |node, _| node.wait_before_cordon())
            .await?;
        self.clear_blockers();
        Ok(waited.into_wait_end())
    }

    /// Queries when the cluster allows the planned update to begin. Returns `Some` if another event comes first.
    async fn query_earliest_start(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<WaitEnd, UpdateError> {
        if !self.node.is_connected() || !self.is_time_limited() {
            return Ok(None);
        }
        let result = self
            .retry_until_answered(stop, |node, _| node.earliest_start())
            .await?;
        let NodeCallResult::Done(earliest) = result else {
            return Ok(Some(result.map(|_| PhaseEvent::Withdrawn)));
        };
        self.plan.start = StartTime { earliest };
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_windows_only_the_time_of_the_cluster_delays_an_update() {
        let windows = MaintenanceWindows::default();
        let now = Timestamp::from_second(1_000).unwrap();
        let at = |second| StartTime {
            earliest: Some(Timestamp::from_second(second).unwrap()),
        };
        assert_eq!(StartTime::default().closed_until(&windows, now), None);
        assert_eq!(at(999).closed_until(&windows, now), None);
        assert_eq!(at(1_001).closed_until(&windows, now), at(1_001).earliest);
    }
}
