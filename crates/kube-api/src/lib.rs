//! Names of annotations, labels, taints and conditions, and the fields of custom resources that
//! machinist reads or writes.
//!
//! Constants and plain data, without a client. Names and values of the machine-config protocol are
//! OpenShift's (machine-config-operator) and must not change, because its controllers read them;
//! machinist's own names begin with `machinist.dev/`. No other module defines such names.

mod drain_request;
mod event;
pub mod keys;
mod machine_config_node;
mod machine_config_pool;
mod mcd_state;
mod node;
mod pinned_image_set;

pub use drain_request::DrainRequest;
pub use event::{EventReason, EventType};
pub use machine_config_node::{
    ConfigVersion, ImageSetCondition, MachineConfigNodeStatus, NOT_YET_REASON, NodeCondition,
    NodeConditionKind, Progress,
};
pub use machine_config_pool::{
    IntOrString, MachineConfigPoolSpec, MachineConfigPoolStatus, NamedObject, Operator,
    PoolConfiguration, PoolView, Requirement, Selector,
};
pub use mcd_state::NodeUpdateState;
pub use node::{Condition, NodeInfo, NodeSpec, NodeStatus, NodeView, Taint, is_extended};
pub use pinned_image_set::{
    MAX_STATUS_IMAGE_SETS, NodeImageSetStatus, NodeImageSets, PinnedImageSetSpec,
    PinnedImageSetView,
};

/// Maximum length in bytes of a text in an annotation: all annotations of an object share 256 KiB,
/// and OpenShift truncates `reason` at this length.
pub const MAX_REASON_BYTES: usize = 2000;

/// Truncates a text to at most `limit` bytes, at a character boundary.
pub fn truncate_at_char(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

#[cfg(test)]
mod tests;
