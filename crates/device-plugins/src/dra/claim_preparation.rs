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
use machinist_base::error_chain::chain;
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
    pub(super) shelf: ClaimStore,
    pub(super) inventory: watch::Receiver<Arc<Inventory>>,
    pub(super) granting: ClaimAllocator,
    pub(super) sweep: ClaimGc,
}

/// A claim and the inputs of its preparation.
#[derive(Clone, Copy)]
struct ClaimWork<'a> {
    claim: &'a ClaimName,
    found: &'a ResourceClaim,
    /// The devices that containers have without claims; `None` where the kubelet does not report
    /// them.
    given: Option<&'a DeviceHolders>,
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
        over: &CancellationToken,
    ) -> Result<Vec<PreparedDevice>, String> {
        let prepared = self.try_prepare(claim, until, over).await;
        prepared.map_err(|e| chain(&e))
    }

    async fn try_prepare(
        &self,
        claim: &ClaimName,
        until: Instant,
        over: &CancellationToken,
    ) -> Result<Vec<PreparedDevice>, PrepareError> {
        if let Some(known) = self.shelf.restore_spec(&claim.uid).await? {
            return Ok(known.devices);
        }
        let is_over = || PrepareError::Over(claim.clone());
        let asking = timeout_at(until, self.sweep.claims.get(&claim.namespace, &claim.name));
        let asked = tokio::select! {
            // Safe to drop, as below: nothing is written yet.
            () = over.cancelled() => return Err(is_over()),
            asked = asking => asked,
        };
        let asked = asked.map_err(|_| PrepareError::TooLate(claim.clone()))?;
        let found = asked.map_err(|e| PrepareError::Ask(Box::new(claim.clone()), e))?;
        let found = found.ok_or_else(|| ClaimError::Gone(claim.clone()))?;
        let given = self.given(until).await;
        let work = ClaimWork {
            claim,
            found: &found,
            given: given.as_ref(),
            until,
        };
        let chosen = self.choose(work).await?;
        let prepared = tokio::select! {
            () = over.cancelled() => return Err(is_over()),
            prepared = self.granting.prepared(claim, &chosen, until) => prepared?,
        };
        // Another claim may have been stored while the source was answering, so check again.
        let judge = |book: &ClaimCheckpoint| match over.is_cancelled() {
            true => Err(is_over()),
            false => self.judge(work, book).map(drop).map_err(Into::into),
        };
        self.shelf.store_claim(&prepared, judge).await?;
        let count = prepared.devices.len();
        tracing::info!(claim = %claim, "claim {claim} is prepared: {count} device(s)");
        Ok(prepared.devices)
    }

    /// The devices that containers have; `None` where the kubelet does not report them.
    async fn given(&self, until: Instant) -> Option<DeviceHolders> {
        let until = until.min(Instant::now() + POD_RESOURCES_TIMEOUT);
        match timeout_at(until, self.sweep.given.holders()).await {
            Ok(Ok(holders)) => Some(holders),
            Ok(Err(error)) => {
                tracing::debug!("{}", chain(&error));
                None
            }
            Err(_) => None,
        }
    }

    fn judge(
        &self,
        work: ClaimWork<'_>,
        book: &ClaimCheckpoint,
    ) -> Result<Vec<SelectedDevice>, ClaimError> {
        let none = DeviceHolders::default();
        let given = work.given.unwrap_or(&none);
        let inventory = self.inventory.borrow().clone();
        let claim = (work.claim, work.found);
        claim_checkpoint::select_devices(&inventory, &self.node, claim, book, given)
    }

    /// Checks the claim. A conflicting claim that neither the cluster nor any container has any
    /// more is unprepared first.
    ///
    /// If the kubelet does not report the devices of containers, pods need not wait for it: a
    /// device changes from device plugin to DRA once in its life, and this check is only a second
    /// safeguard.
    async fn choose(&self, work: ClaimWork<'_>) -> Result<Vec<SelectedDevice>, PrepareError> {
        let judged = self.shelf.read(|book| {
            let judged = self.judge(work, book).map_err(Box::new);
            let other = match judged.as_ref().map_err(|refused| &**refused) {
                Err(ClaimError::Held { device, .. }) => book.holder_of(device),
                _ => None,
            };
            (judged, other.map(|one| one.claim.clone()))
        });
        let (judged, other) = judged.await;
        let refused = match judged {
            Ok(chosen) => return Ok(chosen),
            Err(refused) => refused,
        };
        if let ClaimError::Held { device, .. } = &*refused
            && let Some(given) = work.given
            && given.claim_holder(device).is_none()
            && let Some(other) = other
            && timeout_at(work.until, self.sweep.is_deleted(&other)).await == Ok(true)
        {
            self.shelf.unprepare(&other).await?;
            return Ok(self.shelf.read(|book| self.judge(work, book)).await?);
        }
        Err(PrepareError::Refused(refused))
    }
}

#[cfg(test)]
mod tests;
