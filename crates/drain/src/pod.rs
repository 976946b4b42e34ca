//! The properties of a pod that a drain uses.

use std::{collections::BTreeMap, fmt, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use serde::Serialize;

/// Default of `terminationGracePeriodSeconds`.
const DEFAULT_GRACE_SECS: i64 = 30;

/// Annotation of mirror pods, by which the kubelet represents static pods; deleting one ends no
/// container.
const MIRROR_POD_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Identifies one pod; a later pod of the same name has another UID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PodId {
    /// Its namespace.
    pub namespace: String,
    /// Its name in the namespace.
    pub name: String,
    /// The UID.
    pub uid: String,
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The controller that recreates a pod: its owner reference with `controller: true`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodController {
    /// Such as `apps/v1`.
    pub api_version: String,
    /// Such as `ReplicaSet`.
    pub kind: String,
    /// Its name, in the pod's namespace.
    pub name: String,
}

/// Phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// No container runs yet; budgets do not apply.
    Pending,
    /// It runs, or its phase is unknown.
    Running,
    /// `Succeeded` or `Failed`: its containers will not run again.
    Finished,
}

/// A pod on the node, reduced to what a drain uses.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// Its identity.
    pub id: PodId,
    /// Its labels, which budgets select by.
    pub labels: BTreeMap<String, String>,
    /// The controller that recreates it; none for a bare pod.
    pub controller: Option<PodController>,
    /// Whether it is the mirror pod of a static pod.
    pub mirror: bool,
    /// Names of its `emptyDir` volumes, whose data is lost with the pod.
    pub local_data: Vec<String>,
    /// Its phase.
    pub life: PodPhase,
    /// Whether its condition `Ready` is true, which counts as healthy for a budget.
    pub ready: bool,
    /// Whether all containers have ended for good.
    pub ended: bool,
    /// The value of its priority class; zero without one.
    pub priority: i32,
    /// Its grace period; once it is being deleted, that of the deletion.
    pub grace: Duration,
    /// The deadline of its deletion, if it is being deleted: the time of the request plus the grace
    /// period.
    pub deleting: Option<Timestamp>,
    /// Finalizers that keep the object.
    pub finalizers: Vec<String>,
}

impl Pod {
    /// Whether it is terminating.
    pub fn is_terminating(&self) -> bool {
        self.deleting.is_some()
    }

    /// Whether its containers will not run again.
    pub fn is_finished(&self) -> bool {
        self.life == PodPhase::Finished
    }
}

impl From<&core::Pod> for Pod {
    fn from(pod: &core::Pod) -> Self {
        let meta = &pod.metadata;
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let life = match status.and_then(|status| status.phase.as_deref()) {
            Some("Succeeded" | "Failed") => PodPhase::Finished,
            Some("Pending") => PodPhase::Pending,
            _ => PodPhase::Running,
        };
        let own_grace = spec.and_then(|spec| spec.termination_grace_period_seconds);
        let given = meta.deletion_grace_period_seconds.or(own_grace);
        let grace = u64::try_from(given.unwrap_or(DEFAULT_GRACE_SECS)).unwrap_or_default();
        let annotations = meta.annotations.as_ref();
        Self {
            id: PodId {
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
                uid: meta.uid.clone().unwrap_or_default(),
            },
            labels: meta.labels.clone().unwrap_or_default(),
            controller: controller(pod),
            mirror: annotations.is_some_and(|all| all.contains_key(MIRROR_POD_ANNOTATION)),
            local_data: spec.map(empty_dirs).unwrap_or_default(),
            life,
            ready: status.is_some_and(is_ready),
            ended: life == PodPhase::Finished || status.is_some_and(all_ended),
            priority: spec.and_then(|spec| spec.priority).unwrap_or_default(),
            grace: Duration::from_secs(grace),
            deleting: meta.deletion_timestamp.as_ref().map(|time| time.0),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
        }
    }
}

fn controller(pod: &core::Pod) -> Option<PodController> {
    let owners = pod.metadata.owner_references.iter().flatten();
    let mut owners = owners.filter(|owner| owner.controller == Some(true));
    owners.next().map(|owner| PodController {
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

/// A pod without any container status has not ended: the kubelet has not processed it yet.
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
