//! Cancelling a node's update: the command line sets an annotation on the Node, and the node's
//! agent replies with another.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::{Value, json};

use super::{
    Cluster, ClusterError,
    node::MAX_ATTEMPTS,
    node_commands::{DryRun, merge},
};
use machinist_kube_api::keys::{annotation, protocol};

/// Update and cancellation state of a Node, read from its annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateAnnotations {
    /// The desired config.
    pub desired: Option<String>,
    /// The current config.
    pub current: Option<String>,
    /// The config whose update the operator asked to cancel.
    pub asked: Option<String>,
    /// The config whose update the agent cancelled.
    pub cancelled: Option<String>,
    /// Why the agent refused to cancel, as `config: reason`.
    pub refused: Option<String>,
    version: String,
    uid: String,
}

impl UpdateAnnotations {
    /// The desired config, if it is not the current one.
    pub fn pending(&self) -> Option<&str> {
        let desired = self.desired.as_deref()?;
        (self.current.as_deref() != Some(desired)).then_some(desired)
    }

    /// Why the agent refused to cancel the update to `config`, once it has replied.
    pub fn refusal(&self, config: &str) -> Option<&str> {
        let said = self.refused.as_deref()?.strip_prefix(config)?;
        said.strip_prefix(": ").filter(|_| self.asked.is_none())
    }

    fn of(node: &Node) -> Self {
        let annotations = node.metadata.annotations.as_ref();
        let annotation_of = |name| {
            let text = annotations?.get(name)?.clone();
            (!text.is_empty()).then_some(text)
        };
        Self {
            desired: annotation_of(protocol::DESIRED_CONFIG),
            current: annotation_of(protocol::CURRENT_CONFIG),
            asked: annotation_of(annotation::CANCEL),
            cancelled: annotation_of(annotation::CANCELLED),
            refused: annotation_of(annotation::CANCEL_REFUSED),
            version: node.metadata.resource_version.clone().unwrap_or_default(),
            uid: node.metadata.uid.clone().unwrap_or_default(),
        }
    }
}

/// Reads the state of a Node.
pub async fn read_annotations(
    cluster: &Cluster,
    name: &str,
) -> Result<UpdateAnnotations, ClusterError> {
    let get = |client| async move { Api::<Node>::all(client).get(name).await };
    let node = cluster.request("get", format!("Node {name}"), get).await?;
    Ok(UpdateAnnotations::of(&node))
}

/// Requests cancellation of the update that `decide` returns, or withdraws the request if it
/// returns no config. If another client changes the Node in between, it reads and decides again. If
/// `decide` declines, nothing is written.
pub async fn request_cancel(
    cluster: &Cluster,
    name: &str,
    dry_run: DryRun,
    decide: impl Fn(&UpdateAnnotations) -> Option<Option<String>>,
) -> Result<UpdateAnnotations, ClusterError> {
    let mut rounds = 0;
    loop {
        let seen = read_annotations(cluster, name).await?;
        let Some(config) = decide(&seen).filter(|_| dry_run != DryRun::Client) else {
            return Ok(seen);
        };
        let change = cancel_patch(&seen, config.as_deref());
        match merge(cluster, "cancel the update of", name, dry_run, &change).await {
            Ok(()) => return Ok(seen),
            Err(error) if error.is_conflict() && rounds < MAX_ATTEMPTS => rounds += 1,
            Err(error) => return Err(error),
        }
    }
}

/// The patch tests the resource version, so that it applies to the config that was read. It also
/// removes the reply to an earlier request; an agent that has already cancelled this update replies
/// again.
fn cancel_patch(seen: &UpdateAnnotations, config: Option<&str>) -> Value {
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
