//! What a drain needs to know of a pod.

use std::{collections::BTreeMap, fmt, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use serde::Serialize;

/// What the API server gives a pod that names no grace period of its own, in seconds.
const DEFAULT_GRACE: i64 = 30;

/// By this annotation the kubelet marks the image of a static pod; deleting it ends no container.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// One pod and no other: a namesake that came later has another UID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PodId {
    /// Its namespace.
    pub namespace: String,
    /// Its name in the namespace.
    pub name: String,
    /// What tells it from its namesakes.
    pub uid: String,
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Who makes a pod anew when it is gone: the owner that says so of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Such as `apps/v1`.
    pub api_version: String,
    /// Such as `ReplicaSet`.
    pub kind: String,
    /// Its name, in the pod's namespace.
    pub name: String,
}

/// How far a pod's life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// No container runs yet; no budget counts it.
    Pending,
    /// It runs, or nobody knows.
    Running,
    /// `Succeeded` or `Failed`: nothing of it will run again.
    Finished,
}

/// A pod on the node, as far as a drain looks at it.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// Which one.
    pub id: PodId,
    /// Its labels: budgets select by them.
    pub labels: BTreeMap<String, String>,
    /// Who makes it anew; none for a bare pod.
    pub controller: Option<Controller>,
    /// Whether it only mirrors a static pod.
    pub mirror: bool,
    /// Names of its `emptyDir` volumes: what is in them is lost with the pod.
    pub local_data: Vec<String>,
    /// How far its life has come.
    pub life: Life,
    /// Whether its condition `Ready` is true: that is healthy, for a budget.
    pub ready: bool,
    /// Whether every container has ended for good.
    pub ended: bool,
    /// The number of its priority class; zero without one.
    pub priority: i32,
    /// How long it may take to end; once it is being deleted, what the deletion gave it.
    pub grace: Duration,
    /// When it must have ended, once it is being deleted: a time to come, not the time of the request.
    pub deleting: Option<Timestamp>,
    /// Who must still let go of the object.
    pub finalizers: Vec<String>,
}

impl Pod {
    /// Whether it has been asked to end.
    pub fn is_leaving(&self) -> bool {
        self.deleting.is_some()
    }

    /// Whether nothing of it will run again.
    pub fn is_finished(&self) -> bool {
        self.life == Life::Finished
    }
}

impl From<&core::Pod> for Pod {
    fn from(pod: &core::Pod) -> Self {
        let meta = &pod.metadata;
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let life = match status.and_then(|status| status.phase.as_deref()) {
            Some("Succeeded" | "Failed") => Life::Finished,
            Some("Pending") => Life::Pending,
            _ => Life::Running,
        };
        let own_grace = spec.and_then(|spec| spec.termination_grace_period_seconds);
        let given = meta.deletion_grace_period_seconds.or(own_grace);
        let grace = u64::try_from(given.unwrap_or(DEFAULT_GRACE)).unwrap_or_default();
        let annotations = meta.annotations.as_ref();
        Self {
            id: PodId {
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
                uid: meta.uid.clone().unwrap_or_default(),
            },
            labels: meta.labels.clone().unwrap_or_default(),
            controller: controller(pod),
            mirror: annotations.is_some_and(|all| all.contains_key(MIRROR)),
            local_data: spec.map(empty_dirs).unwrap_or_default(),
            life,
            ready: status.is_some_and(is_ready),
            ended: life == Life::Finished || status.is_some_and(all_ended),
            priority: spec.and_then(|spec| spec.priority).unwrap_or_default(),
            grace: Duration::from_secs(grace),
            deleting: meta.deletion_timestamp.as_ref().map(|time| time.0),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
        }
    }
}

fn controller(pod: &core::Pod) -> Option<Controller> {
    let owners = pod.metadata.owner_references.iter().flatten();
    let mut owners = owners.filter(|owner| owner.controller == Some(true));
    owners.next().map(|owner| Controller {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
    })
}

fn empty_dirs(spec: &core::PodSpec) -> Vec<String> {
    let volumes = spec.volumes.iter().flatten();
    let empty = volumes.filter(|volume| volume.empty_dir.is_some());
    empty.map(|volume| volume.name.clone()).collect()
}

fn is_ready(status: &core::PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// A pod of which no container was ever reported has not ended: it has not been looked at.
fn all_ended(status: &core::PodStatus) -> bool {
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    let others = [
        status.init_container_statuses.as_deref(),
        status.ephemeral_container_statuses.as_deref(),
    ];
    let others = others.into_iter().flatten().flatten();
    let runs = |one: &core::ContainerStatus| {
        let state = one.state.as_ref();
        state.is_some_and(|state| state.running.is_some())
    };
    let ended = |one: &core::ContainerStatus| {
        let state = one.state.as_ref();
        state.is_some_and(|state| state.terminated.is_some())
    };
    !containers.is_empty() && containers.iter().all(ended) && !others.into_iter().any(runs)
}
