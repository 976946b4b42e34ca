//! What a decision needs to know about one node. It is computed in one pass: a Node has many small strings, and reading
//! them again for each question would take most of the time of a decision about thousands.

use jiff::Timestamp;

use machinist_kube_api::{NodeUpdateState, NodeView, keys::label};

use super::{NodeFacts, NodePoolStatus, UnavailableCause, node_summary::NodeSummary};

/// A node of a pool.
#[derive(Clone, Debug)]
pub(super) struct PoolMember<'a> {
    pub(super) node: &'a NodeView,
    pub(super) facts: &'a NodeFacts,
    pub(super) status: NodePoolStatus,
    /// Whether the desired config is the target.
    pub(super) is_desired: bool,
    /// Whether current and desired config are the target.
    pub(super) is_on_target: bool,
    pub(super) is_working: bool,
    /// Whether it has a desired config; a Node that was deleted and created again during an update has none.
    pub(super) has_desired_config: bool,
    pub(super) has_taint: bool,
    /// Whether an operator leaves the node out of the rollout of the target.
    pub(super) is_skipped: bool,
    /// The custom pool that the node booted into and whose labels it does not have yet.
    pub(super) booted_pool: Option<&'a str>,
    pub(super) heartbeat: Option<Timestamp>,
    pub(super) zone: Option<&'a str>,
    /// Why it counts against the limit.
    pub(super) cause: Option<UnavailableCause>,
}

impl<'a> PoolMember<'a> {
    /// Reads a node of a pool with this target. The cause is the one without grants of pools.
    pub(super) fn new(node: &'a NodeView, facts: &'a NodeFacts, target: Option<&str>) -> Self {
        let summary = facts.summary();
        let status = NodePoolStatus::with_summary(&summary, target);
        let is_desired = target.is_some() && summary.desired_config == target;
        let is_on_target = is_desired && summary.current_config == target;
        Self {
            node,
            facts,
            status,
            is_desired,
            is_on_target,
            is_working: summary.state == Some(NodeUpdateState::Working),
            has_desired_config: summary.desired_config.is_some(),
            has_taint: summary.has_update_taint,
            is_skipped: target.is_some() && summary.skip_rollout == target,
            booted_pool: booted_pool(&summary),
            heartbeat: summary.heartbeat,
            zone: summary.zone,
            cause: UnavailableCause::of_ungranted(&summary, facts.has_open_grant, &status, target),
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
fn booted_pool<'a>(node: &NodeSummary<&'a str>) -> Option<&'a str> {
    let first = node.first_pivot_config?;
    let (booted, _) = first.strip_prefix("rendered-")?.rsplit_once('-')?;
    let built_in = [
        label::ROLE_MASTER,
        label::ROLE_CONTROL_PLANE,
        label::ROLE_WORKER,
    ];
    (!node.has_custom_pool_labels && !built_in.contains(&booted)).then_some(booted)
}
