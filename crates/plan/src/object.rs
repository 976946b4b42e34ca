//! Defines the objects of a tree: their kinds, and complete new ones.

use std::collections::BTreeMap;

use machinist_base::{abs_path::AbsPath, digest::Digest};
use machinist_ignition::Content;

/// Kinds of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// Anything else: device, socket, FIFO.
    Other,
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
