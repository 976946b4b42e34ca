//! Cordons and uncordons the agent's Node, and tracks who owns the cordon.

use std::sync::Arc;

use super::{OwnNode, grant, patches};
use crate::ClusterError;
use machinist_kube_api::NodeView;

/// Maximum number of attempts. The kubelet and controllers write to a Node all the time, and each
/// write costs one attempt; this many conflicts in a row are not normal.
pub(crate) const MAX_ATTEMPTS: usize = 8;

/// Owner of the cordon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cordon {
    /// Cordoned by machinist, now or earlier; machinist uncordons it.
    ByMachinist,
    /// Cordoned earlier by another client; machinist leaves it.
    ByAnother,
    /// The Node has no grant, so that it was not cordoned.
    NotGranted,
    /// The Node does not exist.
    NoNode,
}

/// Result of uncordoning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uncordon {
    /// The node is uncordoned.
    Done,
    /// An operator asked to keep the node cordoned; the cordon is theirs from now on.
    KeptByOperator,
    /// Machinist holds no cordon; the node was left unchanged.
    NotOurs,
    /// The Node does not exist.
    NoNode,
}

impl OwnNode {
    /// Cordons the node and, in the same patch, annotates it as cordoned by machinist and acknowledges its grant for the
    /// update to `to`. An existing cordon without this annotation stays with its owner. With `needs_grant`, a node without a grant is not
    /// cordoned.
    ///
    /// Decides on a live read, never on the watch, and reads again after a conflict. Idempotent, so
    /// it may be repeated after any crash.
    pub async fn cordon(&self, to: &str, needs_grant: bool) -> Result<Cordon, ClusterError> {
        self.settle(|view| {
            if needs_grant && grant::update_grant(view).is_none() {
                return Err(Cordon::NotGranted);
            }
            let owner = match view.has_cordon_mark() || !view.is_cordoned() {
                true => Cordon::ByMachinist,
                false => Cordon::ByAnother,
            };
            let unacknowledged = grant::unacknowledged(view, to);
            match (view.is_cordoned(), unacknowledged) {
                (true, None) => Err(owner),
                (true, Some(id)) => Ok((grant::acknowledge(view, &id), owner)),
                (false, id) => Ok((patches::cordon(view, id.as_deref()), owner)),
            }
        })
        .await
        .map(|settled| settled.unwrap_or(Cordon::NoNode))
    }

    /// Uncordons the node if machinist cordoned it and no operator asked to keep the cordon.
    pub async fn uncordon(&self) -> Result<Uncordon, ClusterError> {
        self.settle(|view| match (view.has_cordon_mark(), view.keeps_cordon()) {
            (false, _) => Err(Uncordon::NotOurs),
            (true, true) => Ok((patches::uncordon(view, false), Uncordon::KeptByOperator)),
            (true, false) => Ok((patches::uncordon(view, true), Uncordon::Done)),
        })
        .await
        .map(|settled| settled.unwrap_or(Uncordon::NoNode))
    }

    /// Reads, decides and writes; starts over after a conflict. None if the Node does not exist.
    pub(super) async fn settle<T>(
        &self,
        decide: impl Fn(&NodeView) -> Result<(super::NodePatch, T), T>,
    ) -> Result<Option<T>, ClusterError> {
        let mut rounds = 0;
        loop {
            let Some(view): Option<Arc<NodeView>> = self.read().await? else {
                return Ok(None);
            };
            let (change, outcome) = match decide(&view) {
                Ok(change) => change,
                Err(settled) => return Ok(Some(settled)),
            };
            match self.change(&change).await {
                Ok(_) => return Ok(Some(outcome)),
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) if error.is_conflict() && rounds < MAX_ATTEMPTS => rounds += 1,
                Err(error) => return Err(error),
            }
        }
    }
}
