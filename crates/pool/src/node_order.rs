//! Orders the candidates of a rollout.

use machinist_kube_api::{NodeView, keys::label as label_key};

/// The order in which nodes are updated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeOrder {
    /// Zones by name, nodes without a zone last; the oldest node of a zone first. OpenShift's order.
    ZoneThenAge,
    /// Zones by name, nodes without a zone last; the newest node of a zone first, because old nodes are more likely to
    /// be replaced soon.
    NewestFirst,
    /// By the value of a label, nodes without it last; among equals as [`NodeOrder::ZoneThenAge`].
    Label(String),
}

/// The place of a node in an order; computed once per node, because labels are long.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderKey<'n> {
    label: NoneLast<&'n str>,
    zone: NoneLast<&'n str>,
    age: NoneLast<i128>,
    /// Decides among equals, so that the order does not depend on that of the input.
    name: &'n str,
}

/// A value that is ordered after all others if it is missing.
type NoneLast<T> = (bool, Option<T>);

impl NodeOrder {
    /// Returns the place of a node.
    pub fn key<'n>(&self, node: &'n NodeView) -> OrderKey<'n> {
        let value = match self {
            Self::ZoneThenAge | Self::NewestFirst => None,
            Self::Label(key) => label(node, key),
        };
        let created = node.created.map(|time| time.as_nanosecond());
        let age = match self {
            Self::NewestFirst => created.map(|time| -time),
            Self::ZoneThenAge | Self::Label(_) => created,
        };
        OrderKey {
            label: none_last(value),
            zone: none_last(label(node, label_key::ZONE)),
            age: none_last(age),
            name: &node.name,
        }
    }
}

fn label<'n>(node: &'n NodeView, key: &str) -> Option<&'n str> {
    let value = node.labels.get(key)?.as_str();
    (!value.is_empty()).then_some(value)
}

fn none_last<T>(value: Option<T>) -> NoneLast<T> {
    (value.is_none(), value)
}
