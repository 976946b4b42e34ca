//! Lists, watches and evicts the pods of a node.

use std::time::Duration;

use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod as PodObject, policy::v1 as policy};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams, Preconditions, WatchParams},
    core::Status,
};
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;

use super::{
    Cluster, ClusterError, ClusterErrorKind,
    watch_stream::{WatchChange, open_watch},
};
use machinist_drain::{
    DisruptionBudget, EvictionCallError, EvictionError, Pod, PodId, StatusCause,
    eviction::{EvictionMethod, PodApi, PodChange, PodList, PodWatchStream},
};

/// Page size of pod lists. A kubelet has at most 250 pods by default, so one page is usually
/// enough.
const LIST_PAGE_ITEMS: u32 = 250;

/// Reads and evicts pods through the API server.
#[derive(Clone, Debug)]
pub struct NodePods {
    cluster: Cluster,
    /// Label selector that limits the pods; none for all pods.
    selector: Option<String>,
}

impl NodePods {
    /// Creates the client without sending a request.
    pub fn new(cluster: Cluster, selector: Option<String>) -> Self {
        Self { cluster, selector }
    }

    async fn page(&self, node: &str, token: Option<&str>) -> Result<PodPage, ClusterError> {
        let list = |client| async move {
            let mut params = ListParams::default()
                .fields(&format!("spec.nodeName={node}"))
                .limit(LIST_PAGE_ITEMS);
            params.label_selector.clone_from(&self.selector);
            params.continue_token = token.map(str::to_owned);
            Api::<PodObject>::all(client).list(&params).await
        };
        let object = format!("the pods of Node {node}");
        let found = self.cluster.request("list", object, list).await?;
        Ok(PodPage {
            pods: found.items.iter().map(Pod::from).collect(),
            version: found.metadata.resource_version.unwrap_or_default(),
            next: found.metadata.continue_.filter(|token| !token.is_empty()),
        })
    }

    /// Reads all pages. The resource version is that of the first page, which the following pages
    /// share.
    async fn pages(&self, node: &str) -> Result<PodList, ClusterError> {
        let mut all = PodList::default();
        let mut next = None;
        loop {
            let page = self.page(node, next.as_deref()).await?;
            all.pods.extend(page.pods);
            all.version = page.version;
            next = page.next;
            if next.is_none() {
                return Ok(all);
            }
        }
    }
}

/// One page of a list.
struct PodPage {
    pods: Vec<Pod>,
    version: String,
    next: Option<String>,
}

impl PodApi for NodePods {
    async fn list(&self, node: &str) -> Result<PodList, EvictionCallError> {
        match self.pages(node).await {
            // The continue token expired, so start the list over once; after a second failure the
            // caller retries.
            Err(error) if error.is_expired() => self.pages(node).await,
            listed => listed,
        }
        .map_err(EvictionCallError::from)
    }

    async fn watch(&self, node: &str, version: &str) -> Result<PodWatchStream, EvictionCallError> {
        let mut params = WatchParams::default().fields(&format!("spec.nodeName={node}"));
        params.label_selector.clone_from(&self.selector);
        let object = format!("the pods of Node {node}");
        let changes = open_watch(&self.cluster, &(), object, params, version).await?;
        Ok(Box::pin(changes.map(|change| Ok(pod_change(change?)))))
    }

    async fn evict(&self, pod: &PodId, how: EvictionMethod) -> Result<(), EvictionCallError> {
        let body = &eviction(pod, how);
        let evict = |client| async move {
            let params = PostParams {
                dry_run: how.dry_run,
                ..PostParams::default()
            };
            let answer: Result<Value, _> = pods(client, pod)
                .create_subresource("eviction", &pod.name, &params, body)
                .await;
            answer
        };
        let evicted = self
            .cluster
            .request("evict", format!("Pod {pod}"), evict)
            .await;
        evicted.map(drop).map_err(EvictionCallError::from)
    }

    async fn delete(&self, pod: &PodId, how: EvictionMethod) -> Result<(), EvictionCallError> {
        let params = &DeleteParams {
            dry_run: how.dry_run,
            grace_period_seconds: how.grace.seconds(),
            preconditions: Some(Preconditions {
                uid: Some(pod.uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let delete = |client| async move { pods(client, pod).delete(&pod.name, params).await };
        let object = format!("Pod {pod}");
        let deleted = self.cluster.request("delete", object, delete).await;
        deleted.map(drop).map_err(EvictionCallError::from)
    }

    async fn budgets(&self, namespace: &str) -> Result<Vec<DisruptionBudget>, EvictionCallError> {
        let list = |client| async move {
            let budgets = Api::<policy::PodDisruptionBudget>::namespaced(client, namespace);
            budgets.list(&ListParams::default()).await
        };
        let object = format!("the PodDisruptionBudgets of {namespace}");
        let found = self.cluster.request("list", object, list).await?;
        Ok(found.items.iter().map(DisruptionBudget::from).collect())
    }

    async fn daemon_set(&self, namespace: &str, name: &str) -> Result<bool, EvictionCallError> {
        let get = |client| async move {
            let sets = Api::<DaemonSet>::namespaced(client, namespace);
            sets.get_metadata_opt(name).await
        };
        let object = format!("DaemonSet {namespace}/{name}");
        let found = self.cluster.request("get", object, get).await?;
        Ok(found.is_some())
    }
}

fn pods(client: Client, pod: &PodId) -> Api<PodObject> {
    Api::namespaced(client, &pod.namespace)
}

/// Builds the eviction request by hand: kube's own type writes the options under a name that the
/// server ignores, and grace period, precondition and dry run are lost without an error.
fn eviction(pod: &PodId, how: EvictionMethod) -> Value {
    let mut options = json!({"preconditions": {"uid": pod.uid}});
    if let Some(seconds) = how.grace.seconds() {
        options["gracePeriodSeconds"] = seconds.into();
    }
    if how.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": options,
    })
}

fn pod_change((change, version): (WatchChange<PodObject>, String)) -> PodChange {
    match change {
        WatchChange::Applied(pod) => PodChange::Applied(Box::new(Pod::from(&pod)), version),
        WatchChange::Deleted(pod) => PodChange::Deleted(Pod::from(&pod).id, version),
        WatchChange::Bookmark => PodChange::Bookmark(version),
    }
}

impl From<ClusterError> for EvictionCallError {
    fn from(error: ClusterError) -> Self {
        match &error.why {
            ClusterErrorKind::Answered(status) => refused(status).into(),
            _ => Self::NoAnswer(Box::new(error)),
        }
    }
}

fn refused(status: &Status) -> EvictionError {
    let details = status.details.as_ref();
    let seconds = details.map_or(0, |details| details.retry_after_seconds);
    let causes = details.map(|details| details.causes.as_slice());
    EvictionError {
        code: status.code,
        reason: status.reason.clone(),
        message: status.message.clone(),
        object: details
            .map(|details| details.name.clone())
            .unwrap_or_default(),
        causes: causes
            .unwrap_or_default()
            .iter()
            .map(|cause| StatusCause {
                kind: cause.reason.clone(),
                message: cause.message.clone(),
            })
            .collect(),
        retry_after: (seconds > 0).then(|| Duration::from_secs(seconds.into())),
    }
}
