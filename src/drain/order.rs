//! The order in which pods are evicted.

use super::Pod;

/// Priority of the class `system-cluster-critical`.
pub const CLUSTER_CRITICAL: i32 = 2_000_000_000;

/// Priority of the class `system-node-critical`.
pub const NODE_CRITICAL: i32 = 2_000_001_000;

/// Pods that are evicted together. A tier starts when the previous one is gone, so that network and
/// storage pods keep running while the others end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// All other pods.
    #[default]
    Ordinary,
    /// `system-cluster-critical` and above.
    ClusterCritical,
    /// `system-node-critical` and above.
    NodeCritical,
}

impl Tier {
    /// The tier of a pod.
    pub fn of(pod: &Pod) -> Self {
        match pod.priority {
            NODE_CRITICAL.. => Self::NodeCritical,
            CLUSTER_CRITICAL.. => Self::ClusterCritical,
            _ => Self::Ordinary,
        }
    }
}

/// Pods by tier, and within a tier by namespace and name, as the API server lists them.
pub fn in_order(mut pods: Vec<Pod>) -> Vec<Pod> {
    pods.sort_by(|one, other| (Tier::of(one), &one.id).cmp(&(Tier::of(other), &other.id)));
    pods
}
