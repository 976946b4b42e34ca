//! Node operations for the command line: select nodes by name or label, cordon and uncordon them.
//!
//! A cordon set here carries no agent annotation, so no agent removes it.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Cluster, ClusterError};
use machinist_kube_api::{
    DrainRequest, NodeUpdateState,
    keys::{FIELD_MANAGER, annotation, protocol},
};

/// The operator's desired scheduling state for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CordonRequest {
    /// Cordon: no new pods.
    Cordon {
        /// Also ask agents to keep the cordon after an update.
        keep: bool,
    },
    /// Uncordon, regardless of which client set the cordon.
    Uncordon,
}

/// Dry-run mode, as in kubectl.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DryRun {
    /// Apply the change.
    #[default]
    None,
    /// Send no request that writes.
    Client,
    /// Send the request with `dryRun=All`: the server validates it and does not persist it.
    Server,
}

/// State of a node before the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreviousCordon {
    /// The node already had the desired state; no request was sent.
    pub settled: bool,
    /// An agent cordoned the node for an update and will uncordon it.
    pub held_by_agent: bool,
    /// The agent's cordon annotation exists although the node is schedulable: another client
    /// uncordoned it.
    pub stale_mark: bool,
    /// The annotation that asks agents to keep the cordon is set.
    pub kept: bool,
}

/// Names of the nodes that match a label selector, in the server's order.
pub async fn selected(cluster: &Cluster, selector: &str) -> Result<Vec<String>, ClusterError> {
    let list = |client| async move {
        let params = ListParams::default().labels(selector);
        Api::<Node>::all(client).list_metadata(&params).await
    };
    let object = format!("the Nodes with {selector}");
    let found = cluster.request("list", object, list).await?;
    let names = found
        .items
        .into_iter()
        .filter_map(|node| node.metadata.name);
    Ok(names.collect())
}

/// Checks that a node of this name exists.
pub async fn check_node_exists(cluster: &Cluster, name: &str) -> Result<(), ClusterError> {
    let get = |client| async move { Api::<Node>::all(client).get_metadata(name).await };
    let found = cluster.request("get", format!("Node {name}"), get).await;
    found.map(drop)
}

/// Brings a node to the desired state with one request, or with none if it already has it.
pub async fn apply_cordon(
    cluster: &Cluster,
    name: &str,
    wish: CordonRequest,
    dry_run: DryRun,
) -> Result<PreviousCordon, ClusterError> {
    let object = format!("Node {name}");
    let get = |client| async move { Api::<Node>::all(client).get(name).await };
    let node = cluster.request("get", object.as_str(), get).await?;
    let before = judge(&node, wish);
    if before.settled || dry_run == DryRun::Client {
        return Ok(before);
    }
    let act = match wish {
        CordonRequest::Cordon { .. } => "cordon",
        CordonRequest::Uncordon => "uncordon",
    };
    merge(cluster, act, name, dry_run, &change(wish, before)).await?;
    Ok(before)
}

/// Patches a Node with one JSON merge patch.
pub(super) async fn merge(
    cluster: &Cluster,
    act: &'static str,
    name: &str,
    dry_run: DryRun,
    change: &Value,
) -> Result<(), ClusterError> {
    let patch = |client| async move {
        let params = PatchParams {
            dry_run: dry_run == DryRun::Server,
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let nodes = Api::<Node>::all(client);
        nodes
            .patch_metadata(name, &params, &Patch::Merge(change))
            .await
    };
    let asked = cluster.request(act, format!("Node {name}"), patch);
    asked.await.map(drop)
}

fn judge(node: &Node, wish: CordonRequest) -> PreviousCordon {
    let annotations = node.metadata.annotations.as_ref();
    let has = |name| annotations.is_some_and(|all| all.contains_key(name));
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let kept = has(annotation::KEEP_CORDONED);
    PreviousCordon {
        settled: match wish {
            CordonRequest::Cordon { keep } => cordoned && (kept || !keep),
            CordonRequest::Uncordon => !cordoned && !kept,
        },
        held_by_agent: cordoned && has(annotation::CORDONED),
        stale_mark: !cordoned && has(annotation::CORDONED),
        kept,
    }
}

/// Builds the minimal merge patch; `null` removes a field.
fn change(wish: CordonRequest, before: PreviousCordon) -> Value {
    match wish {
        // The agent's annotation is stale: this cordon belongs to the operator alone.
        CordonRequest::Cordon { keep: false } if before.stale_mark => json!({
            "metadata": {"annotations": {annotation::CORDONED: null}},
            "spec": {"unschedulable": true},
        }),
        CordonRequest::Cordon { keep: false } => json!({"spec": {"unschedulable": true}}),
        CordonRequest::Cordon { keep: true } => json!({
            "metadata": {"annotations": {annotation::KEEP_CORDONED: "true"}},
            "spec": {"unschedulable": true},
        }),
        // Also remove the agent's annotation, so that it cannot claim a later cordon.
        CordonRequest::Uncordon => json!({
            "metadata": {"annotations": {
                annotation::KEEP_CORDONED: null,
                annotation::CORDONED: null,
            }},
            "spec": {"unschedulable": null},
        }),
    }
}

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
