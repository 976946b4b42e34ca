//! Stops the units that use devices before a drain ends, and starts them again.
//!
//! Each unit is recorded before it is stopped.

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{RETRY_BACKOFF, Reconciler, ReconcilerHooks, UpdateError, node_call_retry::WaitEnd};
use crate::{
    node_port::Blocker,
    phase::PhaseEvent,
    service_port::{ServiceError, Services},
};
use machinist_base::{backoff::jitter, error_chain::chain};
use machinist_plan::{ActionKind, UnitFacts};

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Stops the running units that use devices on the host.
    pub(super) async fn stop_units(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<WaitEnd, UpdateError> {
        let (Some(node), Some(services)) = (self.node.port(), self.services.clone()) else {
            return Ok(None);
        };
        let units: Vec<String> = node.stop_units().into_iter().collect();
        for attempt in 0.. {
            let error = match self.stop_running(&*services, &units, stop).await? {
                None => return Ok(Some(None)),
                Some(Ok(())) => break,
                Some(Err(error)) => error,
            };
            let (reason, message) = (error.source.reason, chain(&error));
            if !error.source.retryable {
                self.record_failure(&error, reason, false);
                return Ok(Some(Some(PhaseEvent::StepFailed)));
            }
            tracing::warn!(%reason, "retrying: {message}");
            self.report_blockers(vec![Blocker {
                kind: "Unit".to_owned(),
                namespace: String::new(),
                name: error.unit,
                reason,
                message,
                since: Timestamp::now(),
            }]);
            let pause = RETRY_BACKOFF.wait(attempt, jitter());
            if let Some(ended) = self.pause(pause, stop).await? {
                return Ok(Some(ended));
            }
        }
        self.clear_blockers();
        Ok(None)
    }

    /// Stops units. Each is recorded before it is stopped, so that it is started again even after a crash. A unit
    /// that is already stopping is awaited, because it may still have the device open, but not recorded: if an
    /// earlier run of the agent requested that stop, it has recorded it. Returns `None` on a stop.
    pub(super) async fn stop_running(
        &mut self,
        services: &S,
        units: &[String],
        stop: &CancellationToken,
    ) -> Result<Option<Result<(), StopUnitError>>, UpdateError> {
        for unit in units {
            let failed = |source| StopUnitError {
                unit: unit.clone(),
                source,
            };
            let facts = match self.run_responsive(facts(services, unit)).await {
                Ok(facts) => facts,
                Err(error) => return Ok(Some(Err(failed(error)))),
            };
            // A unit that waits for an automatic restart is stopped too.
            if is_down(&facts) && !is_stopping(&facts) {
                continue;
            }
            if !is_stopping(&facts)
                && let Some(cordon) = &mut self.journal.cordon
                && !cordon.stopped.contains(unit)
            {
                cordon.stopped.push(unit.clone());
                self.save().await?;
            }
            tracing::info!(
                unit,
                "stopping {unit}: it uses a device that the update needs"
            );
            let (timeout, settle) = self.options.job_limits();
            let stopping = services.act(ActionKind::Stop, unit, timeout, settle);
            let result = tokio::select! {
                // The job continues; the next start finds the unit in the journal.
                () = stop.cancelled() => return Ok(None),
                result = self.run_responsive(stopping) => result,
            };
            if let Err(error) = result {
                return Ok(Some(Err(failed(error))));
            }
        }
        Ok(Some(Ok(())))
    }

    /// Starts the units that this update stopped. Each leaves the journal once it was started.
    pub(super) async fn restart_stopped_units(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<WaitEnd, UpdateError> {
        let cordon = self.journal.cordon.as_ref();
        let stopped = cordon.map_or_else(Vec::new, |cordon| cordon.stopped.clone());
        for unit in stopped {
            tokio::select! {
                // The next start of the agent begins with this unit again.
                () = stop.cancelled() => return Ok(Some(None)),
                () = self.run_responsive(self.restart_unit(&unit)) => {}
            }
            if let Some(cordon) = &mut self.journal.cordon {
                cordon.stopped.retain(|stopped| *stopped != unit);
            }
            self.save().await?;
        }
        Ok(None)
    }

    /// Starts a unit again. A failure is only logged, and the unit counts as failed; pods do not wait for it.
    async fn restart_unit(&self, unit: &str) {
        let Some(services) = self.services.as_ref() else {
            return;
        };
        let (timeout, settle) = self.options.job_limits();
        let restart = async {
            let facts = facts(&**services, unit).await?;
            let is_removed = matches!(facts.load.as_deref(), Some("not-found" | "masked"));
            if is_removed || !is_down(&facts) {
                return Ok(!is_removed);
            }
            let restart = services.act(ActionKind::Restart, unit, timeout, settle);
            restart.await.map(|()| true)
        };
        match restart.await {
            Ok(true) => tracing::info!(unit, "{unit} started again"),
            Ok(false) => tracing::info!(unit, "{unit} no longer exists"),
            Err(error) => tracing::error!(
                unit,
                reason = %error.reason,
                "failed to start {unit}, stopped for this update: {}",
                chain(&error)
            ),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot stop {unit}, which uses a device that the update needs")]
pub(super) struct StopUnitError {
    unit: String,
    source: ServiceError,
}

async fn facts<S: Services>(services: &S, unit: &str) -> Result<UnitFacts, ServiceError> {
    let mut facts = services.unit_facts(&[unit.to_owned()]).await?;
    Ok(facts.remove(unit).unwrap_or_default())
}

/// Returns whether a unit is down or stopping, so that it must be started again.
fn is_down(facts: &UnitFacts) -> bool {
    let active = facts.active.as_deref();
    matches!(active, None | Some("inactive" | "failed" | "deactivating"))
}

/// Returns whether a unit is stopping, so that its processes may still run.
fn is_stopping(facts: &UnitFacts) -> bool {
    facts.active.as_deref() == Some("deactivating")
}
