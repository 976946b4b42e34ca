//! The grant on the agent's Node: finds, acknowledges and ends it.

use serde_json::{Value, json};

use super::{NodePatch, OwnNode, patches};
use crate::ClusterError;
use machinist_kube_api::{NodeView, keys::annotation};
use machinist_pool::{Grant, GrantEnd, GrantKind, grant_ends, open_grant, with_end};

/// Returns the grant of an update that this Node has and that has not ended; `None` if there is none. A grant that
/// cannot be parsed permits nothing, and one for an earlier Node of this name is not for this one.
pub fn update_grant(view: &NodeView) -> Option<Grant> {
    let grant = match open_grant(view) {
        Ok(grant) => grant?,
        Err(error) => {
            tracing::warn!("{}", machinist_base::error_chain::chain(&error));
            return None;
        }
    };
    (grant.uid == view.uid && grant.kind == GrantKind::Config).then_some(grant)
}

/// The ID of the grant that is to be acknowledged before the node is disrupted by the update to `config`; `None` if it was,
/// or if there is none.
pub(super) fn unacknowledged(view: &NodeView, config: &str) -> Option<String> {
    let grant = update_grant(view)?;
    (!grant.acknowledged && grant.target == config).then_some(grant.id)
}

/// Acknowledges a grant without a cordon. The controller's withdrawal tests the same version, so that only one of both
/// requests succeeds.
pub(super) fn acknowledge(view: &NodeView, id: &str) -> NodePatch {
    let mut operations = patches::unchanged(view);
    operations.push(patches::acknowledgement(id));
    NodePatch::Operations(Value::Array(operations))
}

/// Appends the end mark of the grant on this Node, and removes the grant. The end mark is what frees its slot.
fn end(view: &NodeView, mark: GrantEnd) -> Option<NodePatch> {
    let path = |name| patches::pointer("/metadata/annotations", name);
    let ends = grant_ends(view).ok()?;
    let mut operations = patches::unchanged(view);
    let value = with_end(&ends, mark);
    operations.push(json!({"op": "add", "path": path(annotation::GRANT_ENDS), "value": value}));
    for name in [annotation::GRANT, annotation::GRANT_ACKNOWLEDGED] {
        if view.annotations.contains_key(name) {
            operations.push(json!({"op": "remove", "path": path(name)}));
        }
    }
    Some(NodePatch::Operations(Value::Array(operations)))
}

impl OwnNode {
    /// Acknowledges the grant of the update to `config` before a step that disrupts the node without a cordon. Decides
    /// on a live read. Returns whether the Node has that grant; `None` if the Node does not exist.
    pub async fn acknowledge_grant(&self, config: &str) -> Result<Option<bool>, ClusterError> {
        self.settle(|view| match update_grant(view) {
            Some(grant) if grant.target != config => Err(false),
            Some(grant) if grant.acknowledged => Err(true),
            Some(grant) => Ok((acknowledge(view, &grant.id), true)),
            None => Err(false),
        })
        .await
    }

    /// Ends the grant with this ID, if the Node `view` still has it. A conflict is an error: the next view decides again.
    pub async fn end_grant(&self, view: &NodeView, mark: GrantEnd) -> Result<(), ClusterError> {
        let grant = update_grant(view).filter(|grant| grant.id == mark.id);
        let change = grant.and_then(|_| end(view, mark));
        match change {
            Some(change) => self.change(&change).await.map(drop),
            None => Ok(()),
        }
    }
}
