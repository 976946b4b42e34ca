//! Reads nodes, pools and their published status for the command line. Nothing is watched or
//! written.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
};
use serde::de::DeserializeOwned;

use super::{
    Cluster, ClusterError,
    machine_config_node::{objects, status_of},
    node::NodeObject,
    resource,
};
use machinist_kube_api::{
    MachineConfigNodeStatus, MachineConfigPoolSpec, MachineConfigPoolStatus, NodeView, PoolView,
    keys,
};

/// Page size of lists, same as kubectl's.
const LIST_PAGE_ITEMS: u32 = 500;

/// An event that machinist published about a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    /// When it was last observed.
    pub last: Option<Timestamp>,
    /// `Normal` or `Warning`.
    pub weight: String,
    /// The reason, as a stable code.
    pub reason: String,
    /// The description.
    pub note: String,
    /// Number of occurrences.
    pub count: u32,
}

/// All MachineConfigPools, sorted by name. 404 if the kind does not exist.
pub async fn pools(cluster: &Cluster) -> Result<Vec<PoolView>, ClusterError> {
    let kind = resource("MachineConfigPool", "machineconfigpools");
    let objects = |client| Api::all_with(client, &kind);
    let mut pools: Vec<PoolView> =
        all(cluster, "the MachineConfigPools", objects, pool_view).await?;
    pools.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(pools)
}

/// One MachineConfigPool; `None` if it does not exist.
pub async fn pool(cluster: &Cluster, name: &str) -> Result<Option<PoolView>, ClusterError> {
    let kind = &resource("MachineConfigPool", "machineconfigpools");
    let get = |client| async move {
        let pools = Api::<DynamicObject>::all_with(client, kind);
        pools.get_opt(name).await
    };
    let object = format!("MachineConfigPool {name}");
    let found = cluster.request("get", object, get).await?;
    Ok(found.map(pool_view))
}

/// Converts a pool. Fields that cannot be parsed are treated as absent: a pool of a newer API
/// version is better shown partially than not at all.
pub fn pool_view(found: DynamicObject) -> PoolView {
    let metadata = found.metadata;
    let mut unread = Vec::new();
    let spec = read::<MachineConfigPoolSpec>(&found.data, "spec", &mut unread);
    let status = read::<MachineConfigPoolStatus>(&found.data, "status", &mut unread);
    let has_annotations = metadata.annotations.is_some();
    let mut annotations = metadata.annotations.unwrap_or_default();
    annotations.retain(|name, _| NodeView::is_kept_annotation(name));
    PoolView {
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        resource_version: metadata.resource_version.unwrap_or_default(),
        generation: metadata.generation,
        annotations,
        has_annotations,
        created: metadata.creation_timestamp.map(|time| time.0),
        spec,
        status,
        unread,
    }
}

fn read<T: DeserializeOwned + Default>(
    of: &serde_json::Value,
    part: &str,
    unread: &mut Vec<String>,
) -> T {
    let Some(found) = of.get(part) else {
        return T::default();
    };
    T::deserialize(found).unwrap_or_else(|error| {
        unread.push(format!("skipping {part}: cannot parse it: {error}"));
        T::default()
    })
}

/// All MachineConfigs, also rendered ones. 404 if the kind does not exist.
pub async fn machine_configs(cluster: &Cluster) -> Result<Vec<DynamicObject>, ClusterError> {
    let kind = resource("MachineConfig", "machineconfigs");
    let objects = |client| Api::all_with(client, &kind);
    all(cluster, "the MachineConfigs", objects, |found| found).await
}

/// All Nodes, sorted by name.
pub async fn nodes(cluster: &Cluster) -> Result<Vec<NodeView>, ClusterError> {
    let objects = Api::<NodeObject>::all;
    let mut nodes: Vec<NodeView> = all(cluster, "the Nodes", objects, NodeView::from).await?;
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(nodes)
}

/// One Node.
pub async fn node(cluster: &Cluster, name: &str) -> Result<NodeView, ClusterError> {
    let get = |client| async move { Api::<NodeObject>::all(client).get(name).await };
    let found = cluster.request("get", format!("Node {name}"), get).await?;
    Ok(found.into())
}

/// Update status of all nodes, by node name. 404 if the kind does not exist.
pub async fn progress(
    cluster: &Cluster,
) -> Result<BTreeMap<String, MachineConfigNodeStatus>, ClusterError> {
    let named = |it: DynamicObject| Some((it.metadata.name.clone()?, status_of(&it)?));
    let found: Vec<_> = all(cluster, "the MachineConfigNodes", objects, named).await?;
    Ok(found.into_iter().flatten().collect())
}

/// Events of machinist about a Node, newest first.
pub async fn events(cluster: &Cluster, name: &str) -> Result<Vec<NodeEvent>, ClusterError> {
    let ours = |event: &Event| {
        let by = event.reporting_controller.as_deref().unwrap_or_default();
        by == keys::FIELD_MANAGER || by.starts_with(keys::MACHINIST_PREFIX)
    };
    let list = |client| async move {
        // Events about cluster-scoped objects are in the `default` namespace.
        let of_node = format!("regarding.kind=Node,regarding.name={name}");
        let params = ListParams::default().fields(&of_node);
        Api::<Event>::namespaced(client, "default")
            .list(&params)
            .await
    };
    let object = format!("the events of Node {name}");
    let found = cluster.request("list", object, list).await?;
    let mut events: Vec<_> = found.items.into_iter().filter(ours).map(event).collect();
    events.sort_by_key(|event| std::cmp::Reverse(event.last));
    Ok(events)
}

fn event(found: Event) -> NodeEvent {
    let series = found.series;
    let last = series.as_ref().map(|series| series.last_observed_time.0);
    let count = series.map_or(1, |series| series.count);
    let first = found.event_time.map(|time| time.0);
    NodeEvent {
        last: last.or(first),
        weight: found.type_.unwrap_or_default(),
        reason: found.reason.unwrap_or_default(),
        note: found.note.unwrap_or_default(),
        count: u32::try_from(count).unwrap_or(1),
    }
}

/// Lists all objects of a kind, in pages. Each page is reduced to `view` before the next one is read: managed fields
/// and images take most of the memory of a Node.
pub(super) async fn all<K, V>(
    cluster: &Cluster,
    shown: &'static str,
    api: impl Fn(Client) -> Api<K> + Send + Sync,
    view: impl Fn(K) -> V,
) -> Result<Vec<V>, ClusterError>
where
    K: Clone + DeserializeOwned + std::fmt::Debug + Send,
{
    selected(cluster, shown, ListParams::default(), api, view).await
}

/// The same for the objects that the parameters select.
pub(super) async fn selected<K, V>(
    cluster: &Cluster,
    shown: &str,
    params: ListParams,
    api: impl Fn(Client) -> Api<K> + Send + Sync,
    view: impl Fn(K) -> V,
) -> Result<Vec<V>, ClusterError>
where
    K: Clone + DeserializeOwned + std::fmt::Debug + Send,
{
    let mut found = Vec::new();
    let mut params = params.limit(LIST_PAGE_ITEMS);
    loop {
        let (api, asked) = (&api, &params);
        let list = |client| {
            let objects = api(client);
            async move { objects.list(asked).await }
        };
        let part = cluster.request("list", shown, list).await?;
        found.extend(part.items.into_iter().map(&view));
        match part.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}
