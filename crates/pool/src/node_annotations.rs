//! The annotations of one node that a decision uses, found in one pass: each lookup by name compares several long names
//! that begin alike, and a decision about thousands of nodes would spend most of its time on that.

use machinist_kube_api::{
    NodeUpdateState, NodeView,
    keys::{annotation, protocol},
};

/// Annotations with a value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeAnnotations<'a> {
    pub(super) current_config: Option<&'a str>,
    pub(super) desired_config: Option<&'a str>,
    pub(super) current_image: Option<&'a str>,
    pub(super) desired_image: Option<&'a str>,
    pub(super) state: Option<NodeUpdateState>,
    pub(super) first_pivot_config: Option<&'a str>,
    pub(super) skip_rollout: Option<&'a str>,
    pub(super) has_custom_pool_labels: bool,
    pub(super) has_grant: bool,
}

impl<'a> NodeAnnotations<'a> {
    pub(super) fn of(node: &'a NodeView) -> Self {
        let mut found = Self::default();
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
