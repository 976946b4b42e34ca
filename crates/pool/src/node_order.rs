//! Orders the candidates of a rollout.

use std::collections::HashSet;

use machinist_kube_api::NodeView;

use super::pool_member::PoolMember;

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

/// The place of a node in an order. It has no label values: a comparison of two would read memory all over.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OrderKey<'n> {
    /// The position of the label's value among all values, or one after them.
    label: usize,
    zone: usize,
    age: (bool, Option<i128>),
    /// Decides among equals, so that the order does not depend on that of the input.
    name: &'n str,
}

impl NodeOrder {
    /// Returns the places of members, in the order of the input.
    pub(super) fn keys<'n>(&self, members: &[&PoolMember<'n>]) -> Vec<OrderKey<'n>> {
        let values = members.iter().map(|member| {
            let own = match self {
                Self::ZoneThenAge | Self::NewestFirst => None,
                Self::Label(key) => label(member.node, key),
            };
            (member.node, own, member.zone)
        });
        let values: Vec<_> = values.collect();
        let labels = sorted(values.iter().filter_map(|(_, label, _)| *label));
        let zones = sorted(values.iter().filter_map(|(.., zone)| *zone));
        let keys = values.into_iter().map(|(node, label, zone)| OrderKey {
            label: position(label, &labels),
            zone: position(zone, &zones),
            age: self.age(node),
            name: &node.name,
        });
        keys.collect()
    }

    /// The key of the age; a missing one is last.
    fn age(&self, node: &NodeView) -> (bool, Option<i128>) {
        let created = node.created.map(|time| time.as_nanosecond());
        let age = match self {
            Self::NewestFirst => created.map(|time| -time),
            Self::ZoneThenAge | Self::Label(_) => created,
        };
        (age.is_none(), age)
    }
}

/// The different values, in order.
fn sorted<'n>(values: impl Iterator<Item = &'n str>) -> Vec<&'n str> {
    let different: HashSet<_> = values.collect();
    let mut different: Vec<_> = different.into_iter().collect();
    different.sort_unstable();
    different
}

fn position(value: Option<&str>, sorted: &[&str]) -> usize {
    let found = value.map(|value| sorted.binary_search(&value));
    found.and_then(Result::ok).unwrap_or(sorted.len())
}

fn label<'n>(node: &'n NodeView, key: &str) -> Option<&'n str> {
    let value = node.labels.get(key)?.as_str();
    (!value.is_empty()).then_some(value)
}
