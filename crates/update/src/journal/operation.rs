//! Defines the journal's record of one operation of a transaction.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use machinist_base::{abs_path::AbsPath, digest::Digest};
use machinist_plan::{Attributes, Edit};
use machinist_rootfs::ObjectIdentity;

/// One operation, with the data that recovery needs to detect whether it is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperationRecord {
    /// The canonical path of the object.
    pub target: AbsPath,
    /// The path in the config, if it reaches the target through links that a user controls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<AbsPath>,
    /// The directory that holds the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ObjectIdentity>,
    /// The kind of operation.
    #[serde(flatten)]
    pub kind: OperationRecordKind,
    /// The objects inside a new directory; empty for any other operation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub below: Vec<NestedObject>,
    /// Objects of machinist in a directory that existed before machinist and that is removed as a whole. They are
    /// not part of the original.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ours_before: Vec<AbsPath>,
    /// Digest of the content of a directory that is removed as a whole. If its content has changed, it is not
    /// removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Digest>,
    /// Digest of the content of a new directory. If its content has changed, an undo does not remove it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brought: Option<Digest>,
    /// A new directory that an undo does not remove, although it may remove its content: a user's home.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stays: bool,
    /// Mode and owner before machinist changed them, for an original that is kept from now on, or for a copy of
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
    /// Access control lists that a change of owner in place removes. Only an undo restores them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lists: BTreeMap<String, Vec<u8>>,
    /// Path of the original of which the new file is a copy. The original is not needed after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_of: Option<AbsPath>,
    /// The state of the file at the target before. A file that is written between the plan and the exchange is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_before: Option<ContentState>,
}

/// Shows whether a file was written in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentState {
    /// Bytes.
    pub size: u64,
    /// Modification time in seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
    /// Digest of the content; it decides where size or time differ.
    pub digest: Digest,
}

/// An object inside a directory that is put in place as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NestedObject {
    /// Its path.
    pub path: AbsPath,
    /// Whether it is a directory.
    pub directory: bool,
    /// The requested owner, if it could only be recorded.
    pub owner: Option<(u32, u32)>,
}

/// The kinds of operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum OperationRecordKind {
    /// Exchanges the object at the target with the one in the slot.
    Exchange {
        /// Path of the new object before the exchange, and of the old object after it.
        slot: AbsPath,
        /// The object at the target before; `None` if there was none.
        before: Option<ObjectId>,
        /// The object at the target after; `None` for a removal. Known from `Staged` on.
        after: Option<ObjectId>,
        /// The operation is a removal: `after` stays `None`.
        removal: bool,
        /// machinist does not own the new object: a foreign file that contains an entry of machinist, or a restored
        /// original.
        foreign: bool,
        /// What happens to the old object once the update is verified.
        keep: BackupPolicy,
        /// The requested owner, if it could only be recorded.
        recorded_owner: Option<(u32, u32)>,
    },
    /// Sets the mode and owner of a directory or file in place.
    Metadata {
        /// Mode, user and group before.
        before: (u32, u32, u32),
        /// Mode, user and group after.
        after: (u32, u32, u32),
        /// Whether the owner is set as well.
        chown: bool,
        /// Path at which an empty directory with the old mode and owner is staged as the original, if the directory
        /// existed before machinist.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        original: Option<AbsPath>,
        /// It is a file whose content the config does not define.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        file: bool,
        /// The object; `None` in journals of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        object: Option<ObjectIdentity>,
        /// Other users than root could put another object in its place: only this one may be changed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        exposed: bool,
    },
    /// Edits entries of a user or group database in the file's current content.
    Entries {
        /// Path at which the edited file is built.
        slot: AbsPath,
        /// The edits, each of which is applied or refused separately.
        edits: Vec<Edit>,
    },
}

impl OperationRecordKind {
    /// Returns the path beside which the operation keeps objects, on the target's mount.
    pub(crate) const fn slot(&self) -> Option<&AbsPath> {
        match self {
            Self::Exchange { slot, .. } | Self::Entries { slot, .. } => Some(slot),
            Self::Metadata { original, .. } => original.as_ref(),
        }
    }
}

/// What happens to the object that an operation removed from the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BackupPolicy {
    /// Deletes it: machinist wrote it and it is unchanged.
    No,
    /// Keeps it as the original: it existed before machinist, and is restored when the config no longer names the
    /// path.
    Original,
    /// Keeps it below `drifted/` for an administrator: machinist wrote it, and another writer changed it.
    Drifted,
}

impl OperationRecordKind {
    /// The only object whose mode and owner may be changed; `None` if any object of the same kind may be.
    pub fn only_object(&self) -> Option<ObjectIdentity> {
        match self {
            Self::Metadata {
                object,
                exposed: true,
                ..
            } => *object,
            _ => None,
        }
    }
}

/// Identifies an object uniquely on its file system and across reboots.
///
/// Inode numbers are reused, so the birth time is part of the identity. The kind and the digest help on file
/// systems without birth times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectId {
    /// `file`, `directory`, `link`, …
    pub kind: String,
    /// Inode number.
    pub ino: u64,
    /// Birth time in seconds and nanoseconds.
    pub birth: Option<(i64, u32)>,
    /// Digest of a small object's content, if there is no birth time.
    pub digest: Option<Digest>,
}
