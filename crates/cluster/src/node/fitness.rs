//! Decides whether a Node has the start-up taint.

use machinist_kube_api::{NodeView, Taint, keys};

pub(super) const NO_SCHEDULE: &str = "NoSchedule";

/// Whether this is the start-up taint.
pub(super) fn is_our_taint(taint: &Taint) -> bool {
    taint.key == keys::taint::NOT_READY && taint.effect == NO_SCHEDULE
}

/// Whether a Node is fit for pods, according to its gates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFitness {
    /// UID of the Node for which the gates were evaluated.
    pub uid: String,
    /// Whether these gates are open.
    pub fit: bool,
}

impl NodeFitness {
    /// Whether the Node must have the start-up taint: from its registration until it is fit for
    /// the first time. A Node without the taint that has a readiness condition has been fit
    /// before. None if nothing changes.
    pub(super) fn start_up_taint(&self, view: &NodeView) -> Option<bool> {
        match self.fit && self.uid == view.uid {
            true => Some(false),
            false if view.spec.taints.iter().any(is_our_taint) => None,
            false => view
                .condition(keys::condition::READY)
                .is_none()
                .then_some(true),
        }
    }
}
