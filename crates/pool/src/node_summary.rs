//! What decisions need to know about one Node beside its name.
//!
//! A Node has many small strings all over the memory, and a decision about thousands would spend most of its time on
//! reading them. An adapter that decides again and again keeps a [`NodeFacts`] for each version of a Node instead.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, OnceLock},
};

use jiff::Timestamp;

use machinist_kube_api::{
    NodeUpdateState, NodeView,
    keys::{annotation, condition, label, protocol, taint},
};

use super::grant_progress::GrantMarks;

/// Effect of the taint of the update.
pub const UPDATE_TAINT_EFFECT: &str = "PreferNoSchedule";

/// How many names are kept at least before those that no Node has any more are dropped.
const MIN_KEPT_NAMES: usize = 1024;

/// The facts of a Node. Texts are annotations with a value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeSummary<T> {
    pub(super) current_config: Option<T>,
    pub(super) desired_config: Option<T>,
    pub(super) current_image: Option<T>,
    pub(super) desired_image: Option<T>,
    pub(super) first_pivot_config: Option<T>,
    pub(super) skip_rollout: Option<T>,
    pub(super) zone: Option<T>,
    pub(super) state: Option<NodeUpdateState>,
    pub(super) heartbeat: Option<Timestamp>,
    pub(super) has_custom_pool_labels: bool,
    pub(super) has_grant: bool,
    pub(super) has_update_taint: bool,
    pub(super) is_cordoned: bool,
    /// It is schedulable: it is not cordoned, and its conditions are good. A missing condition counts as good.
    pub(super) is_ready: bool,
}

impl<'a> NodeSummary<&'a str> {
    /// Reads a Node. The annotations are found in one pass: each lookup by name compares several long names that begin
    /// alike.
    pub(super) fn of(node: &'a NodeView) -> Self {
        let zone = node.labels.get(label::ZONE).map(String::as_str);
        let mut found = Self {
            zone: zone.filter(|zone| !zone.is_empty()),
            heartbeat: node.agent_heartbeat(),
            has_update_taint: has_update_taint(node),
            is_cordoned: node.is_cordoned(),
            is_ready: is_ready(node),
            ..Self::default()
        };
        for (name, value) in &node.annotations {
            let text = (!value.is_empty()).then_some(value.as_str());
            match name.as_str() {
                protocol::CURRENT_CONFIG => found.current_config = text,
                protocol::DESIRED_CONFIG => found.desired_config = text,
                protocol::CURRENT_IMAGE => found.current_image = text,
                protocol::DESIRED_IMAGE => found.desired_image = text,
                protocol::STATE => found.state = text.and_then(NodeUpdateState::parse),
                protocol::FIRST_PIVOT_CONFIG => found.first_pivot_config = text,
                protocol::CUSTOM_POOL_LABELS => found.has_custom_pool_labels = true,
                annotation::SKIP_ROLLOUT => found.skip_rollout = text,
                annotation::GRANT => found.has_grant = text.is_some(),
                _ => {}
            }
        }
        found
    }
}

impl<T> NodeSummary<T> {
    /// Whether the Node has a grant that has not ended. A grant that cannot be parsed counts as open.
    pub(super) fn has_open_grant(&self, node: &NodeView) -> bool {
        self.has_grant && GrantMarks::of(node).has_open_grant()
    }

    /// Converts the texts.
    fn map<'s, U>(&'s self, mut to: impl FnMut(&'s T) -> U) -> NodeSummary<U> {
        let mut convert = |text: &'s Option<T>| text.as_ref().map(&mut to);
        NodeSummary {
            current_config: convert(&self.current_config),
            desired_config: convert(&self.desired_config),
            current_image: convert(&self.current_image),
            desired_image: convert(&self.desired_image),
            first_pivot_config: convert(&self.first_pivot_config),
            skip_rollout: convert(&self.skip_rollout),
            zone: convert(&self.zone),
            state: self.state,
            heartbeat: self.heartbeat,
            has_custom_pool_labels: self.has_custom_pool_labels,
            has_grant: self.has_grant,
            has_update_taint: self.has_update_taint,
            is_cordoned: self.is_cordoned,
            is_ready: self.is_ready,
        }
    }
}

/// Returns whether a node has the taint, for its removal when machinist is uninstalled or a pool is deleted.
pub fn has_update_taint(node: &NodeView) -> bool {
    node.has_taint(taint::UPDATE_IN_PROGRESS, UPDATE_TAINT_EFFECT)
}

fn is_ready(node: &NodeView) -> bool {
    let is = |kind, good: &str| {
        node.condition(kind)
            .is_none_or(|condition| condition.status == good)
    };
    !node.is_cordoned()
        && is(condition::KUBELET_READY, "True")
        && is(condition::DISK_PRESSURE, "False")
        && is(condition::NETWORK_UNAVAILABLE, "False")
}

/// What decisions read of one version of a Node.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    summary: NodeSummary<Arc<str>>,
    pub(super) has_open_grant: bool,
    pub(super) name_hash: u64,
    /// Parsed when they are first needed: few Nodes have a grant.
    marks: OnceLock<Arc<GrantMarks>>,
}

/// A hash of a node's name, to find few nodes among thousands.
pub(super) fn name_hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

impl NodeFacts {
    /// Reads a Node.
    pub fn new(node: &NodeView, names: &mut SharedNames) -> Self {
        let summary = NodeSummary::of(node);
        let marks = OnceLock::new();
        let parsed = || marks.get_or_init(|| Arc::new(GrantMarks::of(node)));
        Self {
            has_open_grant: summary.has_grant && parsed().has_open_grant(),
            name_hash: name_hash(&node.name),
            summary: summary.map(|text| names.shared(text)),
            marks,
        }
    }

    /// The marks of grants on the Node that these are the facts of.
    pub(super) fn marks(&self, node: &NodeView) -> &GrantMarks {
        self.marks.get_or_init(|| Arc::new(GrantMarks::of(node)))
    }

    pub(super) fn summary(&self) -> NodeSummary<&str> {
        self.summary.map(|text| &**text)
    }
}

/// Names that many Nodes have in common, such as those of configs, each in memory once.
#[derive(Debug, Default)]
pub struct SharedNames {
    names: HashSet<Arc<str>>,
    /// How many names there were after the last unused ones were dropped.
    used: usize,
}

impl SharedNames {
    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return known.clone();
        }
        if self.names.len() >= (2 * self.used).max(MIN_KEPT_NAMES) {
            self.names.retain(|name| Arc::strong_count(name) > 1);
            self.used = self.names.len();
        }
        let name: Arc<str> = name.into();
        self.names.insert(name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shared_and_dropped_after_their_nodes() {
        let mut names = SharedNames::default();
        let first = names.shared("rendered-worker-1");
        assert!(Arc::ptr_eq(&first, &names.shared("rendered-worker-1")));
        for at in 0..3 * MIN_KEPT_NAMES {
            names.shared(&format!("rendered-worker-{at}"));
        }
        assert!(names.names.len() <= MIN_KEPT_NAMES, "{names:?}");
        assert!(Arc::ptr_eq(&first, &names.shared("rendered-worker-1")));
    }
}
