//! Holds back updates that a controller has to grant: at most as many nodes of a pool as its limit allows update at once.
//!
//! The controller sets the grant and the desired config in one request, so that a node waits here only when another
//! client has set its desired config, or after the controller has withdrawn the grant.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use machinist_base::{error_chain::chain, reason::Reason};
use machinist_cluster::{
    ClusterError,
    node::{OwnNode, update_grant},
};
use machinist_kube_api::{NodeView, keys};
use machinist_update::reconciler::BlockReason;

/// Whether updates of this node need a grant. Clones share what is known.
#[derive(Clone, Debug)]
pub(crate) struct GrantGate {
    node: OwnNode,
    is_needed: Arc<AtomicBool>,
}

impl GrantGate {
    /// No grant is needed until a controller was found.
    pub(crate) fn new(node: OwnNode) -> Self {
        Self {
            node,
            is_needed: Arc::default(),
        }
    }

    /// Looks for a controller. If the API server does not answer, the last result stays in effect.
    pub(crate) async fn refresh(&self) -> Result<bool, ClusterError> {
        let is_needed = self.node.cluster().has_grant_controller().await?;
        let was_needed = self.is_needed.swap(is_needed, Ordering::Relaxed);
        match (was_needed, is_needed) {
            (false, true) => tracing::info!("updates of this node need a grant of the controller"),
            (true, false) => tracing::info!("no controller grants updates any more"),
            _ => {}
        }
        Ok(is_needed)
    }

    /// Looks for a controller, and logs why that is not possible.
    pub(crate) async fn try_refresh(&self) {
        if let Err(error) = self.refresh().await {
            tracing::debug!("{}", chain(&error));
        }
    }

    /// Why the update to `config` must not begin, by the last known state of the Node.
    pub(crate) fn block(&self, config: &str) -> Option<BlockReason> {
        if !self.is_needed.load(Ordering::Relaxed) {
            return None;
        }
        let snapshot = self.node.snapshots().borrow().node.clone();
        (!snapshot.is_some_and(|node| is_granted(&node, config))).then(|| BlockReason {
            reason: Reason::AwaitingGrant,
            message: format!(
                "the controller (Lease {}/{}) has not granted the update to {config}",
                keys::NAMESPACE,
                keys::CONTROLLER_LEASE
            ),
        })
    }
}

fn is_granted(node: &NodeView, config: &str) -> bool {
    update_grant(node).is_some_and(|grant| grant.target == config)
}
