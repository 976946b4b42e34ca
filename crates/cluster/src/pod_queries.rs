//! Reads the pods and disruption budgets of several nodes. Nothing is evicted.

use std::collections::BTreeMap;

use k8s_openapi::api::{core::v1::Pod as PodObject, policy::v1::PodDisruptionBudget};
use kube::{Api, api::ListParams};

use super::{
    Cluster, ClusterError,
    fleet_queries::{all, selected},
};
use machinist_drain::{DisruptionBudget, Pod};

/// All pods that are on a node, by the node's name.
pub async fn pods_by_node(cluster: &Cluster) -> Result<BTreeMap<String, Vec<Pod>>, ClusterError> {
    let found = all(cluster, "the Pods", Api::<PodObject>::all, bound).await?;
    let mut pods: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
    for (node, pod) in found.into_iter().flatten() {
        pods.entry(node).or_default().push(pod);
    }
    Ok(pods)
}

/// The pods of a namespace that the label selector matches and that are on a node, each with the node's name.
pub async fn selected_pods(
    cluster: &Cluster,
    namespace: &str,
    selector: &str,
) -> Result<Vec<(String, Pod)>, ClusterError> {
    let params = ListParams {
        label_selector: Some(selector.to_owned()).filter(|selector| !selector.is_empty()),
        ..ListParams::default()
    };
    let shown = format!("the Pods of namespace {namespace}");
    let objects = |client| Api::<PodObject>::namespaced(client, namespace);
    let found = selected(cluster, &shown, params, objects, bound).await?;
    Ok(found.into_iter().flatten().collect())
}

/// The pods that are bound to a node.
pub async fn pods_of_node(cluster: &Cluster, node: &str) -> Result<Vec<Pod>, ClusterError> {
    let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let shown = format!("the Pods of Node {node}");
    let found = selected(cluster, &shown, params, Api::<PodObject>::all, bound).await?;
    let found = found.into_iter().flatten();
    let found = found.filter(|(bound_to, _)| bound_to == node);
    Ok(found.map(|(_, pod)| pod).collect())
}

fn bound(pod: PodObject) -> Option<(String, Pod)> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    Some((node?, Pod::from(&pod)))
}

/// The PodDisruptionBudgets of all namespaces.
pub async fn budgets(cluster: &Cluster) -> Result<Vec<DisruptionBudget>, ClusterError> {
    let objects = Api::<PodDisruptionBudget>::all;
    let view = |budget: PodDisruptionBudget| DisruptionBudget::from(&budget);
    all(cluster, "the PodDisruptionBudgets", objects, view).await
}
