//! MachineConfigPool: the fields that machinist reads.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

use super::Condition;

/// The observed state of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolView {
    /// Its name.
    pub name: String,
    /// Its UID, which changes if the pool is deleted and recreated.
    pub uid: String,
    /// Its resource version.
    pub resource_version: String,
    /// The generation of its spec.
    pub generation: Option<i64>,
    /// Annotations of the protocol and of machinist.
    pub annotations: BTreeMap<String, String>,
    /// Whether the pool has any annotations; otherwise a JSON patch must create the map first.
    pub has_annotations: bool,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The spec.
    pub spec: MachineConfigPoolSpec,
    /// The status, written by a controller.
    pub status: MachineConfigPoolStatus,
    /// Why fields could not be parsed; such fields count as absent.
    pub unread: Vec<String>,
}

impl PoolView {
    /// A non-empty annotation.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        let text = self.annotations.get(name)?.as_str();
        (!text.is_empty()).then_some(text)
    }

    /// Mistakes in the pool's definition, for its author.
    pub fn mistakes(&self) -> Vec<String> {
        let of_it = |what: &String| format!("pool {}: {what}", self.name);
        let nodes = self.spec.node_selector.mistakes("spec.nodeSelector");
        let configs = &self.spec.machine_config_selector;
        let configs = configs.mistakes("spec.machineConfigSelector");
        let selectors = nodes.iter().chain(&configs);
        self.unread.iter().chain(selectors).map(of_it).collect()
    }
}

/// The spec of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineConfigPoolSpec {
    /// Selects the nodes of the pool.
    pub node_selector: Selector,
    /// Selects the MachineConfigs that are merged into the pool's config.
    pub machine_config_selector: Selector,
    /// The desired config of its nodes.
    pub configuration: PoolConfiguration,
    /// Whether the rollout is paused: no node gets a new desired config.
    pub paused: bool,
    /// Maximum number of nodes that may be unavailable at once, as written; none if unset.
    pub max_unavailable: Option<IntOrString>,
    /// The stream of OS images that the nodes follow; not supported.
    pub os_image_stream: NamedObject,
    /// Sets of images that the nodes pull in advance, in addition to those with matching labels. A controller of
    /// OpenShift lists the latter here.
    pub pinned_image_sets: Vec<NamedObject>,
}

/// A reference to an object by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NamedObject {
    /// The name; empty if unset.
    pub name: String,
}

/// A Kubernetes `IntOrString`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    /// A number.
    Int(i64),
    /// A percentage, or any other text.
    Text(String),
}

/// The status of a pool; empty if no controller has processed it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineConfigPoolStatus {
    /// The generation of the spec that the status describes.
    pub observed_generation: Option<i64>,
    /// The last config that all nodes were on.
    pub configuration: PoolConfiguration,
    /// Number of nodes in the pool.
    pub machine_count: Option<u32>,
    /// Nodes on the pool's config.
    pub updated_machine_count: Option<u32>,
    /// Updated nodes that are also schedulable and ready.
    pub ready_machine_count: Option<u32>,
    /// Nodes that are unavailable, or about to be.
    pub unavailable_machine_count: Option<u32>,
    /// Nodes whose update failed.
    pub degraded_machine_count: Option<u32>,
    /// `Updated`, `Updating`, `NodeDegraded`, `RenderDegraded`, `Degraded` and others.
    pub conditions: Vec<Condition>,
}

impl MachineConfigPoolStatus {
    /// Whether a controller has processed the pool.
    pub fn is_written(&self) -> bool {
        self.machine_count.is_some() || !self.conditions.is_empty()
    }

    /// Whether a condition is true; none if it is missing.
    pub fn is(&self, kind: &str) -> Option<bool> {
        let found = self.conditions.iter().find(|it| it.kind == kind)?;
        Some(found.status == "True")
    }
}

/// The config of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PoolConfiguration {
    /// Its name; empty before the first rendering.
    pub name: String,
    /// The MachineConfigs that were merged into it.
    pub source: Vec<NamedObject>,
}

/// A label selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Selector {
    /// Labels that must have the given value.
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements.
    pub match_expressions: Vec<Requirement>,
}

/// One requirement on a label.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Requirement {
    /// The label.
    pub key: String,
    /// The operator.
    pub operator: Operator,
    /// The values for `In` and `NotIn`.
    #[serde(default)]
    pub values: Vec<String>,
}

/// Operator of a label requirement.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label has none of the values, or is absent.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
    /// An unsupported operator.
    Unknown(String),
}

impl From<String> for Operator {
    fn from(text: String) -> Self {
        match text.as_str() {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            _ => Self::Unknown(text),
        }
    }
}

impl Requirement {
    /// Why the API server would reject this requirement, if it would.
    fn mistake(&self) -> Option<String> {
        let key = &self.key;
        match (&self.operator, self.values.is_empty()) {
            (Operator::Unknown(other), _) => Some(format!(
                "invalid operator {other:?} for {key}; expected In, NotIn, Exists or DoesNotExist"
            )),
            (Operator::In | Operator::NotIn, true) => {
                Some(format!("no values for {key}; expected at least one"))
            }
            (Operator::Exists | Operator::DoesNotExist, false) => Some(format!(
                "unexpected values for {key}; this operator takes none"
            )),
            _ => None,
        }
    }
}

impl Selector {
    /// Whether it has no requirements.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// All mistakes in it; `field` is its path in the object.
    pub fn mistakes(&self, field: &str) -> Vec<String> {
        let all = self.match_expressions.iter().enumerate();
        all.filter_map(|(at, one)| {
            let mistake = one.mistake()?;
            Some(format!("{field}.matchExpressions[{at}]: {mistake}"))
        })
        .collect()
    }

    /// Labels that must be present according to the expressions.
    pub fn required(&self) -> impl Iterator<Item = &str> {
        let requires = |it: &&Requirement| matches!(it.operator, Operator::In | Operator::Exists);
        let all = self.match_expressions.iter().filter(requires);
        all.map(|it| it.key.as_str())
    }

    /// Whether an object with these labels is selected. An empty selector selects everything, as in
    /// the API server; an invalid requirement selects nothing, as in the controllers.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        let meets = |it: &Requirement| {
            let found = labels.get(&it.key);
            match &it.operator {
                _ if it.mistake().is_some() => false,
                Operator::Unknown(_) => false,
                Operator::In => found.is_some_and(|value| it.values.contains(value)),
                Operator::NotIn => found.is_none_or(|value| !it.values.contains(value)),
                Operator::Exists => found.is_some(),
                Operator::DoesNotExist => found.is_none(),
            }
        };
        self.match_labels.iter().all(has) && self.match_expressions.iter().all(meets)
    }
}
