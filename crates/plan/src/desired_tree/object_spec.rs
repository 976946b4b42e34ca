//! One object in its desired state.

use crate::{ObjectKind, enablement};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::Content;

/// One object in its desired state. Owners are numeric.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ObjectSpec {
    File {
        content: Content,
        mode: u32,
        uid: u32,
        gid: u32,
    },
    Directory {
        mode: u32,
        uid: u32,
        gid: u32,
    },
    /// A file or directory of which only the kind is fixed: a mode or owner that is not set stays unchanged on the
    /// machine, and the content of a file always does.
    Partial {
        directory: bool,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Link {
        target: String,
        uid: u32,
        gid: u32,
    },
    /// A hard link to the file at this canonical path, which is not itself a hard link of the config; with the
    /// inode number of the file that exists there now.
    Hard {
        target: AbsPath,
        inode: Option<u64>,
    },
}

impl ObjectSpec {
    /// The file that an object at `path` is a name of.
    pub(crate) const fn file<'a>(&'a self, path: &'a AbsPath) -> &'a AbsPath {
        match self {
            Self::Hard { target, .. } => target,
            _ => path,
        }
    }

    /// The uid of the wanted owner; none if the owner is not set.
    pub(crate) const fn uid(&self) -> Option<u32> {
        match self {
            Self::File { uid, .. } | Self::Directory { uid, .. } | Self::Link { uid, .. } => {
                Some(*uid)
            }
            Self::Partial { uid, .. } => *uid,
            Self::Hard { .. } => None,
        }
    }

    /// A symbolic link owned by root, as used to enable and mask units.
    pub(crate) fn link(target: impl Into<String>) -> Self {
        Self::Link {
            target: target.into(),
            uid: 0,
            gid: 0,
        }
    }

    /// A unit file: owned by root and world-readable.
    pub(crate) fn unit_file(text: &str) -> Self {
        Self::File {
            content: Content::new(text.as_bytes().to_vec()),
            mode: 0o644,
            uid: 0,
            gid: 0,
        }
    }

    /// The object's kind on the machine.
    pub(crate) const fn kind(&self) -> ObjectKind {
        match self {
            Self::Directory { .. }
            | Self::Partial {
                directory: true, ..
            } => ObjectKind::Directory,
            Self::File { .. } | Self::Partial { .. } | Self::Hard { .. } => ObjectKind::File,
            Self::Link { .. } => ObjectKind::Link,
        }
    }

    /// Whether this is a file whose content the config does not set.
    pub(crate) const fn is_without_content(&self) -> bool {
        matches!(
            self,
            Self::Partial {
                directory: false,
                ..
            }
        )
    }

    /// Whether both are links that lead from `path` to the same target, however it is spelled.
    pub(crate) fn same_link(&self, path: &AbsPath, other: &Self) -> bool {
        match (self, other) {
            (Self::Link { target: one, .. }, Self::Link { target: two, .. }) => {
                one == two || enablement::resolve(path, one) == enablement::resolve(path, two)
            }
            _ => false,
        }
    }
}
