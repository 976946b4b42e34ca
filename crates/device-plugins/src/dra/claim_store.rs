//! Serialises all changes of the claim checkpoint and the CDI specs on disk.

use std::sync::Arc;

use tokio::sync::{Mutex, Notify};

use super::{
    claim_files::{CheckpointError, CheckpointFile},
    status::DriverStatusWriter,
};
use machinist_base::error_chain::chain;
use machinist_device::dra::{
    claim::ClaimName,
    claim_checkpoint::{ClaimCheckpoint, PreparedClaim},
    pool::Pool,
    traits::PublishedPool,
};

/// Cheap to clone; clones share the state. A change must not be cancelled once begun, or half of it
/// stays on disk.
#[derive(Clone, Debug)]
pub(super) struct ClaimStore(Arc<ClaimStoreInner>);

#[derive(Debug)]
struct ClaimStoreInner {
    store: CheckpointFile,
    status: DriverStatusWriter,
    checkpoint: Mutex<ClaimCheckpoint>,
    claim_stored: Notify,
}

impl ClaimStore {
    /// Writes the specs of the stored claims. Specs of an earlier boot are removed: the kubelet
    /// prepares each claim again before its pod starts, which resolves its devices again.
    pub(super) fn new(
        store: CheckpointFile,
        checkpoint: ClaimCheckpoint,
        is_complete: bool,
        status: DriverStatusWriter,
    ) -> Self {
        for prepared in checkpoint.claims.values() {
            let written = match store.is_of_this_boot(prepared) {
                true => store.write_spec(prepared),
                false => store.remove_spec(&prepared.claim.uid),
            };
            if let Err(error) = written {
                tracing::warn!("claim {}: {}", prepared.claim, chain(&error));
            }
        }
        // If the checkpoint is lost, the owners of the files are unknown.
        if is_complete && let Err(error) = store.remove_stale_specs(&checkpoint) {
            tracing::warn!(
                "failed to remove CDI specs of ended claims: {}",
                chain(&error)
            );
        }
        Self(Arc::new(ClaimStoreInner {
            store,
            status,
            checkpoint: Mutex::new(checkpoint),
            claim_stored: Notify::new(),
        }))
    }

    /// Reads from the checkpoint.
    pub(super) async fn read<T>(&self, read: impl FnOnce(&ClaimCheckpoint) -> T) -> T {
        read(&*self.0.checkpoint.lock().await)
    }

    /// All prepared claims.
    pub(super) async fn claims(&self) -> Vec<PreparedClaim> {
        self.read(|checkpoint| checkpoint.claims.values().cloned().collect())
            .await
    }

    /// Waits until a claim was stored since the last call.
    pub(super) async fn wait_for_claim(&self) {
        self.0.claim_stored.notified().await;
    }

    /// The claim, if it was prepared in this boot; its spec is written again if it is missing.
    pub(super) async fn restore_spec(
        &self,
        uid: &str,
    ) -> Result<Option<PreparedClaim>, CheckpointError> {
        let checkpoint = self.0.checkpoint.lock().await;
        let known = checkpoint.claims.get(uid);
        let Some(known) = known
            .filter(|one| self.0.store.is_of_this_boot(one))
            .cloned()
        else {
            return Ok(None);
        };
        self.write_spec_file(&known).await?;
        Ok(Some(known))
    }

    async fn write_spec_file(&self, prepared: &PreparedClaim) -> Result<(), CheckpointError> {
        let (inner, of) = (Arc::clone(&self.0), prepared.clone());
        blocking(move || inner.store.write_spec(&of)).await
    }

    /// Stores a claim if `judge` still permits it: first in the checkpoint, then as a CDI spec.
    pub(super) async fn store_claim<E: From<CheckpointError>>(
        &self,
        prepared: &PreparedClaim,
        check: impl FnOnce(&ClaimCheckpoint) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut checkpoint = self.0.checkpoint.lock().await;
        check(&checkpoint)?;
        let uid = prepared.claim.uid.clone();
        let before = checkpoint.claims.insert(uid.clone(), prepared.clone());
        if let Err(error) = self.save(&checkpoint).await {
            match before {
                Some(before) => checkpoint.claims.insert(uid, before),
                None => checkpoint.claims.remove(&uid),
            };
            return Err(error.into());
        }
        self.0.status.holding(&checkpoint);
        self.0.claim_stored.notify_one();
        Ok(self.write_spec_file(prepared).await?)
    }

    /// Unprepares a claim. The spec is removed first: if the checkpoint write then fails, the claim
    /// is still stored and the kubelet retries.
    pub(super) async fn unprepare(&self, claim: &ClaimName) -> Result<(), CheckpointError> {
        let mut checkpoint = self.0.checkpoint.lock().await;
        let (inner, uid) = (Arc::clone(&self.0), claim.uid.clone());
        blocking(move || inner.store.remove_spec(&uid)).await?;
        let Some(prepared) = checkpoint.claims.remove(&claim.uid) else {
            return Ok(());
        };
        if let Err(error) = self.save(&checkpoint).await {
            checkpoint.claims.insert(claim.uid.clone(), prepared);
            return Err(error);
        }
        self.0.status.holding(&checkpoint);
        tracing::info!(claim = %claim, "claim {claim} is unprepared");
        Ok(())
    }

    /// Stores the devices to publish, if they changed; they must not be published before.
    pub(super) async fn offer(
        &self,
        pool: &Pool,
        published: &PublishedPool,
    ) -> Result<(), CheckpointError> {
        let mut checkpoint = self.0.checkpoint.lock().await;
        let mut offered = pool.resources();
        match &published.resources {
            Some(known) => offered.extend(known.iter().cloned()),
            None => offered.extend(checkpoint.offered.iter().cloned()),
        }
        let generation = published.generation.max(checkpoint.generation);
        if offered != checkpoint.offered || generation != checkpoint.generation {
            let mut next = checkpoint.clone();
            (next.offered, next.generation) = (offered, generation);
            self.save(&next).await?;
            *checkpoint = next;
        }
        self.0.status.published(published);
        self.0.status.holding(&checkpoint);
        Ok(())
    }

    async fn save(&self, checkpoint: &ClaimCheckpoint) -> Result<(), CheckpointError> {
        let (inner, checkpoint) = (Arc::clone(&self.0), checkpoint.clone());
        blocking(move || inner.store.save(&checkpoint)).await
    }
}

/// Runs blocking file operations off the async runtime.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(lost) if lost.is_panic() => std::panic::resume_unwind(lost.into_panic()),
        // The runtime is shutting down, and the caller with it.
        Err(_) => std::future::pending().await,
    }
}
