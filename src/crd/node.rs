//! The Node, as far as it concerns us.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{DrainRequest, State, names};

/// The part of `spec` that is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Cordoned.
    pub unschedulable: bool,
    /// Everybody's taints.
    pub taints: Vec<Taint>,
}

/// One taint, with every field it has: a list is written back whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
    /// Whatever else it says, such as `value` and `timeAdded`.
    #[serde(flatten)]
    pub rest: BTreeMap<String, serde_json::Value>,
}

/// The part of `status` that is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// Everybody's conditions.
    pub conditions: Vec<Condition>,
    /// What there is, by resource.
    pub capacity: BTreeMap<String, String>,
    /// What pods may ask for, by resource.
    pub allocatable: BTreeMap<String, String>,
    /// What the kubelet says of the machine.
    pub node_info: NodeInfo,
}

/// What the kubelet says of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeInfo {
    /// The boot that the kubelet reported from.
    #[serde(rename = "bootID")]
    pub boot_id: String,
}

/// One condition of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A code.
    #[serde(default)]
    pub reason: String,
    /// A sentence.
    #[serde(default)]
    pub message: String,
    /// When it was last confirmed.
    #[serde(default)]
    pub last_heartbeat_time: Option<Timestamp>,
    /// When the status became what it is.
    #[serde(default)]
    pub last_transition_time: Option<Timestamp>,
}

/// Whether a resource is somebody's own, as the kubelet tells them from Kubernetes': its name has another domain.
pub fn is_extended(resource: &str) -> bool {
    let domain = resource.split_once('/').map(|(domain, _)| domain);
    domain.is_some_and(|domain| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

/// Our Node as it was at one version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Its identity: a Node that was deleted and registered anew is another one.
    pub uid: String,
    /// The version.
    pub resource_version: String,
    /// Everybody's annotations that the protocol or we know of.
    pub annotations: BTreeMap<String, String>,
    /// Whether there are annotations at all; a JSON patch must make the first.
    pub has_annotations: bool,
    /// Everybody's labels.
    pub labels: BTreeMap<String, String>,
    /// Cordon and taints.
    pub spec: NodeSpec,
    /// Conditions and what is allocatable.
    pub status: NodeStatus,
}

impl NodeView {
    /// An annotation that says something.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        let text = self.annotations.get(name)?.as_str();
        (!text.is_empty()).then_some(text)
    }

    /// Which annotations are kept: everybody else's may be long, and are nobody's business here.
    pub fn concerns_us(annotation: &str) -> bool {
        let prefix = annotation.split_once('/').map_or("", |(prefix, _)| prefix);
        prefix == names::GROUP || annotation.starts_with(names::OURS)
    }

    /// The config that the node is to have.
    pub fn desired_config(&self) -> Option<&str> {
        self.annotation(names::protocol::DESIRED_CONFIG)
    }

    /// The config that the Node says it is on. The journal knows better.
    pub fn current_config(&self) -> Option<&str> {
        self.annotation(names::protocol::CURRENT_CONFIG)
    }

    /// The state that was written last.
    pub fn state(&self) -> Option<State> {
        State::parse(self.annotation(names::protocol::STATE)?)
    }

    /// What was asked of the controller.
    pub fn desired_drain(&self) -> Option<DrainRequest> {
        DrainRequest::parse(self.annotation(names::protocol::DESIRED_DRAIN)?)
    }

    /// What the controller has fulfilled.
    pub fn last_applied_drain(&self) -> Option<DrainRequest> {
        DrainRequest::parse(self.annotation(names::protocol::LAST_APPLIED_DRAIN)?)
    }

    /// Nobody new may be scheduled here.
    pub fn is_cordoned(&self) -> bool {
        self.spec.unschedulable
    }

    /// The cordon is, or was, ours; whether it stands says [`NodeView::is_cordoned`].
    pub fn has_our_mark(&self) -> bool {
        self.annotations.contains_key(names::annotation::CORDONED)
    }

    /// A person wants the cordon to stay.
    pub fn keeps_cordon(&self) -> bool {
        self.annotations
            .contains_key(names::annotation::KEEP_CORDONED)
    }

    /// The config whose update a person cancels.
    pub fn cancel(&self) -> Option<&str> {
        self.annotation(names::annotation::CANCEL)
    }

    /// The config whose update was given up, as the agent has answered.
    pub fn cancelled(&self) -> Option<&str> {
        self.annotation(names::annotation::CANCELLED)
    }

    /// A person forces the drain, and why.
    pub fn forced_drain(&self) -> Option<&str> {
        let why = self.annotation(names::annotation::FORCE_DRAIN)?;
        (!why.trim().is_empty()).then_some(why)
    }

    /// A person wants the drain forced and does not say why: that forces nothing.
    pub fn forces_without_a_reason(&self) -> bool {
        let said = self.annotations.get(names::annotation::FORCE_DRAIN);
        said.is_some_and(|why| why.trim().is_empty())
    }

    /// Extended resources of which the Node counts none: the kubelet never takes one out that it has known.
    pub fn zeros(&self) -> impl Iterator<Item = &str> {
        let counted = self.status.capacity.iter();
        let zeros = counted.filter(|(name, count)| is_extended(name) && *count == "0");
        zeros.map(|(name, _)| name.as_str())
    }

    /// A condition.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|it| it.kind == kind)
    }

    /// The kubelet has said from this boot, and since that time, that the node is ready: what it said
    /// before the reboot stands for up to the grace period.
    pub fn is_ready_in(&self, boot_id: &str) -> bool {
        let ready = self.condition(names::condition::KUBELET_READY);
        self.status.node_info.boot_id == boot_id && ready.is_some_and(|it| it.status == "True")
    }

    /// Whether a taint of that key and effect is there.
    pub fn has_taint(&self, key: &str, effect: &str) -> bool {
        let taints = &self.spec.taints;
        taints.iter().any(|it| it.key == key && it.effect == effect)
    }

    /// The roles of `node-role.kubernetes.io/` labels.
    pub fn roles(&self) -> BTreeSet<&str> {
        let roles = self.labels.keys();
        roles
            .filter_map(|label| label.strip_prefix(names::label::ROLE_PREFIX))
            .collect()
    }

    /// Whether this is one of the control plane.
    pub fn is_control_plane(&self) -> bool {
        let roles = self.roles();
        roles.contains(names::label::ROLE_MASTER)
            || roles.contains(names::label::ROLE_CONTROL_PLANE)
    }

    /// Whether this is an older version of the same Node than `other`. Versions count up in every
    /// server there is, and servers from 1.35 on promise it; what does not compare is taken as newer.
    pub fn is_older_than(&self, other: &Self) -> bool {
        let number = |view: &Self| view.resource_version.parse::<u64>().ok();
        self.uid == other.uid
            && matches!((number(self), number(other)), (Some(own), Some(others)) if own < others)
    }
}
