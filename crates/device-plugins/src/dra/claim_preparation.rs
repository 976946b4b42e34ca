//! Prepares one claim: checks it, requests the allocation, stores it and writes the CDI spec.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    claim_allocation::ClaimAllocator, claim_gc::ClaimGc, claim_store::ClaimStore,
    prepare_error::PrepareError,
};
use machinist_base::{error_chain::chain, rate_limit::LogRates};
use machinist_device::{
    Inventory,
    dra::{
        claim::{ClaimName, ResourceClaim},
        claim_checkpoint::{self, ClaimCheckpoint, ClaimError, PreparedDevice, SelectedDevice},
    },
    holders::DeviceHolders,
};

/// How long to wait for the kubelet's pod resources; it answers within milliseconds or not at all.
const POD_RESOURCES_TIMEOUT: Duration = Duration::from_secs(5);

/// Prepares claims concurrently, so that a slow source delays no other claim. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct ClaimPreparer {
    pub(super) node: Arc<str>,
    pub(super) claim_store: ClaimStore,
    pub(super) inventory: watch::Receiver<Arc<Inventory>>,
    pub(super) allocator: ClaimAllocator,
    pub(super) gc: ClaimGc,
    pub(super) log_rates: LogRates,
}

/// A claim and the inputs of its preparation.
#[derive(Clone, Copy)]
struct ClaimWork<'a> {
    claim: &'a ClaimName,
    found: &'a ResourceClaim,
    /// The devices that containers have without claims; `None` where the kubelet does not report
    /// them.
    in_use: Option<&'a DeviceHolders>,
    until: Instant,
}

impl ClaimPreparer {
    /// Prepares a claim, or returns the reason why not. For a claim that is already prepared it
    /// returns the stored result. If `over` is cancelled before the result is stored, nothing
    /// remains of it.
    pub(super) async fn prepare(
        &self,
        claim: &ClaimName,
        until: Instant,
        cancelled: &CancellationToken,
    ) -> Result<Vec<PreparedDevice>, String> {
        let prepared = self.try_prepare(claim, until, cancelled).await;
        prepared.map_err(|e| chain(&e))
    }

    async fn try_prepare(
        &self,
        claim: &ClaimName,
        until: Instant,
        cancelled: &CancellationToken,
    ) -> Result<Vec<PreparedDevice>, PrepareError> {
        if let Some(known) = self.claim_store.restore_spec(&claim.uid).await? {
            return Ok(known.devices);
        }
        let cancelled_error = || PrepareError::Cancelled(claim.clone());
        let request = timeout_at(until, self.gc.claims.get(&claim.namespace, &claim.name));
        let response = tokio::select! {
            // Safe to drop, as below: nothing is written yet.
            () = cancelled.cancelled() => return Err(cancelled_error()),
            response = request => response,
        };
        let response = response.map_err(|_| PrepareError::TimedOut(claim.clone()))?;
        let found = response.map_err(|e| PrepareError::ClaimLookup(Box::new(claim.clone()), e))?;
        let found = found.ok_or_else(|| ClaimError::NotFound(claim.clone()))?;
        let holders = self.device_holders(until).await;
        let work = ClaimWork {
            claim,
            found: &found,
            in_use: holders.as_ref(),
            until,
        };
        let chosen = self.select_or_release(work).await?;
        let prepared = tokio::select! {
            () = cancelled.cancelled() => return Err(cancelled_error()),
            prepared = self.allocator.prepared(claim, &chosen, until) => prepared?,
        };
        // Another claim may have been stored while the source was answering, so check again.
        let check = |checkpoint: &ClaimCheckpoint| match cancelled.is_cancelled() {
            true => Err(cancelled_error()),
            false => self
                .select_devices(work, checkpoint)
                .map(drop)
                .map_err(Into::into),
        };
        self.claim_store.store_claim(&prepared, check).await?;
        let count = prepared.devices.len();
        tracing::info!(claim = %claim, "claim {claim} is prepared: {count} device(s)");
        Ok(prepared.devices)
    }

    /// The devices that containers have; `None` where the kubelet does not report them.
    async fn device_holders(&self, until: Instant) -> Option<DeviceHolders> {
        let until = until.min(Instant::now() + POD_RESOURCES_TIMEOUT);
        match timeout_at(until, self.gc.in_use.holders()).await {
            Ok(Ok(holders)) => Some(holders),
            Ok(Err(error)) => {
                tracing::debug!("{}", chain(&error));
                None
            }
            Err(_) => None,
        }
    }

    fn select_devices(
        &self,
        work: ClaimWork<'_>,
        checkpoint: &ClaimCheckpoint,
    ) -> Result<Vec<SelectedDevice>, ClaimError> {
        let none = DeviceHolders::default();
        let holders = work.in_use.unwrap_or(&none);
        let inventory = self.inventory.borrow().clone();
        let claim = (work.claim, work.found);
        claim_checkpoint::select_devices(&inventory, &self.node, claim, checkpoint, holders)
    }

    /// Checks the claim. A conflicting claim that neither the cluster nor any container has any
    /// more is unprepared first.
    ///
    /// If the kubelet does not report the devices of containers, pods need not wait for it: a
    /// device changes from device plugin to DRA once in its life, and this check is only a second
    /// safeguard.
    async fn select_or_release(
        &self,
        work: ClaimWork<'_>,
    ) -> Result<Vec<SelectedDevice>, PrepareError> {
        let selection = self.claim_store.read(|checkpoint| {
            let selection = self.select_devices(work, checkpoint).map_err(Box::new);
            let other = match selection.as_ref().map_err(|refused| &**refused) {
                Err(ClaimError::Held { device, .. }) => checkpoint.holder_of(device),
                _ => None,
            };
            (selection, other.map(|one| one.claim.clone()))
        });
        let (selection, other) = selection.await;
        let refused = match selection {
            Ok(chosen) => return Ok(chosen),
            Err(refused) => refused,
        };
        if let ClaimError::Held { device, .. } = &*refused
            && let Some(holders) = work.in_use
            && holders.claim_holder(device).is_none()
            && let Some(other) = other
            && timeout_at(work.until, self.gc.is_deleted(&other)).await == Ok(true)
        {
            self.claim_store.unprepare(&other).await?;
            return Ok(self
                .claim_store
                .read(|checkpoint| self.select_devices(work, checkpoint))
                .await?);
        }
        Err(PrepareError::Refused(refused))
    }
}

#[cfg(test)]
mod tests;
