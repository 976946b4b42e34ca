//! Changes of Nodes by commands: conditional on the version that was read, and decided again if another client changed
//! the Node in between.

use kube::{Api, Client};
use serde_json::Value;

use super::{
    Cluster, ClusterError, fleet_queries,
    json_patch::{self, JsonPatch},
    node::{MAX_ATTEMPTS, NodeObject},
    node_commands::DryRun,
};
use machinist_kube_api::NodeView;

/// Changes a Node as `decide` requests; with `None` nothing is written. If another client changed the Node in between,
/// it is read and decided again. Returns the version that was decided on.
pub async fn change_node<E: From<ClusterError>>(
    cluster: &Cluster,
    name: &str,
    dry_run: DryRun,
    decide: impl Fn(&NodeView) -> Result<Option<JsonPatch>, E>,
) -> Result<NodeView, E> {
    let mut rounds = 0;
    loop {
        let node = fleet_queries::node(cluster, name).await?;
        let Some(patch) = decide(&node)?.filter(|_| dry_run != DryRun::Client) else {
            return Ok(node);
        };
        match patch_node(cluster, name, &patch.into_value(), dry_run).await {
            Ok(()) => return Ok(node),
            Err(error) if error.is_conflict() && rounds < MAX_ATTEMPTS => rounds += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

async fn patch_node(
    cluster: &Cluster,
    name: &str,
    operations: &Value,
    dry_run: DryRun,
) -> Result<(), ClusterError> {
    let patch = |client: Client| async move {
        let patch = json_patch::body(operations)?;
        let params = json_patch::params(dry_run == DryRun::Server);
        let nodes = Api::<NodeObject>::all(client);
        nodes.patch_metadata(name, &params, &patch).await
    };
    let object = format!("Node {name}");
    cluster.request("patch", object, patch).await.map(drop)
}
