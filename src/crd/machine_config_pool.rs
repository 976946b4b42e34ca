//! MachineConfigPool: as much of it as a node reads.

use std::collections::BTreeMap;

use serde::Deserialize;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Operator {
    /// It has one of the values.
    In,
    /// It has none of the values, or is not there.
    NotIn,
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
}

impl Selector {
    /// Whether an object with these labels is selected. One that asks for nothing selects all, as the
    /// API server has it.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        let meets = |it: &Requirement| {
            let found = labels.get(&it.key);
            match it.operator {
                Operator::In => found.is_some_and(|value| it.values.contains(value)),
                Operator::NotIn => found.is_none_or(|value| !it.values.contains(value)),
                Operator::Exists => found.is_some(),
                Operator::DoesNotExist => found.is_none(),
            }
        };
        self.match_labels.iter().all(has) && self.match_expressions.iter().all(meets)
    }
}
