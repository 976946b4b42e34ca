//! The images of containerd whose label machinist has set, on the disk: only these labels are ever removed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use machinist_rootfs::{Root, RootError};
use machinist_update::store::paths;

/// Bytes of the largest record: 100 sets of 500 images, with names of 447 bytes.
const MAX_RECORD_BYTES: u64 = 32 << 20;

/// The record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PinRecord {
    /// Names of images in containerd.
    pub(super) labelled: BTreeSet<String>,
}

impl PinRecord {
    /// Reads it; empty if there is none. A damaged one is empty as well: then labels stay, which costs only space.
    pub(super) fn load(root: &Root) -> Result<Self, RootError> {
        match root.read(&paths::pinned_images(), MAX_RECORD_BYTES) {
            Err(error) if error.is_not_found() => Ok(Self::default()),
            text => Ok(serde_json::from_slice(&text?).unwrap_or_else(|error| {
                tracing::warn!(
                    "{} is damaged, and starts empty: {error}",
                    paths::pinned_images()
                );
                Self::default()
            })),
        }
    }

    /// Makes it durable.
    pub(super) fn save(&self, root: &Root) -> Result<(), RootError> {
        if self.labelled.is_empty() {
            return root.remove_file(&paths::pinned_images());
        }
        // Text and lists cannot fail to serialize.
        let text = serde_json::to_vec(self).unwrap_or_default();
        root.replace(&paths::pinned_images(), &text, 0o600)
    }
}
