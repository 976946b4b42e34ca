//! Our Node: one watch on it, live reads, and the requests that change it.

mod cancel;
mod cordon;
mod keeper;
mod leave;
mod notice;
mod patches;
mod refused;
mod taints;
mod watching;

use std::sync::Arc;

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde::Deserialize;
use serde_json::Value;
use tokio::{sync::watch, time::Instant};

pub(super) use cordon::ROUNDS;
pub use cordon::{Cordon, Uncordon};
pub use keeper::{Pace, keep};
pub use leave::Left;
pub use notice::{Condition, Notice};

use super::{Cluster, ClusterError};
use crate::{
    crd::{NodeSpec, NodeStatus, NodeView, names},
    reason::Reason,
};

/// The Node as it comes: what is not read is not even kept for the moment, such as every image that
/// the kubelet lists.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = Node)]
struct NodeObject {
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

/// A Node as it concerns us.
pub(super) fn view(metadata: ObjectMeta, spec: NodeSpec, status: NodeStatus) -> NodeView {
    let has_annotations = metadata.annotations.is_some();
    let mut annotations = metadata.annotations.unwrap_or_default();
    annotations.retain(|name, _| NodeView::concerns_us(name));
    NodeView {
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        resource_version: metadata.resource_version.unwrap_or_default(),
        annotations,
        has_annotations,
        labels: metadata.labels.unwrap_or_default(),
        spec,
        status,
    }
}

/// What is known of our Node.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    /// As it was seen last, in a watch, a read or the answer to a write; none before the first answer,
    /// and where it does not exist.
    pub node: Option<Arc<NodeView>>,
    /// The server has answered since the start: no Node means that there is none.
    pub asked: bool,
    /// Since when the server does not answer, or not with what was asked for.
    pub away: Option<Instant>,
    /// Why not, where it is known to be there.
    pub refused: Option<Reason>,
}

/// Our Node in the cluster. Cheap to clone; all clones share what is known.
#[derive(Clone, Debug)]
pub struct OwnNode {
    cluster: Cluster,
    name: Arc<str>,
    sight: watch::Sender<Sight>,
}

impl OwnNode {
    /// Knows nothing yet; [`OwnNode::follow`] and the requests find out.
    pub fn new(cluster: Cluster, name: &str) -> Self {
        Self {
            cluster,
            name: name.into(),
            sight: watch::Sender::default(),
        }
    }

    /// The Node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cluster that it is in.
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// What is known, now and whenever it changes.
    pub fn sights(&self) -> watch::Receiver<Sight> {
        self.sight.subscribe()
    }

    /// The Node as a test has it.
    #[cfg(test)]
    pub(crate) fn show(&self, view: NodeView) {
        self.sight.send_modify(|sight| {
            sight.asked = true;
            sight.node = Some(Arc::new(view));
        });
    }

    /// A live read, as the API server has it now and no cache; none where there is no such Node.
    pub async fn read(&self) -> Result<Option<Arc<NodeView>>, ClusterError> {
        let get = |client| async move { nodes(client).get_opt(&self.name).await };
        match self.cluster.ask("get", self.object(), get).await? {
            Some(node) => Ok(Some(self.saw(node))),
            None => {
                self.is_gone();
                Ok(None)
            }
        }
    }

    /// Takes an annotation away.
    pub async fn forget(&self, annotation: &str) -> Result<(), ClusterError> {
        let fields = serde_json::json!({"metadata": {"annotations": {annotation: null}}});
        self.change(&Change::Fields(fields)).await.map(drop)
    }

    /// Sends one change; its answer is how the Node is now.
    async fn change(&self, change: &Change) -> Result<Arc<NodeView>, ClusterError> {
        let patch = |client| async move {
            let params = PatchParams {
                field_manager: Some(names::MANAGER.to_owned()),
                ..PatchParams::default()
            };
            let nodes = nodes(client);
            match change {
                Change::Operations(operations) => {
                    let operations = serde_json::from_value(operations.clone());
                    let patch = Patch::Json::<()>(operations.map_err(kube::Error::SerdeError)?);
                    nodes.patch(&self.name, &params, &patch).await
                }
                Change::Fields(fields) => {
                    nodes
                        .patch(&self.name, &params, &Patch::Merge(fields))
                        .await
                }
                Change::Conditions(status) => {
                    nodes
                        .patch_status(&self.name, &params, &Patch::Strategic(status))
                        .await
                }
            }
        };
        let act = match change {
            Change::Conditions(_) => "write the conditions of",
            Change::Operations(_) | Change::Fields(_) => "change",
        };
        let node = self.cluster.ask(act, self.object(), patch).await?;
        Ok(self.saw(node))
    }

    /// What messages call it.
    fn object(&self) -> String {
        format!("Node {}", self.name)
    }

    /// Takes note of the Node as an answer shows it. Answers and the watch overtake each other: what is
    /// older than what is known changes nothing. Returns what was seen.
    fn saw(&self, object: NodeObject) -> Arc<NodeView> {
        let seen = Arc::new(NodeView::from(object));
        self.sight.send_if_modified(|sight| {
            let recovered = sight.away.take().is_some() || !sight.asked;
            sight.refused = None;
            sight.asked = true;
            let known = sight.node.as_ref();
            let differs = known.is_none_or(|known| !seen.is_older_than(known) && **known != *seen);
            if differs {
                sight.node = Some(Arc::clone(&seen));
            }
            recovered || differs
        });
        seen
    }

    fn is_gone(&self) {
        self.sight.send_if_modified(|sight| {
            let told = sight.asked && sight.node.is_none() && sight.away.is_none();
            *sight = Sight {
                asked: true,
                ..Sight::default()
            };
            !told
        });
    }
}

/// One request that changes the Node.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    /// A JSON patch (RFC 6902) with a `test` of what it depends on.
    Operations(Value),
    /// A merge patch (RFC 7386) of single annotations and labels.
    Fields(Value),
    /// A strategic merge patch of single conditions, which the server merges by type.
    Conditions(Value),
}

fn nodes(client: Client) -> Api<NodeObject> {
    Api::all(client)
}
