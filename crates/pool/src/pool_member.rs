//! What a decision needs to know about one node. It is computed in one pass: a Node has many small strings, and reading
//! them again for each question would take most of the time of a decision about thousands.

use jiff::Timestamp;

use machinist_kube_api::{
    NodeUpdateState, NodeView,
    keys::{label, taint},
};

use super::{
    NodeOrder, NodePoolStatus, UnavailableCause, node_annotations::NodeAnnotations,
    node_order::OrderKey,
};

/// Effect of the taint of the update.
pub const UPDATE_TAINT_EFFECT: &str = "PreferNoSchedule";

/// A node of a pool.
#[derive(Clone, Debug)]
pub(super) struct PoolMember<'a> {
    pub(super) node: &'a NodeView,
    pub(super) status: NodePoolStatus,
    /// Whether the desired config is the target.
    pub(super) is_desired: bool,
    /// Whether current and desired config are the target.
    pub(super) is_on_target: bool,
    pub(super) is_working: bool,
    pub(super) has_taint: bool,
    /// Whether an operator leaves the node out of the rollout of the target.
    pub(super) is_skipped: bool,
    /// The custom pool that the node booted into and whose labels it does not have yet.
    pub(super) booted_pool: Option<&'a str>,
    pub(super) heartbeat: Option<Timestamp>,
    /// Its place in the order; `None` if it is on the target.
    pub(super) key: Option<OrderKey<'a>>,
    /// Why it counts against the limit.
    pub(super) cause: Option<UnavailableCause>,
}

impl<'a> PoolMember<'a> {
    /// Reads a node of a pool with this target and order. The cause is the one without grants of pools.
    pub(super) fn new(node: &'a NodeView, target: Option<&str>, order: &NodeOrder) -> Self {
        let annotations = NodeAnnotations::of(node);
        let status = NodePoolStatus::with_annotations(node, &annotations, target);
        let is_desired = target.is_some() && annotations.desired_config == target;
        let is_on_target = is_desired && annotations.current_config == target;
        Self {
            node,
            status,
            is_desired,
            is_on_target,
            is_working: annotations.state == Some(NodeUpdateState::Working),
            has_taint: has_update_taint(node),
            is_skipped: target.is_some() && annotations.skip_rollout == target,
            booted_pool: booted_pool(&annotations),
            heartbeat: node.agent_heartbeat(),
            key: (!is_on_target).then(|| order.key(node)),
            cause: UnavailableCause::with_annotations(node, &annotations, &status, target, false),
        }
    }

    /// Whether the rollout is done without the node: an operator skips it, and it has no grant that is to end first.
    pub(super) const fn is_left_out(&self) -> bool {
        let has_grant = matches!(
            self.cause,
            Some(UnavailableCause::Granted | UnavailableCause::UnlistedGrant)
        );
        self.is_skipped && !self.is_on_target && !has_grant
    }

    /// Whether it reports a failed update to the target.
    pub(super) fn is_failing_on_target(&self) -> bool {
        self.status.degraded && self.is_desired && !self.is_on_target
    }
}

/// Returns the custom pool that a node booted into directly, unless it has that pool's labels.
fn booted_pool<'a>(annotations: &NodeAnnotations<'a>) -> Option<&'a str> {
    let first = annotations.first_pivot_config?;
    let (booted, _) = first.strip_prefix("rendered-")?.rsplit_once('-')?;
    let built_in = [
        label::ROLE_MASTER,
        label::ROLE_CONTROL_PLANE,
        label::ROLE_WORKER,
    ];
    (!annotations.has_custom_pool_labels && !built_in.contains(&booted)).then_some(booted)
}

/// Returns whether a node has the taint, for its removal when machinist is uninstalled or a pool is deleted.
pub fn has_update_taint(node: &NodeView) -> bool {
    node.has_taint(taint::UPDATE_IN_PROGRESS, UPDATE_TAINT_EFFECT)
}
