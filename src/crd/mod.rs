//! The words of the cluster: names of annotations, labels, taints and conditions, and the parts of the
//! custom resources that are read or written.
//!
//! Constants and plain data, no client. The protocol's names and values are OpenShift's
//! (machine-config-operator) and must stay as they are, since its controllers read them; ours begin with
//! `machinist.dev/`. Nobody spells such a name anywhere else.

mod drain_request;
mod event;
mod machine_config_node;
mod machine_config_pool;
pub mod names;
mod node;
mod state;

pub use drain_request::DrainRequest;
pub use event::{EventReason, Weight};
pub use machine_config_node::{
    ConfigVersion, MachineConfigNodeStatus, NOT_YET, NodeCondition, NodeConditionKind, Progress,
};
pub use machine_config_pool::{
    IntOrString, MachineConfigPoolSpec, MachineConfigPoolStatus, Operator, PoolConfiguration,
    PoolView, Requirement, Selector,
};
pub use node::{Condition, NodeInfo, NodeSpec, NodeStatus, NodeView, Taint, is_extended};
pub use state::State;

/// How much of a text an annotation takes: all annotations of an object share 256 KiB, and OpenShift
/// cuts `reason` here.
pub const REASON_LIMIT: usize = 2000;

/// A text cut to `limit` bytes at most, on the boundary of a character.
pub fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

#[cfg(test)]
mod tests;
