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
    board: DriverStatusWriter,
    book: Mutex<ClaimCheckpoint>,
    kept: Notify,
}

impl ClaimStore {
    /// Writes the specs of the stored claims. Specs of an earlier boot are removed: the kubelet
    /// prepares each claim again before its pod starts, which resolves its devices again.
    pub(super) fn new(
        store: CheckpointFile,
        book: ClaimCheckpoint,
        whole: bool,
        board: DriverStatusWriter,
    ) -> Self {
        for prepared in book.claims.values() {
            let laid = match store.is_of_this_boot(prepared) {
                true => store.write_spec(prepared),
                false => store.remove_spec(&prepared.claim.uid),
            };
            if let Err(error) = laid {
                tracing::warn!("claim {}: {}", prepared.claim, chain(&error));
            }
        }
        // If the checkpoint is lost, the owners of the files are unknown.
        if whole && let Err(error) = store.sweep(&book) {
            tracing::warn!(
                "failed to remove CDI specs of ended claims: {}",
                chain(&error)
            );
        }
        Self(Arc::new(ClaimStoreInner {
            store,
            board,
            book: Mutex::new(book),
            kept: Notify::new(),
        }))
    }

    /// Reads from the checkpoint.
    pub(super) async fn read<T>(&self, look: impl FnOnce(&ClaimCheckpoint) -> T) -> T {
        look(&*self.0.book.lock().await)
    }

    /// All prepared claims.
    pub(super) async fn claims(&self) -> Vec<PreparedClaim> {
        self.read(|book| book.claims.values().cloned().collect())
            .await
    }

    /// Waits until a claim was stored since the last call.
    pub(super) async fn wait_for_claim(&self) {
        self.0.kept.notified().await;
    }

    /// The claim, if it was prepared in this boot; its spec is written again if it is missing.
    pub(super) async fn restore_spec(
        &self,
        uid: &str,
    ) -> Result<Option<PreparedClaim>, CheckpointError> {
        let book = self.0.book.lock().await;
        let known = book.claims.get(uid);
        let Some(known) = known
            .filter(|one| self.0.store.is_of_this_boot(one))
            .cloned()
        else {
            return Ok(None);
        };
        self.lay_out(&known).await?;
        Ok(Some(known))
    }

    async fn lay_out(&self, prepared: &PreparedClaim) -> Result<(), CheckpointError> {
        let (inside, of) = (Arc::clone(&self.0), prepared.clone());
        blocking(move || inside.store.write_spec(&of)).await
    }

    /// Stores a claim if `judge` still permits it: first in the checkpoint, then as a CDI spec.
    pub(super) async fn store_claim<E: From<CheckpointError>>(
        &self,
        prepared: &PreparedClaim,
        judge: impl FnOnce(&ClaimCheckpoint) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut book = self.0.book.lock().await;
        judge(&book)?;
        let uid = prepared.claim.uid.clone();
        let before = book.claims.insert(uid.clone(), prepared.clone());
        if let Err(error) = self.save(&book).await {
            match before {
                Some(before) => book.claims.insert(uid, before),
                None => book.claims.remove(&uid),
            };
            return Err(error.into());
        }
        self.0.board.holding(&book);
        self.0.kept.notify_one();
        Ok(self.lay_out(prepared).await?)
    }

    /// Unprepares a claim. The spec is removed first: if the checkpoint write then fails, the claim
    /// is still stored and the kubelet retries.
    pub(super) async fn unprepare(&self, claim: &ClaimName) -> Result<(), CheckpointError> {
        let mut book = self.0.book.lock().await;
        let (inside, uid) = (Arc::clone(&self.0), claim.uid.clone());
        blocking(move || inside.store.remove_spec(&uid)).await?;
        let Some(prepared) = book.claims.remove(&claim.uid) else {
            return Ok(());
        };
        if let Err(error) = self.save(&book).await {
            book.claims.insert(claim.uid.clone(), prepared);
            return Err(error);
        }
        self.0.board.holding(&book);
        tracing::info!(claim = %claim, "claim {claim} is unprepared");
        Ok(())
    }

    /// Stores the devices to publish, if they changed; they must not be published before.
    pub(super) async fn offer(
        &self,
        pool: &Pool,
        published: &PublishedPool,
    ) -> Result<(), CheckpointError> {
        let mut book = self.0.book.lock().await;
        let mut offered = pool.resources();
        match &published.resources {
            Some(known) => offered.extend(known.iter().cloned()),
            None => offered.extend(book.offered.iter().cloned()),
        }
        let generation = published.generation.max(book.generation);
        if offered != book.offered || generation != book.generation {
            let mut next = book.clone();
            (next.offered, next.generation) = (offered, generation);
            self.save(&next).await?;
            *book = next;
        }
        self.0.board.published(published);
        self.0.board.holding(&book);
        Ok(())
    }

    async fn save(&self, book: &ClaimCheckpoint) -> Result<(), CheckpointError> {
        let (inside, book) = (Arc::clone(&self.0), book.clone());
        blocking(move || inside.store.save(&book)).await
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
