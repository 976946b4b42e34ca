//! Controls device allocation during an update: disables it before the drain, waits until no pod to be evicted
//! holds a device before the first change, and enables it again before the machine is judged.
//!
//! The state of device allocation and the stopped units are recorded before each request.

use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{
    RETRY_BACKOFF, Reconciler, ReconcilerHooks, UpdateError, node_call_retry::NodeCallResult,
};
use crate::{
    journal::{DeviceUsers, DevicesBeforeUpdate},
    node_port::Blocker,
    phase::{Phase, PhaseEvent},
    service_port::{ServiceError, Services},
};
use machinist_base::{
    backoff::{Backoff, jitter},
    error_chain::chain,
};
use machinist_plan::{ActionKind, UnitFacts};

/// Delays between two checks of who holds a device. The kubelet releases the devices of a deleted pod with a delay,
/// usually of less than a second.
const HOLDER_CHECK_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(250), Duration::from_secs(2));

/// Result of a wait in this file: `None` to continue, else the event for the loop.
type WaitEnd = Option<Option<PhaseEvent>>;

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Returns the state of device allocation at the start of this process.
    pub(super) fn initial_device_users(&self) -> DeviceUsers {
        let cordon = self.journal.cordon.as_ref();
        match self.progress.phase() {
            // The machine is being judged, or has been.
            Phase::Booted | Phase::Verifying | Phase::Uncordoning => DeviceUsers::Open,
            _ => cordon.map(|cordon| cordon.lending).unwrap_or_default(),
        }
    }

    /// Records allocatable devices and their holders before allocation is disabled, once for each cordon. Does not
    /// save the journal.
    pub(super) async fn record_allocatable(&mut self) {
        let known = self.journal.cordon.as_ref();
        let (Some(node), true) = (
            self.node.port(),
            known.is_some_and(|cordon| cordon.lent.is_none()),
        ) else {
            return;
        };
        let counts = self.hooks.allocatable();
        // The holders are only informative; an update does not depend on them.
        let holders = self.run_responsive(node.holders()).await.ok().flatten();
        if let Some(cordon) = &mut self.journal.cordon {
            cordon.lent = Some(DevicesBeforeUpdate { counts, holders });
        }
    }

    /// Records the state of device allocation, then requests it.
    pub(super) async fn set_device_users(
        &mut self,
        lending: DeviceUsers,
        stop: &CancellationToken,
    ) -> Result<NodeCallResult<()>, UpdateError> {
        if let Some(cordon) = &mut self.journal.cordon
            && cordon.lending != lending
        {
            cordon.lending = lending;
            self.save().await?;
        }
        self.retry_until_answered(stop, |node, _| node.set_device_users(lending))
            .await
    }

    /// Waits until no pod to be evicted holds a device, and publishes those that do.
    pub(super) async fn wait_for_release(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<WaitEnd, UpdateError> {
        let Some(node) = self.node.port() else {
            return Ok(None);
        };
        for look in 0.. {
            let asked = tokio::select! {
                // Safe to drop: the check changes nothing.
                () = stop.cancelled() => return Ok(Some(None)),
                asked = self.run_responsive(node.evicted_holders()) => asked,
            };
            let pause = match asked {
                Ok(held) if held.is_empty() => break,
                Ok(held) => {
                    self.report_blockers(held);
                    HOLDER_CHECK_BACKOFF.step(look)
                }
                Err(error) if !error.retryable => {
                    self.record_failure(&error, error.reason, false);
                    return Ok(Some(Some(PhaseEvent::StepFailed)));
                }
                Err(error) => {
                    self.report_node_error(&error);
                    RETRY_BACKOFF.wait(look, jitter())
                }
            };
            if let Some(ended) = self.pause(pause, stop).await? {
                return Ok(Some(ended));
            }
        }
        self.clear_blockers();
        Ok(None)
    }

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
            let fault = match self.stop_running(&*services, &units, stop).await? {
                None => return Ok(Some(None)),
                Some(Ok(())) => break,
                Some(Err(fault)) => fault,
            };
            let (reason, message) = (fault.error.reason, chain(&fault));
            if !fault.error.retryable {
                self.record_failure(&fault, reason, false);
                return Ok(Some(Some(PhaseEvent::StepFailed)));
            }
            tracing::warn!(%reason, "retrying: {message}");
            self.report_blockers(vec![Blocker {
                kind: "Unit".to_owned(),
                namespace: String::new(),
                name: fault.unit,
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
    async fn stop_running(
        &mut self,
        services: &S,
        units: &[String],
        stop: &CancellationToken,
    ) -> Result<Option<Result<(), StopUnitError>>, UpdateError> {
        for unit in units {
            let failed = |error| StopUnitError {
                unit: unit.clone(),
                error,
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
            let (limit, settle) = self.options.job_limits();
            let stopping = services.act(ActionKind::Stop, unit, limit, settle);
            let stopped = tokio::select! {
                // The job continues; the next start finds the unit in the journal.
                () = stop.cancelled() => return Ok(None),
                stopped = self.run_responsive(stopping) => stopped,
            };
            if let Err(error) = stopped {
                return Ok(Some(Err(failed(error))));
            }
        }
        Ok(Some(Ok(())))
    }

    /// Starts the units that this update stopped and enables device allocation again, before the machine is judged.
    /// It is idempotent.
    pub(super) async fn reenable_devices(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<WaitEnd, UpdateError> {
        let cordon = self.journal.cordon.as_ref();
        let Some(cordon) = cordon.filter(|_| self.node.is_connected()) else {
            return Ok(None);
        };
        let (lending, stopped) = (cordon.lending, cordon.stopped.clone());
        for unit in stopped {
            tokio::select! {
                // The next start of the agent begins with this unit again.
                () = stop.cancelled() => return Ok(Some(None)),
                () = self.run_responsive(self.start_again(&unit)) => {}
            }
            if let Some(cordon) = &mut self.journal.cordon {
                cordon.stopped.retain(|stopped| *stopped != unit);
            }
            self.save().await?;
        }
        if lending == DeviceUsers::Open {
            return Ok(None);
        }
        // The wait for the devices begins now.
        if let Some((_, since)) = &mut self.journal.devices_before {
            *since = Timestamp::now();
        }
        Ok(
            match self.set_device_users(DeviceUsers::Open, stop).await? {
                NodeCallResult::Done(()) => None,
                NodeCallResult::Event(event) => Some(Some(event)),
                NodeCallResult::Stopped => Some(None),
            },
        )
    }

    /// Starts a unit again. A failure is only logged, and the unit counts as failed; pods do not wait for it.
    async fn start_again(&self, unit: &str) {
        let Some(services) = self.services.as_ref() else {
            return;
        };
        let (limit, settle) = self.options.job_limits();
        let started = async {
            let facts = facts(&**services, unit).await?;
            let gone = matches!(facts.load.as_deref(), Some("not-found" | "masked"));
            if gone || !is_down(&facts) {
                return Ok(!gone);
            }
            let started = services.act(ActionKind::Restart, unit, limit, settle);
            started.await.map(|()| true)
        };
        match started.await {
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

    /// Stops units and disables device allocation again before a reboot: an action may have started what was
    /// stopped, and a boot starts enabled units. After an unhealthy boot, allocation was enabled again.
    pub(super) async fn disable_devices_again(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<WaitEnd, UpdateError> {
        let Some(cordon) = &self.journal.cordon else {
            return Ok(None);
        };
        let open = cordon.lending == DeviceUsers::Open;
        if let (Some(node), Some(services)) = (self.node.port(), self.services.clone()) {
            let units: Vec<String> = node.stop_units().into_iter().collect();
            match self.stop_running(&*services, &units, stop).await? {
                None => return Ok(Some(None)),
                Some(Ok(())) => {}
                // The machine is unhealthy already, so this does not prevent its reboot.
                Some(Err(fault)) => tracing::warn!("{}", chain(&fault)),
            }
        }
        if !open || !self.node.is_connected() {
            return Ok(None);
        }
        Ok(
            match self.set_device_users(DeviceUsers::Quiesced, stop).await? {
                NodeCallResult::Done(()) => None,
                NodeCallResult::Event(event) => Some(Some(event)),
                NodeCallResult::Stopped => Some(None),
            },
        )
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot stop {unit}, which uses a device that the update needs")]
struct StopUnitError {
    unit: String,
    #[source]
    error: ServiceError,
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
