//! Finds stale claims. The kubelet unprepares each claim in its own checkpoint, but that checkpoint
//! may be lost.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::kubelet_call::{ClaimCommand, KubeletCall};
use machinist_base::error_chain::chain;
use machinist_device::dra::{
    claim::ClaimName,
    claim_checkpoint::PreparedClaim,
    traits::{ClaimReader, InUseDevices},
};

/// Searches for stale claims.
#[derive(Clone, Debug)]
pub(super) struct ClaimGc {
    pub(super) claims: Arc<dyn ClaimReader>,
    pub(super) in_use: Arc<dyn InUseDevices>,
    pub(super) calls: mpsc::Sender<KubeletCall>,
}

impl ClaimGc {
    /// Whether the cluster no longer has the claim. If the cluster cannot be asked, it counts as
    /// existing.
    pub(super) async fn is_deleted(&self, claim: &ClaimName) -> bool {
        match self.claims.get(&claim.namespace, &claim.name).await {
            Ok(found) => found.is_none_or(|found| found.uid != claim.uid),
            Err(error) => {
                tracing::debug!(
                    "failed to check whether claim {claim} still exists: {}",
                    chain(&error)
                );
                false
            }
        }
    }

    /// Unprepares claims whose object was deleted and whose devices no container has.
    pub(super) async fn run(self, prepared: Vec<PreparedClaim>) {
        for one in prepared {
            if !self.is_deleted(&one.claim).await {
                continue;
            }
            let Ok(holders) = self.in_use.holders().await else {
                return;
            };
            let used = |device: &str| holders.claim_holder(device).is_some();
            if one.devices.iter().any(|held| used(&held.device)) {
                continue;
            }
            let call = KubeletCall::new(ClaimCommand::Forget(one.claim));
            // The agent is stopping.
            if self.calls.send(call).await.is_err() {
                return;
            }
        }
    }
}
