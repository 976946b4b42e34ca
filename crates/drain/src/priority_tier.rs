//! The order in which pods are evicted.

use super::Pod;

/// Priority of the class `system-cluster-critical`.
pub const CLUSTER_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Priority of the class `system-node-critical`.
pub const NODE_CRITICAL_PRIORITY: i32 = 2_000_001_000;

/// Pods that are evicted together. A tier starts when the previous one is gone, so that network and
/// storage pods keep running while the others end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PriorityTier {
    /// All other pods.
    #[default]
    Ordinary,
    /// `system-cluster-critical` and above.
    ClusterCritical,
    /// `system-node-critical` and above.
    NodeCritical,
}

impl PriorityTier {
    /// The tier of a pod.
    pub fn of(pod: &Pod) -> Self {
        match pod.priority {
            NODE_CRITICAL_PRIORITY.. => Self::NodeCritical,
            CLUSTER_CRITICAL_PRIORITY.. => Self::ClusterCritical,
            _ => Self::Ordinary,
        }
    }
}

/// Pods by tier, and within a tier by namespace and name, as the API server lists them.
pub fn in_order(mut pods: Vec<Pod>) -> Vec<Pod> {
    pods.sort_by(|one, other| {
        (PriorityTier::of(one), &one.id).cmp(&(PriorityTier::of(other), &other.id))
    });
    pods
}
