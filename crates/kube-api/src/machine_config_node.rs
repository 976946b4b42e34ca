//! MachineConfigNode: the progress of one node's update, for users and for the counts of a pool.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::NodeImageSetStatus;

/// Status of one step of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Progress {
    /// The step is done.
    True,
    /// The step is not done.
    False,
    /// The step is in progress.
    Unknown,
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident $(in $parent:ident)?,)+) => {
        /// Condition types, in the order in which an update goes through them and in which they are
        /// written.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum NodeConditionKind { $($(#[doc = $doc])+ $name,)+ }

        impl NodeConditionKind {
            /// All types, in order.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The `type` field.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// The `reason` field: the type, prefixed by its parent's type if it has a parent.
            pub const fn reason(self) -> &'static str {
                match self { $(Self::$name => concat!($(stringify!($parent),)? stringify!($name)),)+ }
            }
        }
    };
}

kinds! {
    /// Compatibility and actions of the update, and whether it needs a drain, were determined.
    UpdatePrepared,
    /// The machine was changed; parent of the next three.
    UpdateExecuted,
    /// The node is cordoned.
    Cordoned in UpdateExecuted,
    /// The node is drained.
    Drained in UpdateExecuted,
    /// Files and OS are written.
    AppliedFilesAndOS in UpdateExecuted,
    /// Units were reloaded and restarted, or none had to be.
    UpdatePostActionComplete,
    /// The machine has rebooted.
    RebootedNode,
    /// The config was verified after a start.
    Resumed,
    /// Everything is done except uncordoning; parent of the next one.
    UpdateComplete,
    /// The node is uncordoned.
    Uncordoned in UpdateComplete,
    /// The node is on the desired config; all other conditions become false then.
    Updated,
    /// The last attempt failed; the message gives the cause.
    NodeDegraded,
}

/// Condition types about the images that a node pulls in advance, which no update goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageSetCondition {
    /// Images are being pulled.
    PinnedImageSetsProgressing,
    /// An image could not be pulled.
    PinnedImageSetsDegraded,
}

impl ImageSetCondition {
    /// Both, in the order in which they are written.
    pub const ALL: [Self; 2] = [
        Self::PinnedImageSetsProgressing,
        Self::PinnedImageSetsDegraded,
    ];

    /// The `type` field.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PinnedImageSetsProgressing => "PinnedImageSetsProgressing",
            Self::PinnedImageSetsDegraded => "PinnedImageSetsDegraded",
        }
    }

    /// The `reason` field, as OpenShift writes it.
    pub const fn reason(self, is_true: bool) -> &'static str {
        match (self, is_true) {
            (_, false) => "AsExpected",
            (Self::PinnedImageSetsProgressing, true) => "ImagePrefetch",
            (Self::PinnedImageSetsDegraded, true) => "PrefetchFailed",
        }
    }
}

/// Reason of a condition that has not been true in this update.
pub const NOT_YET_REASON: &str = "NotYetOccurred";

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCondition {
    /// The condition type, see [`NodeConditionKind`].
    #[serde(rename = "type")]
    pub kind: String,
    /// The status.
    pub status: Progress,
    /// The reason, as a stable code.
    pub reason: String,
    /// The message, one sentence.
    pub message: String,
    /// When the status last changed.
    pub last_transition_time: Timestamp,
}

/// Names of the configs. `current` is omitted before the first config was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigVersion {
    /// The current config.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub current: String,
    /// The desired config.
    pub desired: String,
}

/// The status that the node writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineConfigNodeStatus {
    /// Conditions, in the order of [`NodeConditionKind`], then those of [`ImageSetCondition`].
    pub conditions: Vec<NodeCondition>,
    /// The configs; none before a config is desired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_version: Option<ConfigVersion>,
    /// The observed generation of the object plus one, as OpenShift writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The sets of images that the node pulls in advance.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pinned_image_sets: Vec<NodeImageSetStatus>,
}
