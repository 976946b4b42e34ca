//! One operation of a transaction, as it is written down.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    digest::Digest,
    path::AbsPath,
    plan::{Attributes, Edit},
    root::Identity,
};

/// One operation with what is needed to tell whether it is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperationRecord {
    /// The canonical path of the object.
    pub target: AbsPath,
    /// The path that the config asked for, where it leads to the target by links that a user controls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<AbsPath>,
    /// The directory that holds the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Identity>,
    /// What is done.
    #[serde(flatten)]
    pub kind: OperationRecordKind,
    /// What a new directory brings with it; empty for anything else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub below: Vec<Below>,
    /// What is ours in a directory that was there before machinist and that goes as one: no part of
    /// the original.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ours_before: Vec<AbsPath>,
    /// What a directory held that goes as one: with more in it, or something else, it does not go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Digest>,
    /// What a new directory holds: one that holds something else is no longer only ours to take away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brought: Option<Digest>,
    /// A new directory that is not ours to take away, though what it brings may be: a user's home.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stays: bool,
    /// Mode and owner before machinist set them, of an original that is kept from here on, or of a copy of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
    /// Access control lists that go with a change of owner in place: only an undo brings them back.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lists: BTreeMap<String, Vec<u8>>,
    /// Where the original is kept of which the new file is a copy: it is not needed any more after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_of: Option<AbsPath>,
}

/// An object inside a directory that is put in place as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Below {
    /// Its path.
    pub path: AbsPath,
    /// Whether it is a directory itself.
    pub directory: bool,
    /// The owner asked for, where it could only be recorded.
    pub owner: Option<(u32, u32)>,
}

/// The ways in which an operation is carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum OperationRecordKind {
    /// The object at the target and the one in the slot change places.
    Exchange {
        /// Where the new object waits, and the old one afterwards.
        slot: AbsPath,
        /// The object at the target before; none where there was nothing.
        before: Option<ObjectId>,
        /// The object at the target after; none for a removal. Known from `Staged` on.
        after: Option<ObjectId>,
        /// Nothing takes the object's place: `after` stays none.
        removal: bool,
        /// The object does not become ours: a foreign file with an entry of ours in it, or an
        /// original that comes back.
        foreign: bool,
        /// What becomes of the pre-image once the update is verified.
        keep: Keep,
        /// The owner asked for, where it could only be recorded.
        recorded_owner: Option<(u32, u32)>,
    },
    /// The mode and owner of a directory or file are set in place.
    Metadata {
        /// Mode, user and group before.
        before: (u32, u32, u32),
        /// Mode, user and group after.
        after: (u32, u32, u32),
        /// Whether the owner is set as well.
        chown: bool,
        /// Where an empty directory with the mode and owner of before is staged, when this one stood
        /// there before machinist came: its original.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        original: Option<AbsPath>,
        /// It is a file. What it holds is not the config's.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        file: bool,
    },
    /// Entries of a database of users and groups are edited in the file as it is then.
    Entries {
        /// Where the edited file is built.
        slot: AbsPath,
        /// The edits, judged one by one.
        edits: Vec<Edit>,
    },
}

/// What becomes of the object that an operation took out of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Keep {
    /// It was ours and as we had made it.
    No,
    /// It stood there before machinist came, and comes back when the entry leaves the config.
    Original,
    /// It was ours and somebody had changed it: kept below `drifted/` for a person to look at.
    Drifted,
}

/// An object, told apart from every other on its file system and across reboots.
///
/// Inode numbers are used again, so the birth time goes with them; the kind guards file systems that
/// have none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectId {
    /// `file`, `directory`, `link`, …
    pub kind: String,
    /// Inode number.
    pub ino: u64,
    /// Seconds and nanoseconds.
    pub birth: Option<(i64, u32)>,
    /// Content of a small object, where there is no birth time.
    pub digest: Option<Digest>,
}
