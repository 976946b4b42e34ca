//! Starts dynamic resource allocation: connects the kubelet's DRA driver and the ResourceSlices.

use std::sync::Arc;

use tokio::sync::watch;

use machinist_base::shutdown::Tasks;
use machinist_cluster::{
    node::OwnNode, resource_claims::ClusterClaims, resource_slices::SliceReconciler,
};
use machinist_device_plugins::device_service::DevicesHandle;

/// Reported reason why there are no claims without a cluster.
const NO_CLUSTER_REASON: &str = "resource claims require a cluster: set `source: cluster`";

/// Starts dynamic resource allocation if the agent belongs to a cluster.
pub(super) fn start(devices: &DevicesHandle, node: Option<&OwnNode>, tasks: &Tasks) {
    let Some(node) = node else {
        return devices.without_claims(NO_CLUSTER_REASON);
    };
    let cluster = node.cluster().clone();
    let (tell, published) = watch::channel(devices.published());
    let claims = Arc::new(ClusterClaims::new(cluster.clone()));
    let Some(wish) = devices.serve_claims(node.name(), claims, published, tasks) else {
        return;
    };
    let slices = SliceReconciler::new(cluster, node.clone(), wish, tell);
    tasks.spawn("slices", slices.reconcile_slices(tasks.token()));
}
