//! Cancelling the update of a node: a person asks on the Node, the node's agent answers there.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::{Value, json};

use super::{
    Cluster, ClusterError,
    by_hand::{DryRun, merge},
    node::ROUNDS,
};
use crate::crd::names::{annotation, protocol};

/// What a Node says of its update, and of cancelling it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The config that it is to have.
    pub desired: Option<String>,
    /// The config that it is on.
    pub current: Option<String>,
    /// The config whose update a person cancels.
    pub asked: Option<String>,
    /// The config whose update the agent has given up.
    pub cancelled: Option<String>,
    /// Why the agent did not, as `config: why`.
    pub refused: Option<String>,
    version: String,
    uid: String,
}

impl Standing {
    /// The config that is not in force yet.
    pub fn pending(&self) -> Option<&str> {
        let desired = self.desired.as_deref()?;
        (self.current.as_deref() != Some(desired)).then_some(desired)
    }

    /// Why the update to `config` was not cancelled, once the agent has said so.
    pub fn refusal(&self, config: &str) -> Option<&str> {
        let said = self.refused.as_deref()?.strip_prefix(config)?;
        said.strip_prefix(": ").filter(|_| self.asked.is_none())
    }

    fn of(node: &Node) -> Self {
        let annotations = node.metadata.annotations.as_ref();
        let said = |name| {
            let text = annotations?.get(name)?.clone();
            (!text.is_empty()).then_some(text)
        };
        Self {
            desired: said(protocol::DESIRED_CONFIG),
            current: said(protocol::CURRENT_CONFIG),
            asked: said(annotation::CANCEL),
            cancelled: said(annotation::CANCELLED),
            refused: said(annotation::CANCEL_REFUSED),
            version: node.metadata.resource_version.clone().unwrap_or_default(),
            uid: node.metadata.uid.clone().unwrap_or_default(),
        }
    }
}

/// How a Node stands now.
pub async fn standing(cluster: &Cluster, name: &str) -> Result<Standing, ClusterError> {
    let get = |client| async move { Api::<Node>::all(client).get(name).await };
    let node = cluster.ask("get", format!("Node {name}"), get).await?;
    Ok(Standing::of(&node))
}

/// Asks that the update which `decide` names be cancelled, or, where it names none, takes the question
/// back. It decides anew where somebody has written in between; none of it: nothing is sent.
pub async fn ask(
    cluster: &Cluster,
    name: &str,
    dry_run: DryRun,
    decide: impl Fn(&Standing) -> Option<Option<String>>,
) -> Result<Standing, ClusterError> {
    let mut rounds = 0;
    loop {
        let seen = standing(cluster, name).await?;
        let Some(config) = decide(&seen).filter(|_| dry_run != DryRun::Client) else {
            return Ok(seen);
        };
        let change = wish(&seen, config.as_deref());
        match merge(cluster, "cancel the update of", name, dry_run, &change).await {
            Ok(()) => return Ok(seen),
            Err(error) if error.is_conflict() && rounds < ROUNDS => rounds += 1,
            Err(error) => return Err(error),
        }
    }
}

/// With the version, so that the question is about the config that was seen. What was answered before goes
/// with it: the agent that has given this very update up already says so anew.
fn wish(seen: &Standing, config: Option<&str>) -> Value {
    json!({"metadata": {
        "uid": seen.uid,
        "resourceVersion": seen.version,
        "annotations": {
            annotation::CANCEL: config,
            annotation::CANCELLED: null,
            annotation::CANCEL_REFUSED: null,
        },
    }})
}
