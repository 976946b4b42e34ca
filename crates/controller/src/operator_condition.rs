//! Writes the condition `Upgradeable` of the OperatorCondition with which OLM installed this controller.
//!
//! OLM copies `spec.conditions` into the status, and does not replace the version that is installed while the condition is
//! False. It lets an operator without the condition be replaced at any time, so that each process sees to it that there is
//! one before it is ready. OLM's role for the service account permits get, update and patch of the one object.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, Patch},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    failure_log::{log_failure, response_code},
    leadership::Leadership,
    monitor::ControllerMonitor,
    pool_status::rfc3339,
    upgradeable::Upgradeable,
};
use machinist_base::{
    backoff::{Backoff, jitter},
    clock::Clock,
};
use machinist_cluster::{Cluster, ClusterError, json_patch};

/// The type of the condition, which OLM defines.
const UPGRADEABLE: &str = "Upgradeable";

const RESOURCE: &str = "operatorconditions";

/// How often a write that another client was faster than is decided again at once.
const MAX_CONFLICTS: usize = 5;

/// Wait after a failed request.
pub(crate) const CONDITION_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Which condition that exists is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// Any.
    Any,
    /// The same one.
    Same,
}

/// The OperatorCondition of this installation.
#[derive(Debug)]
pub(crate) struct OperatorCondition {
    cluster: Cluster,
    monitor: ControllerMonitor,
    namespace: String,
    name: String,
    /// Whether the last request failed, which was logged.
    has_failed: AtomicBool,
}

impl OperatorCondition {
    /// The object with this name in the namespace of the pod.
    pub(crate) async fn new(cluster: Cluster, name: String, monitor: ControllerMonitor) -> Self {
        Self {
            namespace: cluster.namespace().await,
            cluster,
            monitor,
            name,
            has_failed: AtomicBool::new(false),
        }
    }

    /// Sees to it that the condition exists. The process is not ready before that, unless the object does not exist or must
    /// not be read.
    pub(crate) async fn ensure_default(&self, clock: &Clock) {
        let mut failures = 0;
        self.monitor.awaits(Some(format!(
            "{} has no condition {UPGRADEABLE} yet",
            self.object()
        )));
        loop {
            let written = self
                .write(&Upgradeable::not_known(), Kept::Any, None, clock.now())
                .await;
            match written {
                Ok(()) => break,
                Err(error) if error.is_not_found() || error.is_forbidden() => break,
                Err(_) => {
                    sleep(CONDITION_BACKOFF.wait(failures, jitter())).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
        self.monitor.awaits(None);
    }

    /// Writes the condition of the leader, unless it is the same already.
    pub(crate) async fn report(
        &self,
        wanted: &Upgradeable,
        leadership: &Leadership,
        now: Timestamp,
    ) -> Result<(), ClusterError> {
        self.write(wanted, Kept::Same, Some(leadership), now).await
    }

    async fn write(
        &self,
        wanted: &Upgradeable,
        kept: Kept,
        leadership: Option<&Leadership>,
        now: Timestamp,
    ) -> Result<(), ClusterError> {
        let mut conflicts = 0;
        let written = loop {
            let tried = self.try_write(wanted, kept, leadership, now).await;
            match tried {
                Err(error) if error.code() == 409 && conflicts < MAX_CONFLICTS => conflicts += 1,
                other => break other,
            }
        };
        let had_failed = self.has_failed.swap(written.is_err(), Ordering::Relaxed);
        if let Err(error) = &written {
            log_failure(error, !had_failed);
        }
        written
    }

    /// Reads the object and writes the condition if it is not kept; 409 if another client changed the object meanwhile.
    async fn try_write(
        &self,
        wanted: &Upgradeable,
        kept: Kept,
        leadership: Option<&Leadership>,
        now: Timestamp,
    ) -> Result<(), ClusterError> {
        let found = self.get().await?;
        let conditions = found.data.pointer("/spec/conditions");
        let mut conditions = conditions
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let at = conditions.iter().position(|it| it["type"] == UPGRADEABLE);
        let known = at.and_then(|at| conditions.get(at));
        let is_kept = known.is_some_and(|it| kept == Kept::Any || wanted.is_same(it));
        if is_kept {
            return Ok(());
        }
        let status = wanted.status();
        // The time is that of the last change of the status.
        let since = known.filter(|it| it["status"] == status);
        let since = since.and_then(|it| it["lastTransitionTime"].as_str());
        let condition = json!({
            "type": UPGRADEABLE, "status": status, "reason": wanted.reason, "message": wanted.message,
            "lastTransitionTime": since.map_or_else(|| rfc3339(now), str::to_owned),
        });
        match at.and_then(|at| conditions.get_mut(at)) {
            Some(slot) => *slot = condition,
            None => conditions.push(condition),
        }
        let body = json!({
            "metadata": {"resourceVersion": found.resource_version()},
            "spec": {"conditions": conditions},
        });
        if let Some(leadership) = leadership {
            leadership.permit().await;
        }
        self.patch(&body).await?;
        tracing::info!(
            "{}: {UPGRADEABLE} is {status}: {}",
            self.object(),
            wanted.message
        );
        Ok(())
    }

    async fn get(&self) -> Result<DynamicObject, ClusterError> {
        let get = |client| async move { self.api(client).get(&self.name).await };
        let found = self.cluster.request("get", self.object(), get).await;
        self.counted("get", found)
    }

    async fn patch(&self, body: &Value) -> Result<DynamicObject, ClusterError> {
        let patch = |client| async move {
            let params = json_patch::params(false);
            self.api(client)
                .patch(&self.name, &params, &Patch::Merge(body))
                .await
        };
        let patched = self.cluster.request("patch", self.object(), patch).await;
        self.counted("patch", patched)
    }

    fn api(&self, client: Client) -> Api<DynamicObject> {
        let kind = ApiResource {
            group: "operators.coreos.com".to_owned(),
            version: "v2".to_owned(),
            api_version: "operators.coreos.com/v2".to_owned(),
            kind: "OperatorCondition".to_owned(),
            plural: RESOURCE.to_owned(),
        };
        Api::namespaced_with(client, &self.namespace, &kind)
    }

    fn object(&self) -> String {
        format!("OperatorCondition {}/{}", self.namespace, self.name)
    }

    fn counted<T>(&self, verb: &str, response: Result<T, ClusterError>) -> Result<T, ClusterError> {
        let code = response_code(&response);
        self.monitor.metrics.requested(verb, RESOURCE, code);
        response
    }
}
