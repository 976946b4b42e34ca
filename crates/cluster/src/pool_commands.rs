//! Changes of MachineConfigPools by commands: conditional on the version that was read, and decided again if another
//! client changed the pool in between.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client, api::DynamicObject};
use serde_json::Value;

use super::{
    Cluster, ClusterError, fleet_queries,
    json_patch::{self, JsonPatch},
    node::MAX_ATTEMPTS,
    node_commands::DryRun,
    resource,
};
use machinist_kube_api::PoolView;

/// Changes a pool as `decide` requests; with `None` nothing is written. If another client changed the pool in between,
/// it is read and decided again. Returns the version that was decided on; `None` if the pool does not exist.
pub async fn change_pool<E: From<ClusterError>>(
    cluster: &Cluster,
    name: &str,
    dry_run: DryRun,
    decide: impl Fn(&PoolView) -> Result<Option<JsonPatch>, E>,
) -> Result<Option<PoolView>, E> {
    let mut rounds = 0;
    loop {
        let Some(pool) = fleet_queries::pool(cluster, name).await? else {
            return Ok(None);
        };
        let Some(patch) = decide(&pool)?.filter(|_| dry_run != DryRun::Client) else {
            return Ok(Some(pool));
        };
        match patch_pool(cluster, name, &patch.into_value(), dry_run).await {
            Ok(_) => return Ok(Some(pool)),
            Err(error) if error.is_conflict() && rounds < MAX_ATTEMPTS => rounds += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Patches a pool with operations of a JSON patch; 422 if a test among them fails.
pub async fn patch_pool(
    cluster: &Cluster,
    name: &str,
    operations: &Value,
    dry_run: DryRun,
) -> Result<PoolView, ClusterError> {
    let patch = |client: Client| async move {
        let patch = json_patch::body(operations)?;
        let params = json_patch::params(dry_run == DryRun::Server);
        let kind = resource("MachineConfigPool", "machineconfigpools");
        let pools = Api::<DynamicObject>::all_with(client, &kind);
        pools.patch(name, &params, &patch).await
    };
    let object = format!("MachineConfigPool {name}");
    let patched = cluster.request("patch", object, patch).await?;
    Ok(fleet_queries::pool_view(patched))
}

/// Whether a MachineConfig exists. Only its metadata is read.
pub async fn has_config(cluster: &Cluster, name: &str) -> Result<bool, ClusterError> {
    let get = |client: Client| async move {
        let kind = resource("MachineConfig", "machineconfigs");
        let configs = Api::<DynamicObject>::all_with(client, &kind);
        let found = configs.get_metadata_opt(name).await?;
        Ok(found.map(|it| it.metadata))
    };
    let object = format!("MachineConfig {name}");
    let found: Option<ObjectMeta> = cluster.request("get", object, get).await?;
    Ok(found.is_some())
}
