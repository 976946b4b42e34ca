//! The agent's own Node: one watch, live reads, and patches.

mod cleanup;
mod cordon;
pub(crate) mod desired_status;
mod fitness;
mod grant;
pub(crate) mod patches;
pub(crate) mod taints;
mod watcher;

use std::sync::Arc;

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde::Deserialize;
use serde_json::Value;
use tokio::{sync::watch, time::Instant};

pub use cleanup::RemovedKeys;
pub(super) use cordon::MAX_ATTEMPTS;
pub use cordon::{Cordon, Uncordon};
pub use desired_status::{DesiredCondition, DesiredNodeStatus};
pub use fitness::NodeFitness;
pub use grant::update_grant;

use super::{Cluster, ClusterError};
use machinist_base::reason::Reason;
use machinist_kube_api::{NodeSpec, NodeStatus, NodeView, keys};

/// The fields of a Node that are read. Others, such as the image list of the kubelet, are skipped
/// during deserialization.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = Node)]
pub struct NodeObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: NodeSpec,
    #[serde(default)]
    status: NodeStatus,
}

impl From<NodeObject> for NodeView {
    fn from(object: NodeObject) -> Self {
        view(object.metadata, object.spec, object.status)
    }
}

/// Reduces a Node to the fields that machinist uses.
pub(super) fn view(metadata: ObjectMeta, spec: NodeSpec, status: NodeStatus) -> NodeView {
    let has_annotations = metadata.annotations.is_some();
    let mut annotations = metadata.annotations.unwrap_or_default();
    annotations.retain(|name, _| NodeView::is_kept_annotation(name));
    NodeView {
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        resource_version: metadata.resource_version.unwrap_or_default(),
        created: metadata.creation_timestamp.map(|time| time.0),
        annotations,
        has_annotations,
        labels: metadata.labels.unwrap_or_default(),
        spec,
        status,
    }
}

/// The latest observed state of the agent's Node.
#[derive(Clone, Debug, Default)]
pub struct NodeSnapshot {
    /// The Node from the latest watch event, read or write response; none before the first
    /// response, and if the Node does not exist.
    pub node: Option<Arc<NodeView>>,
    /// Whether the server has responded since the start: if so, no Node means that none exists.
    pub asked: bool,
    /// Since when requests have failed; none while the server responds.
    pub away: Option<Instant>,
    /// Why requests fail, if the server is reachable but rejects them.
    pub refused: Option<Reason>,
}

/// Handle of the agent's Node. Cheap to clone; all clones share the observed state.
#[derive(Clone, Debug)]
pub struct OwnNode {
    cluster: Cluster,
    name: Arc<str>,
    snapshot: watch::Sender<NodeSnapshot>,
}

impl OwnNode {
    /// Starts with no observed state; [`OwnNode::watch_node`] and the requests fill it.
    pub fn new(cluster: Cluster, name: &str) -> Self {
        Self {
            cluster,
            name: name.into(),
            snapshot: watch::Sender::default(),
        }
    }

    /// The Node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cluster that the Node belongs to.
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Receiver of the observed state and its changes.
    pub fn snapshots(&self) -> watch::Receiver<NodeSnapshot> {
        self.snapshot.subscribe()
    }

    /// Sets the observed Node in a test.
    #[cfg(any(test, feature = "testing"))]
    pub fn set_snapshot(&self, view: NodeView) {
        self.snapshot.send_modify(|snapshot| {
            snapshot.asked = true;
            snapshot.node = Some(Arc::new(view));
        });
    }

    /// Live read from the API server, bypassing caches; none if the Node does not exist.
    pub async fn read(&self) -> Result<Option<Arc<NodeView>>, ClusterError> {
        let get = |client| async move { nodes(client).get_opt(&self.name).await };
        match self.cluster.request("get", self.object(), get).await? {
            Some(node) => Ok(Some(self.record_object(node))),
            None => {
                self.is_gone();
                Ok(None)
            }
        }
    }

    /// Removes an annotation.
    pub async fn remove_annotation(&self, annotation: &str) -> Result<(), ClusterError> {
        let fields = serde_json::json!({"metadata": {"annotations": {annotation: null}}});
        self.change(&NodePatch::Fields(fields)).await.map(drop)
    }

    /// Removes the cancellation request for `config`, and records the refusal `why` if there is
    /// one. If another request was made in the meantime, the patch fails and that request is kept.
    pub async fn answer_cancel(&self, config: &str, why: Option<&str>) -> Result<(), ClusterError> {
        self.change(&patches::cancel_reply(config, why))
            .await
            .map(drop)
    }

    /// Sends one patch; its response is the Node's new state.
    pub(crate) async fn change(&self, change: &NodePatch) -> Result<Arc<NodeView>, ClusterError> {
        let patch = |client| async move {
            let params = PatchParams {
                field_manager: Some(keys::FIELD_MANAGER.to_owned()),
                ..PatchParams::default()
            };
            let nodes = nodes(client);
            match change {
                NodePatch::Operations(operations) => {
                    let operations = serde_json::from_value(operations.clone());
                    let patch = Patch::Json::<()>(operations.map_err(kube::Error::SerdeError)?);
                    nodes.patch(&self.name, &params, &patch).await
                }
                NodePatch::Fields(fields) => {
                    nodes
                        .patch(&self.name, &params, &Patch::Merge(fields))
                        .await
                }
                NodePatch::Conditions(status) => {
                    nodes
                        .patch_status(&self.name, &params, &Patch::Strategic(status))
                        .await
                }
            }
        };
        let act = match change {
            NodePatch::Conditions(_) => "write the conditions of",
            NodePatch::Operations(_) | NodePatch::Fields(_) => "change",
        };
        let node = self.cluster.request(act, self.object(), patch).await?;
        Ok(self.record_object(node))
    }

    /// The Node's name in messages.
    fn object(&self) -> String {
        format!("Node {}", self.name)
    }

    /// Records the Node from a response. Responses and watch events may arrive out of order, so an
    /// older resource version changes nothing. Returns the given Node.
    fn record_object(&self, object: NodeObject) -> Arc<NodeView> {
        let seen = Arc::new(NodeView::from(object));
        self.snapshot.send_if_modified(|snapshot| {
            let recovered = snapshot.away.take().is_some() || !snapshot.asked;
            snapshot.refused = None;
            snapshot.asked = true;
            let known = snapshot.node.as_ref();
            let differs = known.is_none_or(|known| !seen.is_older_than(known) && **known != *seen);
            if differs {
                snapshot.node = Some(Arc::clone(&seen));
            }
            recovered || differs
        });
        seen
    }

    fn is_gone(&self) {
        self.snapshot.send_if_modified(|snapshot| {
            let told = snapshot.asked && snapshot.node.is_none() && snapshot.away.is_none();
            *snapshot = NodeSnapshot {
                asked: true,
                ..NodeSnapshot::default()
            };
            !told
        });
    }
}

/// One patch of the Node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NodePatch {
    /// JSON patch (RFC 6902) with `test` operations for its preconditions.
    Operations(Value),
    /// Merge patch (RFC 7386) of single annotations and labels.
    Fields(Value),
    /// Strategic merge patch of single conditions, which the server merges by type.
    Conditions(Value),
}

fn nodes(client: Client) -> Api<NodeObject> {
    Api::all(client)
}
