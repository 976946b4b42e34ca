//! Defines the operations of a transaction on the tree: a flat, normalised list.
//!
//! No target is below another operation's target: everything below a directory that the transaction
//! creates, replaces or removes is part of that directory's tree. Only [`OperationKind::Metadata`],
//! which keeps its directory in place, may have other targets below it.

use std::collections::BTreeMap;

use super::{Attributes, Edit};
use machinist_base::{abs_path::AbsPath, digest::Digest};
use machinist_ignition::Content;

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
    /// Home directories of new users inside this tree: they and the files copied from /etc/skel
    /// belong to the user.
    pub homes: Vec<AbsPath>,
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

/// A complete new object.
#[derive(Clone, Debug, PartialEq)]
pub struct NewObject {
    /// Permission bits, 0–07777; ignored for links.
    pub mode: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// What it is.
    pub kind: NodeKind,
    /// The SELinux label to set; none if the root has no policy, or if the policy sets none.
    pub label: Option<String>,
}

/// The kind and content of a new object.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeKind {
    /// A regular file.
    File(Content),
    /// A regular file with the content of the original at this place, which the config does not
    /// set.
    Copy {
        /// Where the original is kept.
        place: AbsPath,
        /// Its length in bytes.
        size: u64,
    },
    /// A symbolic link with this target.
    Link(String),
    /// A hard link to the file that exists at a canonical path when all operations are done; mode
    /// and owner are that file's.
    Hard {
        /// The path of the file.
        target: AbsPath,
        /// The inode of the file that is there now.
        inode: Option<u64>,
    },
    /// A directory with all its content.
    Directory(BTreeMap<String, NewObject>),
}

/// The unit that file sizes are rounded up to; all common file systems use blocks of 4 KiB.
const BLOCK_BYTES: u64 = 4096;

impl NewObject {
    /// Adds the contents of all files in this tree with their sizes, without duplicates.
    pub fn contents(&self, to: &mut BTreeMap<Digest, u64>) {
        match &self.kind {
            NodeKind::File(content) => {
                to.insert(content.digest(), content.size());
            }
            NodeKind::Directory(children) => {
                children.values().for_each(|child| child.contents(to));
            }
            NodeKind::Copy { .. } | NodeKind::Link(_) | NodeKind::Hard { .. } => {}
        }
    }

    /// The bytes, in whole blocks, and the inodes that staging this tree takes.
    pub fn weight(&self) -> (u64, u64) {
        match &self.kind {
            NodeKind::File(content) => (content.size().div_ceil(BLOCK_BYTES) * BLOCK_BYTES, 1),
            NodeKind::Copy { size, .. } => {
                (size.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES), 1)
            }
            NodeKind::Link(_) => (0, 1),
            NodeKind::Hard { .. } => (0, 0),
            NodeKind::Directory(children) => {
                children
                    .values()
                    .fold((BLOCK_BYTES, 1), |(bytes, objects), child| {
                        let (more_bytes, more_objects) = child.weight();
                        (bytes + more_bytes, objects + more_objects)
                    })
            }
        }
    }
}
