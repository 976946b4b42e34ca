//! Classifies one node within its pool.

use machinist_kube_api::{NodeUpdateState, NodeView};

use super::node_summary::NodeSummary;

/// The state of a node within its pool. The definitions are OpenShift's, so that both compute the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePoolStatus {
    /// It has a current config. Nodes without one are unmanaged, and no pool counts them.
    pub managed: bool,
    /// It is schedulable: it is not cordoned, and its conditions are good. A missing condition counts as good.
    pub ready: bool,
    /// It is on its desired config and image, and its state is `Done`.
    pub done: bool,
    /// It is done, and its config is the pool's target.
    pub updated: bool,
    /// It is degraded and has not reached its desired config.
    pub failing: bool,
    /// It reports the state `Degraded` or `Unreconcilable`.
    pub degraded: bool,
    /// It is not ready, or its update is in progress: it counts against the pool's limit.
    pub unavailable: bool,
}

impl NodePoolStatus {
    /// Classifies `node` in a pool with the target config `target`. Without a target, which is the case in a pool
    /// that no controller renders for, it compares the node with its own desired config.
    pub fn of(node: &NodeView, target: Option<&str>) -> Self {
        Self::with_summary(&NodeSummary::of(node), target)
    }

    pub(super) fn with_summary(node: &NodeSummary<&str>, target: Option<&str>) -> Self {
        let (current, desired) = (node.current_config, node.desired_config);
        let same_image = node.current_image == node.desired_image;
        let state = node.state;
        let degraded = matches!(
            state,
            Some(NodeUpdateState::Degraded | NodeUpdateState::Unreconcilable)
        );
        let same = current.is_some() && current == desired;
        let done = same && same_image && state == Some(NodeUpdateState::Done);
        let failing = current.is_some() && !same && degraded;
        let ready = node.is_ready;
        Self {
            managed: current.is_some(),
            ready,
            done,
            updated: done && target.is_none_or(|target| current == Some(target)),
            failing,
            degraded,
            unavailable: !ready || (!done && !failing),
        }
    }

    /// Returns whether its update is in progress.
    pub fn updating(&self) -> bool {
        self.managed && !self.done && !self.degraded
    }
}
