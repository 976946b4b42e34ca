//! The Node: the fields that machinist uses.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{DrainRequest, NodeUpdateState, keys};

/// The fields of `spec` that are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Whether the node is cordoned.
    pub unschedulable: bool,
    /// All taints.
    pub taints: Vec<Taint>,
}

/// One taint with all its fields, because the list of taints is written back as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
    /// All other fields, such as `value` and `timeAdded`.
    #[serde(flatten)]
    pub rest: BTreeMap<String, serde_json::Value>,
}

/// The fields of `status` that are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// All conditions.
    pub conditions: Vec<Condition>,
    /// Capacity by resource.
    pub capacity: BTreeMap<String, String>,
    /// Allocatable amount by resource.
    pub allocatable: BTreeMap<String, String>,
    /// Machine information reported by the kubelet.
    pub node_info: NodeInfo,
}

/// Machine information reported by the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeInfo {
    /// Boot ID at the kubelet's last report.
    #[serde(rename = "bootID")]
    pub boot_id: String,
}

/// One condition of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The condition type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason, as a code.
    #[serde(default)]
    pub reason: String,
    /// The message.
    #[serde(default)]
    pub message: String,
    /// When it was last confirmed.
    #[serde(default)]
    pub last_heartbeat_time: Option<Timestamp>,
    /// When the status last changed.
    #[serde(default)]
    pub last_transition_time: Option<Timestamp>,
}

/// Whether a resource is an extended resource, by the kubelet's rule: its name has a domain outside
/// kubernetes.io.
pub fn is_extended(resource: &str) -> bool {
    let domain = resource.split_once('/').map(|(domain, _)| domain);
    domain.is_some_and(|domain| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

/// The agent's Node at one resource version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Its UID, which changes if the Node is deleted and recreated.
    pub uid: String,
    /// Its resource version.
    pub resource_version: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Annotations of the protocol and of machinist.
    pub annotations: BTreeMap<String, String>,
    /// Whether the Node has any annotations; otherwise a JSON patch must create the map first.
    pub has_annotations: bool,
    /// All labels.
    pub labels: BTreeMap<String, String>,
    /// The cordon and the taints.
    pub spec: NodeSpec,
    /// Conditions and resources.
    pub status: NodeStatus,
}

impl NodeView {
    /// A non-empty annotation.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        let text = self.annotations.get(name)?.as_str();
        (!text.is_empty()).then_some(text)
    }

    /// Whether an annotation is kept in the view; others may be long and are not used.
    pub fn is_kept_annotation(annotation: &str) -> bool {
        let prefix = annotation.split_once('/').map_or("", |(prefix, _)| prefix);
        prefix == keys::GROUP || annotation.starts_with(keys::MACHINIST_PREFIX)
    }

    /// The desired config.
    pub fn desired_config(&self) -> Option<&str> {
        self.annotation(keys::protocol::DESIRED_CONFIG)
    }

    /// The current config according to the Node; the journal is authoritative.
    pub fn current_config(&self) -> Option<&str> {
        self.annotation(keys::protocol::CURRENT_CONFIG)
    }

    /// The last written state.
    pub fn state(&self) -> Option<NodeUpdateState> {
        NodeUpdateState::parse(self.annotation(keys::protocol::STATE)?)
    }

    /// The node's request to the controller.
    pub fn desired_drain(&self) -> Option<DrainRequest> {
        DrainRequest::parse(self.annotation(keys::protocol::DESIRED_DRAIN)?)
    }

    /// The last request that the controller fulfilled.
    pub fn last_applied_drain(&self) -> Option<DrainRequest> {
        DrainRequest::parse(self.annotation(keys::protocol::LAST_APPLIED_DRAIN)?)
    }

    /// Whether the node is cordoned.
    pub fn is_cordoned(&self) -> bool {
        self.spec.unschedulable
    }

    /// Whether the annotation for machinist's cordon is set; [`NodeView::is_cordoned`] reports
    /// whether the cordon exists.
    pub fn has_cordon_mark(&self) -> bool {
        self.annotations.contains_key(keys::annotation::CORDONED)
    }

    /// Whether an operator asked to keep the cordon.
    pub fn keeps_cordon(&self) -> bool {
        self.annotations
            .contains_key(keys::annotation::KEEP_CORDONED)
    }

    /// The config whose update an operator asked to cancel.
    pub fn cancel(&self) -> Option<&str> {
        self.annotation(keys::annotation::CANCEL)
    }

    /// The config whose update the agent cancelled.
    pub fn cancelled(&self) -> Option<&str> {
        self.annotation(keys::annotation::CANCELLED)
    }

    /// The reason why an operator forces the drain, if one does.
    pub fn forced_drain(&self) -> Option<&str> {
        let why = self.annotation(keys::annotation::FORCE_DRAIN)?;
        (!why.trim().is_empty()).then_some(why)
    }

    /// Whether an operator's force request lacks a reason; it has no effect then.
    pub fn forces_without_a_reason(&self) -> bool {
        let said = self.annotations.get(keys::annotation::FORCE_DRAIN);
        said.is_some_and(|why| why.trim().is_empty())
    }

    /// Extended resources with a capacity of zero: the kubelet never removes a resource that it has
    /// known.
    pub fn zeros(&self) -> impl Iterator<Item = &str> {
        let counted = self.status.capacity.iter();
        let zeros = counted.filter(|(name, count)| is_extended(name) && *count == "0");
        zeros.map(|(name, _)| name.as_str())
    }

    /// The condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|it| it.kind == kind)
    }

    /// Whether the kubelet has reported ready in this boot. The status from before a reboot may
    /// remain for up to the node monitor grace period.
    pub fn is_ready_in(&self, boot_id: &str) -> bool {
        let ready = self.condition(keys::condition::KUBELET_READY);
        self.status.node_info.boot_id == boot_id && ready.is_some_and(|it| it.status == "True")
    }

    /// Whether the node has a taint with this key and effect.
    pub fn has_taint(&self, key: &str, effect: &str) -> bool {
        let taints = &self.spec.taints;
        taints.iter().any(|it| it.key == key && it.effect == effect)
    }

    /// When the agent last confirmed one of its conditions; none if no agent has published any.
    pub fn agent_heartbeat(&self) -> Option<Timestamp> {
        let conditions = self.status.conditions.iter();
        conditions
            .filter(|it| it.kind.starts_with(keys::MACHINIST_PREFIX))
            .filter_map(|it| it.last_heartbeat_time)
            .max()
    }

    /// The roles from `node-role.kubernetes.io/` labels.
    pub fn roles(&self) -> BTreeSet<&str> {
        let roles = self.labels.keys();
        roles
            .filter_map(|label| label.strip_prefix(keys::label::ROLE_PREFIX))
            .collect()
    }

    /// Whether this is a control plane node.
    pub fn is_control_plane(&self) -> bool {
        let roles = self.roles();
        roles.contains(keys::label::ROLE_MASTER) || roles.contains(keys::label::ROLE_CONTROL_PLANE)
    }

    /// Whether this is an older version of the same Node than `other`. Resource versions increase
    /// in all existing servers, and servers guarantee it from 1.35 on; incomparable versions count
    /// as newer.
    pub fn is_older_than(&self, other: &Self) -> bool {
        let number = |view: &Self| view.resource_version.parse::<u64>().ok();
        self.uid == other.uid
            && matches!((number(self), number(other)), (Some(own), Some(others)) if own < others)
    }
}
