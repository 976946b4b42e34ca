//! What one node counts as in its pool.

use crate::crd::{
    NodeView, State,
    names::{condition, protocol},
};

/// What a node counts as. The definitions are OpenShift's, so that both come to the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// It has a current config. Others belong to no pool's count: nobody manages them.
    pub managed: bool,
    /// It takes pods, by its conditions and its cordon. A condition that nobody wrote is a good one.
    pub ready: bool,
    /// It has what it is asked for and says so.
    pub done: bool,
    /// It is done, and what it is asked for is the pool's config.
    pub updated: bool,
    /// It does not get to another config than the one it is on.
    pub failing: bool,
    /// It says that something failed.
    pub degraded: bool,
    /// It takes no pods, or is on its way: it uses up the pool's limit.
    pub unavailable: bool,
}

impl Standing {
    /// What `node` counts as in a pool whose nodes are to be on `target`. Without one, each node's own
    /// desired config is what counts: a pool that nobody renders for has no other.
    pub fn of(node: &NodeView, target: Option<&str>) -> Self {
        let (current, desired) = (node.current_config(), node.desired_config());
        let image = |name| node.annotation(name);
        let same_image = image(protocol::CURRENT_IMAGE) == image(protocol::DESIRED_IMAGE);
        let state = node.state();
        let degraded = matches!(state, Some(State::Degraded | State::Unreconcilable));
        let same = current.is_some() && current == desired;
        let done = same && same_image && state == Some(State::Done);
        let failing = current.is_some() && !same && degraded;
        let ready = is_ready(node);
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

    /// An update of it is under way.
    pub fn updating(&self) -> bool {
        self.managed && !self.done && !self.degraded
    }
}

fn is_ready(node: &NodeView) -> bool {
    let is = |kind, good: &str| {
        node.condition(kind)
            .is_none_or(|condition| condition.status == good)
    };
    !node.is_cordoned()
        && is(condition::KUBELET_READY, "True")
        && is(condition::DISK_PRESSURE, "False")
        && is(condition::NETWORK_UNAVAILABLE, "False")
}
