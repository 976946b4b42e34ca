//! Maintains the MachineConfigNode of the agent's Node: creates it if the kind exists, and writes
//! it when its content changes.

mod conditions;

use std::{collections::BTreeSet, time::Duration};

use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use self::conditions::{completed, for_the_desired, is_updated, keep_times, without_reset_sets};
use super::{
    Cluster, ClusterError,
    node::{NodeSnapshot, OwnNode},
    resource,
};
use machinist_base::{
    backoff::{Backoff, jitter},
    clock::Clock,
    error_chain::chain,
    reason::Reason,
};
use machinist_kube_api::{MachineConfigNodeStatus, NodeView, keys};

const KIND: &str = "MachineConfigNode";

/// Backoff after a failed write.
const WRITE_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

/// If the kind does not exist, it is looked up again after this time, because the CRD may be
/// installed later.
const KIND_RECHECK_INTERVAL: Duration = Duration::from_secs(600);

/// The last written content and the Node's UID, to avoid repeating identical writes.
#[derive(Default)]
struct WrittenStatus {
    uid: String,
    desired: Option<String>,
    spec: Option<Value>,
    status: Option<MachineConfigNodeStatus>,
    generation: Option<i64>,
}

/// Writes the latest status from `statuses` until `stop`; `pool` is the node's pool, where known.
pub async fn maintain_status(
    cluster: Cluster,
    node: OwnNode,
    mut pool: watch::Receiver<Option<String>>,
    mut statuses: watch::Receiver<Option<MachineConfigNodeStatus>>,
    clock: Clock,
    stop: CancellationToken,
) {
    let mut snapshots = node.snapshots();
    let mut written = WrittenStatus::default();
    let mut failures = 0;
    loop {
        let status = statuses.borrow_and_update().clone();
        let view = snapshots.borrow_and_update().node.clone();
        let desired = view.as_deref().and_then(NodeView::desired_config);
        let status = status.map(|status| for_the_desired(status, desired, &clock));
        let member = pool.borrow_and_update().clone();
        let speaks = status.is_some();
        let wait = match (view, status) {
            (Some(view), Some(status)) => {
                let applied = tokio::select! {
                    () = stop.cancelled() => return,
                    // Cancel-safe: a server-side apply can be repeated.
                    applied = written.apply_object(&cluster, &view, member.as_deref(), status) => applied,
                };
                match applied {
                    Ok(()) => {
                        failures = 0;
                        None
                    }
                    Err(error) if error.is_not_found() => Some(KIND_RECHECK_INTERVAL),
                    Err(error) => {
                        let wait = WRITE_BACKOFF.wait(failures, jitter());
                        match failures {
                            0 => tracing::warn!(reason = %error.reason(), "{}", chain(&error)),
                            _ => tracing::debug!("{}", chain(&error)),
                        }
                        failures = failures.saturating_add(1);
                        Some(wait.max(error.retry_after().unwrap_or_default()))
                    }
                }
            }
            _ => None,
        };
        let (uid, desired) = (written.uid.clone(), written.desired.clone());
        tokio::select! {
            () = stop.cancelled() => return,
            // All of these are cancel-safe: changes are compared again. After a failure only the
            // timer ends the wait.
            () = changed(&mut statuses), if wait.is_none() => {}
            () = changed(&mut pool), if wait.is_none() && speaks => {}
            () = another(&mut snapshots, &uid, desired.as_deref()), if wait.is_none() && speaks => {}
            () = sleep(wait.unwrap_or_default()), if wait.is_some() => {}
        }
    }
}

async fn changed<T>(of: &mut watch::Receiver<T>) {
    if of.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Waits for a Node with another UID or another desired config than the written one.
async fn another(snapshots: &mut watch::Receiver<NodeSnapshot>, uid: &str, desired: Option<&str>) {
    let is_other = |node: &NodeView| node.uid != uid || node.desired_config() != desired;
    let other = snapshots.wait_for(|it| it.node.as_deref().is_some_and(is_other));
    if other.await.is_err() {
        std::future::pending().await
    }
}

impl WrittenStatus {
    /// Applies the object and its status. 404 if the kind does not exist.
    async fn apply_object(
        &mut self,
        cluster: &Cluster,
        view: &NodeView,
        pool: Option<&str>,
        status: MachineConfigNodeStatus,
    ) -> Result<(), ClusterError> {
        if view.uid != self.uid {
            *self = Self {
                uid: view.uid.clone(),
                status: read(cluster, &view.name).await?,
                ..Self::default()
            };
        }
        self.desired = view.desired_config().map(str::to_owned);
        let version = status.config_version.as_ref();
        let desired = version.map_or("", |version| version.desired.as_str());
        let spec = json!({
            "node": {"name": view.name},
            "pool": {"name": pool.unwrap_or_else(|| role(view))},
            "configVersion": {"desired": desired},
        });
        if self.spec.as_ref() != Some(&spec) {
            // Spec and status are two writes: a spec that names a new config must not appear
            // together with `Updated` of the previous one.
            if self.status.as_ref().is_some_and(is_updated) && !is_updated(&status) {
                match self.apply_status(cluster, &view.name, status.clone()).await {
                    // The object was deleted in the meantime and is created again with its spec.
                    Err(error) if error.is_not_found() => self.status = None,
                    written => written?,
                }
            }
            let object = json!({
                "apiVersion": api().api_version, "kind": KIND,
                "metadata": {"name": view.name, "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": view.name, "uid": view.uid},
                ]},
                "spec": spec,
            });
            let applied = apply(cluster, &view.name, &object, false).await?;
            self.generation = applied.metadata.generation;
            self.spec = Some(spec);
        }
        let known = self.status.as_ref();
        if let Some(reset) = known.and_then(|known| without_reset_sets(known, &status)) {
            self.apply_status(cluster, &view.name, reset).await?;
        }
        let known = self.status.as_ref();
        if let Some(completed) = known.and_then(|known| completed(known, &status)) {
            self.apply_status(cluster, &view.name, completed).await?;
        }
        self.apply_status(cluster, &view.name, status).await
    }

    /// Writes the status if it differs from the last one.
    async fn apply_status(
        &mut self,
        cluster: &Cluster,
        name: &str,
        mut status: MachineConfigNodeStatus,
    ) -> Result<(), ClusterError> {
        status.observed_generation = self.generation.map(|generation| generation + 1);
        keep_times(&mut status, self.status.as_ref());
        if self.status.as_ref() != Some(&status) {
            let object = json!({
                "apiVersion": api().api_version, "kind": KIND,
                "metadata": {"name": name}, "status": status,
            });
            apply(cluster, name, &object, true).await?;
            self.status = Some(status);
        }
        Ok(())
    }
}

