//! Reads the pods and disruption budgets of all nodes, for previews. Nothing is evicted.

use std::collections::BTreeMap;

use k8s_openapi::api::{core::v1::Pod as PodObject, policy::v1::PodDisruptionBudget};
use kube::Api;

use super::{Cluster, ClusterError, fleet_queries::all};
use machinist_drain::{DisruptionBudget, Pod};

/// All pods that are on a node, by the node's name.
pub async fn pods_by_node(cluster: &Cluster) -> Result<BTreeMap<String, Vec<Pod>>, ClusterError> {
    let placed = |pod: PodObject| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        Some((node?, Pod::from(&pod)))
    };
    let found = all(cluster, "the Pods", Api::<PodObject>::all, placed).await?;
    let mut pods: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
    for (node, pod) in found.into_iter().flatten() {
        pods.entry(node).or_default().push(pod);
    }
    Ok(pods)
}

/// The PodDisruptionBudgets of all namespaces.
pub async fn budgets(cluster: &Cluster) -> Result<Vec<DisruptionBudget>, ClusterError> {
    let objects = Api::<PodDisruptionBudget>::all;
    let view = |budget: PodDisruptionBudget| DisruptionBudget::from(&budget);
    all(cluster, "the PodDisruptionBudgets", objects, view).await
}
