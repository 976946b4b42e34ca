//! What a decision requests. An adapter carries it out and decides again.

use jiff::Timestamp;

use machinist_kube_api::NodeView;

use super::{Grant, GrantEnd, Hold, PoolCondition, PoolGrants, RolloutStates};

/// One request. Requests of one decision are independent of each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read this pool from the API server, not from a cache, and decide again on the same nodes. Only a pool that was
    /// read after the nodes proves that a grant is still listed when its node is patched.
    ReadPool(String),
    /// List all Nodes from the API server, and decide again: grants of pools that were read before are to be rebuilt.
    ListNodes,
    /// Read this Node from the API server: a pool lists a grant for it, and it is not among the nodes or has another UID.
    /// Then decide again with the result among the [node reads](super::RolloutInputs::node_reads).
    ReadNode(String),
    /// Write the record of a pool. If it succeeds, decide again on the same nodes with the returned pool; if the pool
    /// has changed (409), read it and decide again.
    WritePool(Box<PoolWrite>),
    /// Patch a Node. If it has changed (409 or 422), nothing is lost: the next decision sees why.
    PatchNode(NodePatchRequest),
}

impl Action {
    /// The place in a decision: reads, then writes of pools, then patches, each by name.
    pub(super) fn order(&self) -> (u8, &str) {
        match self {
            Self::ListNodes => (0, ""),
            Self::ReadPool(pool) => (1, pool),
            Self::ReadNode(node) => (2, node),
            Self::WritePool(write) => (3, &write.pool),
            Self::PatchNode(patch) => (4, &patch.node),
        }
    }
}

/// A write of a pool's record, which succeeds only on the version of the pool that it was decided on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolWrite {
    /// The pool.
    pub pool: String,
    /// Its UID: a precondition.
    pub uid: String,
    /// Its resource version: a precondition.
    pub resource_version: String,
    /// The grants that the annotation must hold.
    pub grants: PoolGrants,
    /// The rollouts of the pools that share the limit; `None` leaves the annotation unchanged.
    pub rollouts: Option<RolloutStates>,
    /// The grants that this write frees, with their end marks; none for those of deleted nodes and released ones. The
    /// adapter records their times in the history in the same write.
    pub freed: Vec<(Grant, Option<GrantEnd>)>,
    /// The IDs of the grants that were not listed and that Nodes have: they were given before.
    pub found: Vec<String>,
    /// Whether the grants were rebuilt from a live list of nodes. After success the pool counts as rebuilt.
    pub is_rebuild: bool,
    /// The rollouts that begin with this write.
    pub begins: Vec<RolloutEdge>,
    /// The rollouts that end with this write.
    pub ends: Vec<RolloutEdge>,
}

/// The beginning or the end of a rollout, for the history of its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutEdge {
    /// The pool.
    pub pool: String,
    /// The config.
    pub target: String,
    /// `Completed`, `Superseded` or the code with which the rollout was stopped; empty for a beginning.
    pub result: String,
    /// The nodes that a completed rollout left out, by name.
    pub skipped: Vec<String>,
}

/// A patch of a Node, which succeeds only on the version that it was decided on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePatchRequest {
    /// The Node.
    pub node: String,
    /// Its UID: a precondition.
    pub uid: String,
    /// Its resource version: a precondition.
    pub resource_version: String,
    /// The change.
    pub change: NodeChange,
}

/// A change of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// Set the grant and the desired config, and remove the taint of the update and the acknowledgement of an earlier
    /// target, in one patch.
    PlaceGrant {
        /// The value of the grant's annotation.
        grant: String,
        /// The value of `desiredConfig`.
        desired: String,
        /// Whether the node has the taint.
        removes_taint: bool,
    },
    /// Append the end mark, remove the grant if it was placed, and set the desired config back if it is the grant's.
    WithdrawGrant {
        /// The ID.
        id: String,
        /// The value of the annotation with the end marks.
        ends: String,
        /// Whether the Node has the grant: then its annotation is removed.
        is_placed: bool,
        /// Whether `desiredConfig` is set.
        resets_desired: bool,
        /// The value of `desiredConfig`; `None` removes it, because the node has no config yet.
        desired: Option<String>,
    },
    /// Set the annotation that asks the agent to cancel the update to this config.
    RequestCancel {
        /// The config.
        target: String,
    },
    /// Set `desiredConfig` back after the agent declined or cancelled.
    ResetDesired {
        /// The value; `None` removes it, because the node has no config yet.
        desired: Option<String>,
    },
    /// Add the taint `UpdateInProgress:PreferNoSchedule`.
    AddTaint,
    /// Remove that taint.
    RemoveTaint,
}

/// A patch of the Node at the version that was decided on.
pub(super) fn patch(node: &NodeView, change: NodeChange) -> Action {
    Action::PatchNode(NodePatchRequest {
        node: node.name.clone(),
        uid: node.uid.clone(),
        resource_version: node.resource_version.clone(),
        change,
    })
}

/// The decision about one pool, for its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDecision {
    /// The pool.
    pub pool: String,
    /// The config that its nodes are to run; `None` if there is none.
    pub target: Option<String>,
    /// Why nothing more is granted, most important first; empty if all nodes are updated or the next one is granted.
    pub holds: Vec<Hold>,
    /// Conditions beside those of [`conditions`](super::conditions).
    pub conditions: Vec<PoolCondition>,
    /// Sentences for the pool's administrator, such as one for a risky limit.
    pub warnings: Vec<String>,
    /// How many nodes are not on the target.
    pub pending: usize,
    /// The nodes that would be granted next, in order, at most [`MAX_NEXT_NODES`].
    pub next: Vec<String>,
    /// Whether a node was passed over because of its [blockers](super::RolloutInputs::blockers): others may let it start.
    pub is_any_blocked: bool,
}

/// How many of the next nodes a decision names.
pub const MAX_NEXT_NODES: usize = 20;

/// The decision about all pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The pools, in the order of the input.
    pub pools: Vec<PoolDecision>,
    /// The requests, in a stable order.
    pub actions: Vec<Action>,
    /// When time alone may change the decision; `None` if only events can.
    pub recheck: Option<Timestamp>,
}