/// Reads the status of a Node's MachineConfigNode; none if the object does not exist or its status
/// has another format.
pub async fn read(
    cluster: &Cluster,
    name: &str,
) -> Result<Option<MachineConfigNodeStatus>, ClusterError> {
    let get = |client| async move { objects(client).get_opt(name).await };
    let found = cluster.request("get", object(name), get).await?;
    Ok(found.as_ref().and_then(status_of))
}

/// Parses the status; none if it has another format than the one written here.
pub(super) fn status_of(object: &DynamicObject) -> Option<MachineConfigNodeStatus> {
    serde_json::from_value(object.data.get("status")?.clone()).ok()
}

/// Server-side apply: fields owned by other writers are kept.
async fn apply(
    cluster: &Cluster,
    name: &str,
    wanted: &Value,
    status: bool,
) -> Result<DynamicObject, ClusterError> {
    let apply = |client| async move {
        let params = PatchParams::apply(keys::FIELD_MANAGER).force();
        let (objects, patch) = (objects(client), Patch::Apply(wanted));
        match status {
            true => objects.patch_status(name, &params, &patch).await,
            false => objects.patch(name, &params, &patch).await,
        }
    };
    cluster.request("apply", object(name), apply).await
}

/// Deletes the Node's MachineConfigNode if machinist alone created it. Returns true if such an
/// object existed.
///
/// # Errors
/// The request failed. If reading is forbidden, the object counts as not created by machinist.
pub async fn remove(cluster: &Cluster, name: &str, only_look: bool) -> Result<bool, ClusterError> {
    let get = |client| async move { objects(client).get_opt(name).await };
    let found = match cluster.request("get", object(name), get).await {
        Err(error) if error.reason() == Reason::ApiServerForbidden => return Ok(false),
        found => found?,
    };
    let Some(found) = found.filter(is_ours) else {
        return Ok(false);
    };
    if only_look {
        return Ok(true);
    }
    let params = &DeleteParams {
        // An object that was recreated in the meantime is not deleted.
        preconditions: Some(Preconditions {
            uid: found.metadata.uid,
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let delete = |client| async move { objects(client).delete(name, params).await.map(drop) };
    match cluster.request("delete", object(name), delete).await {
        Err(error) if error.is_not_found() => Ok(false),
        deleted => deleted.map(|()| true),
    }
}

/// Whether machinist is the only writer of the object, apart from its status. OpenShift's
/// controllers create theirs themselves.
fn is_ours(object: &DynamicObject) -> bool {
    let writers = object.metadata.managed_fields.iter().flatten();
    let mut writers = writers
        .filter(|writer| writer.subresource.as_deref().unwrap_or_default().is_empty())
        .filter_map(|writer| writer.manager.as_deref())
        .peekable();
    writers.peek().is_some() && writers.all(|manager| manager == keys::FIELD_MANAGER)
}

fn object(name: &str) -> String {
    format!("{KIND} {name}")
}

pub(super) fn objects(client: Client) -> Api<DynamicObject> {
    Api::all_with(client, &api())
}

fn api() -> ApiResource {
    resource(KIND, "machineconfignodes")
}

/// The pool derived from the Node's role labels, if the pool is unknown: the control plane first,
/// then a custom role before worker, and the first by name if there are several.
fn role(view: &NodeView) -> &str {
    use keys::label::{ROLE_CONTROL_PLANE, ROLE_MASTER, ROLE_WORKER};
    if view.is_control_plane() {
        return ROLE_MASTER;
    }
    let roles: BTreeSet<_> = view.roles();
    let custom = |role: &&&str| ![ROLE_WORKER, ROLE_CONTROL_PLANE].contains(*role);
    roles.iter().find(custom).copied().unwrap_or(ROLE_WORKER)
}
