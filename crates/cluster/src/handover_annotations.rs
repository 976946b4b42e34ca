//! Updates the Node's annotations when its config is handed back to machine-config-daemon.

use serde_json::json;

use super::{
    Cluster, ClusterError,
    node_commands::{DryRun, merge},
};
use machinist_kube_api::{
    DrainRequest, NodeUpdateState,
    keys::{annotation, protocol},
};

/// Marks the node as done on `config`, so that machine-config-daemon compares `config` with the
/// disk and finds nothing to do. Removes the annotations through which operators control machinist.
pub async fn handover_annotations(
    cluster: &Cluster,
    name: &str,
    config: &str,
) -> Result<(), ClusterError> {
    let change = json!({"metadata": {"annotations": {
        protocol::CURRENT_CONFIG: config,
        protocol::STATE: NodeUpdateState::Done.as_str(),
        protocol::REASON: "",
        protocol::POST_CONFIG_ACTION: "",
        protocol::DESIRED_DRAIN: DrainRequest::Uncordon(config.to_owned()).to_string(),
        annotation::BLOCKED_BY: null,
        annotation::CANCEL: null,
        annotation::CANCELLED: null,
        annotation::CANCEL_REFUSED: null,
    }}});
    merge(cluster, "change", name, DryRun::None, &change).await
}
