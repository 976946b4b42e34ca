//! MachineConfigPool: as much of it as is read.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

use super::Condition;

/// A pool as it was at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolView {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// What is asked of it.
    pub spec: MachineConfigPoolSpec,
    /// What a controller says of it.
    pub status: MachineConfigPoolStatus,
    /// Why parts of it could not be read, which are as though they were not there.
    pub unread: Vec<String>,
}

impl PoolView {
    /// What is wrong with it as it is written, for whoever wrote it.
    pub fn mistakes(&self) -> Vec<String> {
        let of_it = |what: &String| format!("pool {}: {what}", self.name);
        let selector = self.spec.node_selector.mistakes();
        self.unread.iter().chain(&selector).map(of_it).collect()
    }
}

/// What is asked of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineConfigPoolSpec {
    /// The labels of its nodes.
    pub node_selector: Selector,
    /// The config that its nodes are to have.
    pub configuration: PoolConfiguration,
    /// Nobody gets a new desired config.
    pub paused: bool,
    /// How many nodes may be unavailable at once, as it is written; none where nothing is.
    pub max_unavailable: Option<IntOrString>,
}

/// What the API server takes where a number or a share may stand.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    /// A number.
    Int(i64),
    /// A share, or whatever else was written.
    Text(String),
}

/// What a controller says of a pool. One that never looked at it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineConfigPoolStatus {
    /// The config that all nodes were on last.
    pub configuration: PoolConfiguration,
    /// Nodes of the pool.
    pub machine_count: Option<u32>,
    /// Those on the pool's config.
    pub updated_machine_count: Option<u32>,
    /// Those that take pods, too.
    pub ready_machine_count: Option<u32>,
    /// Those that are away, or on their way.
    pub unavailable_machine_count: Option<u32>,
    /// Those that failed.
    pub degraded_machine_count: Option<u32>,
    /// `Updated`, `Updating`, `NodeDegraded`, `RenderDegraded`, `Degraded` and others.
    pub conditions: Vec<Condition>,
}

impl MachineConfigPoolStatus {
    /// A controller has looked at the pool.
    pub fn is_written(&self) -> bool {
        self.machine_count.is_some() || !self.conditions.is_empty()
    }

    /// Whether a condition is true; none where nobody says.
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
}

/// The labels that an object must have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Selector {
    /// Each with this value.
    pub match_labels: BTreeMap<String, String>,
    /// Each as it says.
    pub match_expressions: Vec<Requirement>,
}

/// One requirement on a label.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Requirement {
    /// The label.
    pub key: String,
    /// What it must be.
    pub operator: Operator,
    /// Among which, or not among which.
    #[serde(default)]
    pub values: Vec<String>,
}

/// What is required of a label.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum Operator {
    /// It has one of the values.
    In,
    /// It has none of the values, or is not there.
    NotIn,
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
    /// None of these.
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
    /// What is wrong with it, where the API server would take it for no requirement.
    fn mistake(&self) -> Option<String> {
        let key = &self.key;
        match (&self.operator, self.values.is_empty()) {
            (Operator::Unknown(other), _) => Some(format!(
                "the operator for {key} is {other:?}; expected In, NotIn, Exists or DoesNotExist"
            )),
            (Operator::In | Operator::NotIn, true) => Some(format!(
                "the values for {key} are none; expected one at least"
            )),
            (Operator::Exists | Operator::DoesNotExist, false) => Some(format!(
                "there are values for {key}; expected none beside this operator"
            )),
            _ => None,
        }
    }
}

impl Selector {
    /// It asks for nothing.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// What is wrong with it.
    pub fn mistakes(&self) -> Vec<String> {
        let all = self.match_expressions.iter().enumerate();
        let field = "spec.nodeSelector.matchExpressions";
        all.filter_map(|(at, one)| Some(format!("{field}[{at}]: {}", one.mistake()?)))
            .collect()
    }

    /// The labels that an expression requires to be there.
    pub fn required(&self) -> impl Iterator<Item = &str> {
        let requires = |it: &&Requirement| matches!(it.operator, Operator::In | Operator::Exists);
        let all = self.match_expressions.iter().filter(requires);
        all.map(|it| it.key.as_str())
    }

    /// Whether an object with these labels is selected. One that asks for nothing selects all, as the
    /// API server has it; one with a mistake selects nobody, as the controllers have it.
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
