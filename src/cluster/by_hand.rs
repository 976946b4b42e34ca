//! Nodes as people handle them: by name or label, cordoned and given back.
//!
//! A person's cordon carries no mark of ours, so that no agent lifts it.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Cluster, ClusterError};
use crate::crd::names::{MANAGER, annotation};

/// What a person wants of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// No new pods.
    Cordon {
        /// And no agent shall change that after an update.
        keep: bool,
    },
    /// New pods, whatever was wanted before.
    Uncordon,
}

/// How much of it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DryRun {
    /// All of it.
    #[default]
    None,
    /// Nothing is sent that writes.
    Client,
    /// It is sent, and the server does not keep it.
    Server,
}

/// How a node stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    /// It was as it is wanted: nothing was sent.
    pub settled: bool,
    /// An agent holds it cordoned for an update, and will lift that.
    pub held_by_agent: bool,
    /// An agent's mark is there without a cordon: somebody has lifted that.
    pub stale_mark: bool,
    /// A person's word that it stays cordoned is there.
    pub kept: bool,
}

/// The names of the nodes that a label selector means, as the server orders them.
pub async fn selected(cluster: &Cluster, selector: &str) -> Result<Vec<String>, ClusterError> {
    let list = |client| async move {
        let params = ListParams::default().labels(selector);
        Api::<Node>::all(client).list_metadata(&params).await
    };
    let object = format!("the Nodes with {selector}");
    let found = cluster.ask("list", object, list).await?;
    let names = found
        .items
        .into_iter()
        .filter_map(|node| node.metadata.name);
    Ok(names.collect())
}

/// Whether there is a node of that name.
pub async fn find(cluster: &Cluster, name: &str) -> Result<(), ClusterError> {
    let get = |client| async move { Api::<Node>::all(client).get_metadata(name).await };
    let found = cluster.ask("get", format!("Node {name}"), get).await;
    found.map(drop)
}

/// Makes a node as a person wants it, in one request; in none where it is already.
pub async fn set(
    cluster: &Cluster,
    name: &str,
    wish: Wish,
    dry_run: DryRun,
) -> Result<Before, ClusterError> {
    let object = format!("Node {name}");
    let get = |client| async move { Api::<Node>::all(client).get(name).await };
    let node = cluster.ask("get", object.as_str(), get).await?;
    let before = judge(&node, wish);
    if before.settled || dry_run == DryRun::Client {
        return Ok(before);
    }
    let act = match wish {
        Wish::Cordon { .. } => "cordon",
        Wish::Uncordon => "uncordon",
    };
    merge(cluster, act, name, dry_run, &change(wish, before)).await?;
    Ok(before)
}

/// Changes a Node by a merge patch, in one request.
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
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let nodes = Api::<Node>::all(client);
        nodes
            .patch_metadata(name, &params, &Patch::Merge(change))
            .await
    };
    let asked = cluster.ask(act, format!("Node {name}"), patch);
    asked.await.map(drop)
}

fn judge(node: &Node, wish: Wish) -> Before {
    let annotations = node.metadata.annotations.as_ref();
    let has = |name| annotations.is_some_and(|all| all.contains_key(name));
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let kept = has(annotation::KEEP_CORDONED);
    Before {
        settled: match wish {
            Wish::Cordon { keep } => cordoned && (kept || !keep),
            Wish::Uncordon => !cordoned && !kept,
        },
        held_by_agent: cordoned && has(annotation::CORDONED),
        stale_mark: !cordoned && has(annotation::CORDONED),
        kept,
    }
}

/// A merge patch of nothing but what is wanted: null takes away.
fn change(wish: Wish, before: Before) -> Value {
    match wish {
        // What an agent's mark stood for is gone: this cordon is nobody's but the person's.
        Wish::Cordon { keep: false } if before.stale_mark => json!({
            "metadata": {"annotations": {annotation::CORDONED: null}},
            "spec": {"unschedulable": true},
        }),
        Wish::Cordon { keep: false } => json!({"spec": {"unschedulable": true}}),
        Wish::Cordon { keep: true } => json!({
            "metadata": {"annotations": {annotation::KEEP_CORDONED: "true"}},
            "spec": {"unschedulable": true},
        }),
        // With the agent's mark: the next cordon is its own maker's.
        Wish::Uncordon => json!({
            "metadata": {"annotations": {
                annotation::KEEP_CORDONED: null,
                annotation::CORDONED: null,
            }},
            "spec": {"unschedulable": null},
        }),
    }
}
