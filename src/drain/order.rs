//! Who goes first.

use super::Pod;

/// Priority of the class `system-cluster-critical`.
pub const CLUSTER_CRITICAL: i32 = 2_000_000_000;

/// Priority of the class `system-node-critical`.
pub const NODE_CRITICAL: i32 = 2_000_001_000;

/// Pods that leave together. A tier begins when the one before is gone: what keeps the node's network
/// and storage going is still there while the others end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Everybody else.
    #[default]
    Ordinary,
    /// `system-cluster-critical` and above.
    ClusterCritical,
    /// `system-node-critical` and above.
    NodeCritical,
}

impl Tier {
    /// In which tier a pod leaves.
    pub fn of(pod: &Pod) -> Self {
        match pod.priority {
            NODE_CRITICAL.. => Self::NodeCritical,
            CLUSTER_CRITICAL.. => Self::ClusterCritical,
            _ => Self::Ordinary,
        }
    }
}

/// Pods tier by tier; in a tier as the API server lists them, by namespace and name.
pub fn in_order(mut pods: Vec<Pod>) -> Vec<Pod> {
    pods.sort_by(|one, other| (Tier::of(one), &one.id).cmp(&(Tier::of(other), &other.id)));
    pods
}
