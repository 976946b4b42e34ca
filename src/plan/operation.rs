//! What a transaction does to the tree: a flat, normalised list of operations.
//!
//! No operation's target lies below another's: what is below a directory that this transaction
//! creates, replaces or removes is part of that directory's tree. Only
//! [`OperationKind::Metadata`], which leaves its directory in place, may stand above others.

use std::collections::BTreeMap;

use super::{Attributes, Edit};
use crate::{digest::Digest, machine_config::Content, path::AbsPath};

/// One change to one place.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// The canonical path of the object.
    pub target: AbsPath,
    /// What happens there.
    pub kind: OperationKind,
    /// The object belongs to somebody else and only holds an entry of ours (`authorized_keys`):
    /// it never becomes ours and has no original.
    pub shared: bool,
    /// Home directories of new users that come with it: they and what a user finds there belong to the
    /// user.
    pub homes: Vec<AbsPath>,
}

/// The kinds of operation.
#[derive(Clone, Debug, PartialEq)]
pub enum OperationKind {
    /// A complete new object takes the place of what is there (or of nothing).
    Put(Node),
    /// The object goes.
    Remove,
    /// What stood here before machinist first touched it comes back, from the place given.
    Restore(AbsPath),
    /// A directory or file keeps its content and gets another mode or owner.
    Metadata(Attributes),
    /// Entries of a database of users and groups are made, changed or removed in the file as it is
    /// then.
    Entries(Vec<Edit>),
}

/// A new object, whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Permission bits, 0–07777; ignored for links.
    pub mode: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// What it is.
    pub kind: NodeKind,
    /// The SELinux label to have; none where the root has no policy, or that gives none.
    pub label: Option<String>,
}

/// What a new object holds.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeKind {
    /// A regular file.
    File(Content),
    /// A regular file that holds what the original at this place holds. What it holds is not the config's.
    Copy {
        /// Where the original is kept.
        place: AbsPath,
        /// Its length in bytes.
        size: u64,
    },
    /// A symbolic link with this text.
    Link(String),
    /// Another name of the file that is at this canonical path once all operations are done; mode and
    /// owner are that file's.
    Hard(AbsPath),
    /// A directory with everything in it.
    Directory(BTreeMap<String, Node>),
}

/// What a file's size is rounded up to; every common file system uses blocks of 4 KiB.
const BLOCK: u64 = 4096;

impl Node {
    /// Adds what the files of this tree hold, each content once, with its size.
    pub fn contents(&self, to: &mut BTreeMap<Digest, u64>) {
        match &self.kind {
            NodeKind::File(content) => {
                to.insert(content.digest(), content.size());
            }
            NodeKind::Directory(children) => {
                children.values().for_each(|child| child.contents(to));
            }
            NodeKind::Copy { .. } | NodeKind::Link(_) | NodeKind::Hard(_) => {}
        }
    }

    /// Bytes, in whole blocks, and objects that staging this tree takes.
    pub fn weight(&self) -> (u64, u64) {
        match &self.kind {
            NodeKind::File(content) => (content.size().div_ceil(BLOCK) * BLOCK, 1),
            NodeKind::Copy { size, .. } => (size.div_ceil(BLOCK).saturating_mul(BLOCK), 1),
            NodeKind::Link(_) => (0, 1),
            NodeKind::Hard(_) => (0, 0),
            NodeKind::Directory(children) => {
                children
                    .values()
                    .fold((BLOCK, 1), |(bytes, objects), child| {
                        let (more_bytes, more_objects) = child.weight();
                        (bytes + more_bytes, objects + more_objects)
                    })
            }
        }
    }
}
