//! Defines the operations of a transaction on the tree: a flat, normalised list.
//!
//! No target is below another operation's target: everything below a directory that the transaction
//! creates, replaces or removes is part of that directory's tree. Only [`OperationKind::Metadata`],
//! which keeps its directory in place, may have other targets below it.

use std::{borrow::Cow, collections::BTreeSet};

use super::{Attributes, Edit, NewObject, NodeKind};
use machinist_base::{abs_path::AbsPath, digest::Digest};

/// The maximum size in bytes of all files of one config together: they are in memory while it is
/// applied, twice if `machinist apply` sends it to the agent.
pub const MAX_TOTAL_FILE_BYTES: u64 = 512 << 20;

/// One change at one path.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// The canonical path of the object.
    pub target: AbsPath,
    /// What happens there.
    pub kind: OperationKind,
    /// The object belongs to a user and only contains a managed block (`authorized_keys`):
    /// machinist never owns it and keeps no original.
    pub shared: bool,
    /// Digest of the user's file whose lines the new file keeps.
    pub merged_from: Option<Digest>,
    /// Home directories of new users inside this tree: they and the files copied from /etc/skel
    /// belong to the user.
    pub homes: Vec<AbsPath>,
}

impl Operation {
    /// The operation without account fields and members that users may change at any moment, or `None` if it sets
    /// nothing else. `administered` are the groups that users administer.
    pub fn without_user_values(&self, administered: &BTreeSet<String>) -> Option<Cow<'_, Self>> {
        let OperationKind::Entries(edits) = &self.kind else {
            return Some(Cow::Borrowed(self));
        };
        let edits = edits.iter().cloned();
        let edits = edits.filter_map(|edit| edit.without_user_values(administered));
        let edits: Vec<Edit> = edits.collect();
        (!edits.is_empty()).then(|| {
            Cow::Owned(Self {
                kind: OperationKind::Entries(edits),
                ..self.clone()
            })
        })
    }

    /// How long the original is whose content comes back in a copy; 0 if none does.
    pub(super) fn copied_bytes(&self) -> u64 {
        match &self.kind {
            OperationKind::Put(NewObject {
                kind: NodeKind::Copy { size, .. },
                ..
            }) => *size,
            _ => 0,
        }
    }
}

/// The kinds of operation.
#[derive(Clone, Debug, PartialEq)]
pub enum OperationKind {
    /// A complete new object is put in place of the existing one (or where nothing exists).
    Put(NewObject),
    /// The object is removed.
    Remove,
    /// The original is restored from the given place.
    Restore(AbsPath),
    /// A directory or file keeps its content and gets another mode or owner.
    Metadata(Attributes),
    /// Entries of an account database are created, changed or removed in the file's content at
    /// commit time.
    Entries(Vec<Edit>),
}
