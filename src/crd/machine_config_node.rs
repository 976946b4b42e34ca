//! MachineConfigNode: the progress of one node's update, for people and for pools' counts.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Progress {
    /// It is done.
    True,
    /// It is not done.
    False,
    /// It is being done.
    Unknown,
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident $(in $parent:ident)?,)+) => {
        /// The conditions, in the order in which an update goes through them, which is the order they
        /// are written in.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum NodeConditionKind { $($(#[doc = $doc])+ $name,)+ }

        impl NodeConditionKind {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// As it is written.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// The reason that a condition carries: its own name, after its parent's where it is a part
            /// of another.
            pub const fn reason(self) -> &'static str {
                match self { $(Self::$name => concat!($(stringify!($parent),)? stringify!($name)),)+ }
            }
        }
    };
}

kinds! {
    /// Compatibility, actions and the need for a drain are known.
    UpdatePrepared,
    /// The machine was changed: parent of the next three.
    UpdateExecuted,
    /// The node is unschedulable.
    Cordoned in UpdateExecuted,
    /// Its pods are gone.
    Drained in UpdateExecuted,
    /// Files and OS are in place.
    AppliedFilesAndOS in UpdateExecuted,
    /// Units were reloaded and restarted, or nothing was to be.
    UpdatePostActionComplete,
    /// The machine came back.
    RebootedNode,
    /// The config was found in force after a start.
    Resumed,
    /// All is done but for pods coming back: parent of the next.
    UpdateComplete,
    /// The node takes pods again.
    Uncordoned in UpdateComplete,
    /// The node is on the desired config; with it all the others become false.
    Updated,
    /// The last attempt failed; the message says why.
    NodeDegraded,
}

/// The reason of a condition that has not been true in this update.
pub const NOT_YET: &str = "NotYetOccurred";

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCondition {
    /// Which.
    #[serde(rename = "type")]
    pub kind: String,
    /// How far.
    pub status: Progress,
    /// A code.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// When the status became what it is.
    pub last_transition_time: Timestamp,
}

/// The configs by name. `current` is left out before the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigVersion {
    /// The one in force.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub current: String,
    /// The one asked for.
    pub desired: String,
}

/// What the node writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineConfigNodeStatus {
    /// In the order of [`NodeConditionKind`].
    pub conditions: Vec<NodeCondition>,
    /// The configs; none before one is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_version: Option<ConfigVersion>,
    /// The generation of the object that this is about, and one: what OpenShift writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
