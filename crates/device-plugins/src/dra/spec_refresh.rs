//! Rewrites the CDI specs of claims whose device nodes changed: a restarted container then gets the
//! device at its new node, or does not start while the device is missing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    claim_allocation::ClaimAllocator, claim_files::CheckpointError, claim_store::ClaimStore,
    prepare_error::PrepareError,
};
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_device::{
    Health, Inventory,
    dra::{
        claim::AllocatedDevice,
        claim_checkpoint::{ClaimCheckpoint, PreparedClaim, SelectedDevice},
    },
    registry::{DirWatch, WatchDepth, changed_or_timeout, watch_for},
};
use machinist_rootfs::Root;

/// For all path checks of one claim; a file system that takes longer hangs.
const PATH_CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Retry of a failed write, and poll interval where changes of links cannot be watched.
const SPEC_REFRESH_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum time between two passes over all claims: devices change in bursts, and an ended
/// container is not restarted sooner.
const MIN_PASS_INTERVAL: Duration = Duration::from_secs(1);

/// The task's state.
pub(super) struct SpecRefresh {
    pub(super) root: Root,
    pub(super) allocator: ClaimAllocator,
    pub(super) claim_store: ClaimStore,
    pub(super) inventory: watch::Receiver<Arc<Inventory>>,
    /// UIDs of the claims whose specs were removed.
    pub(super) claims_without_spec: BTreeSet<String>,
}

impl SpecRefresh {
    pub(super) async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            // Safe to drop: a write in progress continues, and the next agent checks all claims.
            () = stop.cancelled() => {}
            () = self.refresh_on_changes() => {}
        }
    }

    async fn refresh_on_changes(&mut self) {
        let mut links = DirWatch::new(&self.root).ok();
        loop {
            // From here on the watch reports changed links.
            let claims = self.claim_store.claims().await;
            if let Some(watch) = &mut links {
                watch.set(&directories(&self.root, &claims));
            }
            let inventory = self.inventory.borrow_and_update().clone();
            let failed = !self.refresh(&inventory, claims).await;
            sleep(MIN_PASS_INTERVAL).await;
            tokio::select! {
                // Safe to drop, all of them: a change stays marked as unseen, or in the kernel's
                // queue.
                changed = self.inventory.changed() => if changed.is_err() { return },
                () = self.claim_store.wait_for_claim() => {}
                _ = changed_or_timeout(&mut links, SPEC_REFRESH_RETRY_INTERVAL) => {}
                () = sleep(SPEC_REFRESH_RETRY_INTERVAL), if failed => {}
            }
        }
    }

    /// Updates all specs; returns whether that succeeded.
    async fn refresh(&mut self, inventory: &Inventory, claims: Vec<PreparedClaim>) -> bool {
        let mut all_refreshed = true;
        self.claims_without_spec
            .retain(|uid| claims.iter().any(|one| one.claim.uid == *uid));
        for before in claims {
            let updated = self.updated(inventory, &before).await;
            all_refreshed &= match updated.filter(|updated| *updated != before) {
                Some(updated) => self.replace(&before, &updated).await,
                None => self.write_spec_file(&before).await,
            };
        }
        all_refreshed
    }

    /// Writes the spec again, since the file may be missing or wrong.
    async fn write_spec_file(&mut self, claim: &PreparedClaim) -> bool {
        let (uid, name) = (&claim.claim.uid, &claim.claim);
        match self.claim_store.restore_spec(uid).await {
            Ok(_) => {
                if self.claims_without_spec.remove(uid) {
                    tracing::info!(claim = %name, "claim {name}: its device nodes are restored; its containers can start");
                }
                true
            }
            Err(error @ CheckpointError::Moved { .. }) => {
                if self.claims_without_spec.insert(uid.clone()) {
                    tracing::warn!(claim = %name, "claim {name}: its containers cannot start: {}", chain(&error));
                }
                true
            }
            Err(error) => {
                tracing::debug!(claim = %name, "{}", chain(&error));
                false
            }
        }
    }

    async fn replace(&mut self, before: &PreparedClaim, updated: &PreparedClaim) -> bool {
        let claim = &updated.claim;
        let mut was_unprepared = false;
        let check_unchanged = |checkpoint: &ClaimCheckpoint| {
            was_unprepared = checkpoint.claims.get(&claim.uid) != Some(before);
            match was_unprepared {
                true => Err(PrepareError::Cancelled(claim.clone())),
                false => Ok(()),
            }
        };
        match self.claim_store.store_claim(updated, check_unchanged).await {
            Ok(()) => {
                self.claims_without_spec.remove(&claim.uid);
                if before.spec != updated.spec {
                    tracing::info!(claim = %claim, "claim {claim}: its device nodes changed, CDI spec updated");
                }
            }
            Err(_) if was_unprepared => {}
            Err(error) => {
                tracing::warn!(claim = %claim, "claim {claim}: failed to update its device nodes: {}", chain(&error));
                return false;
            }
        }
        true
    }

    /// The claim as it would be prepared now; `None` if a device is missing or unhealthy, or if
    /// only its source can answer.
    async fn updated(
        &self,
        inventory: &Inventory,
        prepared: &PreparedClaim,
    ) -> Option<PreparedClaim> {
        let mut chosen = Vec::new();
        for held in &prepared.devices {
            let resource = inventory.resources.get(&held.resource)?;
            let (_, device) = resource.find(&held.share)?;
            if resource.asks.allocate || device.health != Health::Healthy {
                return None;
            }
            chosen.push(SelectedDevice {
                given: AllocatedDevice {
                    request: held.request.clone(),
                    pool: held.pool.clone(),
                    device: held.device.clone(),
                    admin: held.admin,
                    tolerations: Vec::new(),
                },
                resource: Arc::clone(resource),
                share: held.share.clone(),
            });
        }
        let until = Instant::now() + PATH_CHECK_TIMEOUT;
        let prepared = self
            .allocator
            .prepared(&prepared.claim, &chosen, until)
            .await;
        prepared.ok()
    }
}

/// The directories of the links that identify the claims' devices; for a missing directory its
/// nearest existing parent.
fn directories(root: &Root, claims: &[PreparedClaim]) -> BTreeMap<AbsPath, WatchDepth> {
    let links = claims.iter().flat_map(|one| one.links.keys());
    let dirs = links.filter_map(AbsPath::parent);
    dirs.map(|dir| (watch_for(root, &dir).0, WatchDepth::Names))
        .collect()
}
