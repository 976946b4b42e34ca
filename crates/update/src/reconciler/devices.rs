//! Controls device allocation during an update: disables it before the drain, waits until no pod to be evicted
//! holds a device before the first change, and enables it again before the machine is judged.
//!
//! The state of device allocation is recorded before each request.

use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{
    RETRY_BACKOFF, Reconciler, ReconcilerHooks, UpdateError,
    node_call_retry::{NodeCallResult, WaitEnd},
};
use crate::{
    journal::{DeviceUsers, DevicesBeforeUpdate},
    phase::{Phase, PhaseEvent},
    service_port::Services,
};
use machinist_base::{
    backoff::{Backoff, jitter},
    error_chain::chain,
};

/// Delays between two checks of who holds a device. The kubelet releases the devices of a deleted pod with a delay,
/// usually of less than a second.
const HOLDER_CHECK_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(250), Duration::from_secs(2));

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Returns the state of device allocation, as a process that starts now would find it.
    pub(super) fn device_users(&self) -> DeviceUsers {
        let cordon = self.journal.cordon.as_ref();
        match self.progress.phase() {
            // The machine is being judged, or has been.
            Phase::Booted | Phase::Verifying | Phase::Uncordoning => DeviceUsers::Open,
            _ => cordon.map(|cordon| cordon.device_users).unwrap_or_default(),
        }
    }

    /// Records allocatable devices and their holders before allocation is disabled, once for each cordon. Does not
    /// save the journal.
    pub(super) async fn record_allocatable(&mut self) {
        let cordon = self.journal.cordon.as_ref();
        let (Some(node), true) = (
            self.node.port(),
            cordon.is_some_and(|cordon| cordon.devices_before.is_none()),
        ) else {
            return;
        };
        let counts = self.hooks.allocatable();
        // The holders are only informative; an update does not depend on them.
        let holders = self.run_responsive(node.holders()).await.ok().flatten();
        if let Some(cordon) = &mut self.journal.cordon {
            cordon.devices_before = Some(DevicesBeforeUpdate { counts, holders });
        }
    }

    /// Records the state of device allocation, then requests it.
    pub(super) async fn set_device_users(
        &mut self,
        allocation: DeviceUsers,
        stop: &CancellationToken,
    ) -> Result<NodeCallResult<()>, UpdateError> {
        if let Some(cordon) = &mut self.journal.cordon
            && cordon.device_users != allocation
        {
            cordon.device_users = allocation;
            self.save().await?;
        }
        self.retry_until_answered(stop, |node, _| node.set_device_users(allocation))
            .await
    }

    /// Waits until no pod to be evicted holds a device, and publishes those that do.
    pub(super) async fn wait_for_device_release(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<WaitEnd, UpdateError> {
        let Some(node) = self.node.port() else {
            return Ok(None);
        };
        for attempt in 0.. {
            let result = tokio::select! {
                // Safe to drop: the check changes nothing.
                () = stop.cancelled() => return Ok(Some(None)),
                result = self.run_responsive(node.evicted_holders()) => result,
            };
            let pause = match result {
                Ok(holders) if holders.is_empty() => break,
                Ok(holders) => {
                    self.report_blockers(holders);
                    HOLDER_CHECK_BACKOFF.step(attempt)
                }
                Err(error) if !error.retryable => {
                    self.record_failure(&error, error.reason, false);
                    return Ok(Some(Some(PhaseEvent::StepFailed)));
                }
                Err(error) => {
                    self.report_node_error(&error);
                    RETRY_BACKOFF.wait(attempt, jitter())
                }
            };
            if let Some(ended) = self.pause(pause, stop).await? {
                return Ok(Some(ended));
            }
        }
        self.clear_blockers();
        Ok(None)
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
        let allocation = cordon.device_users;
        if let Some(ended) = self.restart_stopped_units(stop).await? {
            return Ok(Some(ended));
        }
        if allocation == DeviceUsers::Open {
            return Ok(None);
        }
        // The wait for the devices begins now.
        if let Some((_, since)) = &mut self.journal.devices_before {
            *since = Timestamp::now();
        }
        let result = self.set_device_users(DeviceUsers::Open, stop).await?;
        Ok(result.into_wait_end())
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
        let is_allocatable = cordon.device_users == DeviceUsers::Open;
        if let (Some(node), Some(services)) = (self.node.port(), self.services.clone()) {
            let units: Vec<String> = node.stop_units().into_iter().collect();
            match self.stop_running(&*services, &units, stop).await? {
                None => return Ok(Some(None)),
                Some(Ok(())) => {}
                // The machine is unhealthy already, so this does not prevent its reboot.
                Some(Err(error)) => tracing::warn!("{}", chain(&error)),
            }
        }
        if !is_allocatable || !self.node.is_connected() {
            return Ok(None);
        }
        let result = self.set_device_users(DeviceUsers::Quiesced, stop).await?;
        Ok(result.into_wait_end())
    }
}
