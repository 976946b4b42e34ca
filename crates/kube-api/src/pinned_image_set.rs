//! PinnedImageSet: images that the nodes of a pool pull in advance and keep.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::NamedObject;

/// Maximum number of sets in the status of a MachineConfigNode.
pub const MAX_STATUS_IMAGE_SETS: usize = 100;

/// The observed state of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinnedImageSetView {
    /// Its name.
    pub name: String,
    /// Its labels, which determine the pools it belongs to.
    pub labels: BTreeMap<String, String>,
    /// The generation of its spec.
    pub generation: i64,
    /// Names of its images.
    pub images: Vec<String>,
}

/// The spec of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PinnedImageSetSpec {
    /// Its images, by digest.
    pub pinned_images: Vec<NamedObject>,
}

/// A set in the status of a MachineConfigNode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeImageSetStatus {
    /// The name of the set.
    pub name: String,
    /// The generation whose images are all present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_generation: Option<i64>,
    /// The generation that the node has read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_generation: Option<i64>,
    /// The generation of which an image could not be pulled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failed_generation: Option<i64>,
    /// The reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_failed_generation_error: String,
}

impl NodeImageSetStatus {
    /// Whether a generation is lower than in `before`, because the set was created again. The API server refuses such
    /// a change of an entry.
    pub fn is_reset_since(&self, before: &Self) -> bool {
        let pairs = [
            (self.current_generation, before.current_generation),
            (self.desired_generation, before.desired_generation),
            (self.last_failed_generation, before.last_failed_generation),
        ];
        let mut both = pairs.into_iter().filter_map(|(now, then)| now.zip(then));
        self.name == before.name && both.any(|(now, then)| now < then)
    }
}

/// The sets of a node, for the status of its MachineConfigNode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeImageSets {
    /// Each set of the node's pool, by name.
    pub sets: Vec<NodeImageSetStatus>,
    /// Whether images are being pulled.
    pub is_progressing: bool,
    /// One sentence about that.
    pub progress: String,
    /// The failures with their codes, if there are any.
    pub failure: Option<String>,
}
