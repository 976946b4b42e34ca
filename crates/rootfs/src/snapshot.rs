//! A whole directory tree as data, for tests that compare states.

use std::collections::BTreeMap;

use super::{FileKind, Meta, Root, RootError};
use machinist_base::abs_path::AbsPath;

/// The object at one path of a [`TreeSnapshot`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SnapshotObject {
    /// A regular file with its content.
    File(Vec<u8>),
    /// A directory; objects below it have paths of their own.
    Directory,
    /// A symbolic link with its target.
    Link(String),
    /// A socket.
    Socket,
}

/// One object with its mode and owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotNode {
    /// The object.
    pub object: SnapshotObject,
    /// Permission bits (07777).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// For a file with several names in the tree: the first of them, at all the others.
    pub same: Option<AbsPath>,
}

/// All objects below a root, by path. Devices, named pipes and extended attributes are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeSnapshot(pub BTreeMap<AbsPath, SnapshotNode>);

impl TreeSnapshot {
    /// Reads everything below `root`, including contents: only for small test trees.
    pub fn capture(root: &Root) -> Result<Self, RootError> {
        let (mut tree, mut names) = (Self::default(), BTreeMap::new());
        tree.take_in(root, &AbsPath::root(), &mut names)?;
        tree.name_alike(|path| names.get(path).copied());
        Ok(tree)
    }

    /// Records which paths are the same file, by the identity that `object` returns for them;
    /// `None` is always distinct.
    pub(super) fn name_alike<I: Ord>(&mut self, object: impl Fn(&AbsPath) -> Option<I>) {
        let mut first: BTreeMap<I, AbsPath> = BTreeMap::new();
        for (path, node) in &mut self.0 {
            let file = matches!(node.object, SnapshotObject::File(_));
            if let Some(object) = object(path).filter(|_| file) {
                match first.get(&object) {
                    Some(known) => node.same = Some(known.clone()),
                    None => drop(first.insert(object, path.clone())),
                }
            }
        }
    }

    /// A copy without the paths that are `hidden`.
    #[must_use]
    pub fn without(&self, hidden: impl Fn(&AbsPath) -> bool) -> Self {
        let left = self.0.iter().filter(|(path, _)| !hidden(path));
        let alone = |node: &SnapshotNode| SnapshotNode {
            same: None,
            ..node.clone()
        };
        let left = left.map(|(path, node)| (path.clone(), alone(node)));
        let mut tree = Self(left.collect());
        tree.name_alike(|path| {
            let first = self.0.get(path).and_then(|node| node.same.clone());
            Some(first.unwrap_or_else(|| path.clone()))
        });
        tree
    }

    fn take_in(
        &mut self,
        root: &Root,
        p: &AbsPath,
        names: &mut BTreeMap<AbsPath, u64>,
    ) -> Result<(), RootError> {
        let Some(stat) = root.stat(p)? else {
            return Ok(());
        };
        let object = match stat.kind {
            FileKind::File => SnapshotObject::File(root.read_nofollow(p, u64::MAX)?),
            FileKind::Directory => SnapshotObject::Directory,
            FileKind::Link => SnapshotObject::Link(root.read_link(p)?),
            FileKind::Socket => SnapshotObject::Socket,
            FileKind::Fifo | FileKind::CharDevice | FileKind::BlockDevice => return Ok(()),
        };
        let directory = object == SnapshotObject::Directory;
        if stat.nlink > 1 {
            names.insert(p.clone(), stat.identity.ino);
        }
        self.0.insert(
            p.clone(),
            SnapshotNode {
                object,
                mode: stat.mode,
                uid: stat.uid,
                gid: stat.gid,
                same: None,
            },
        );
        if directory {
            for entry in root.list(p)? {
                // A listed name is one component, so only the length can be invalid.
                if let Ok(below) = p.join(&entry.name) {
                    self.take_in(root, &below, names)?;
                }
            }
        }
        Ok(())
    }

    /// Creates this tree below `into`, which should be empty. Sockets are created without a server.
    /// Owners are set if the process may do so.
    pub fn materialise(&self, into: &Root) -> Result<(), RootError> {
        for (path, node) in &self.0 {
            let meta = Meta {
                // Directories get their mode last, so that their content can be created.
                mode: if node.object == SnapshotObject::Directory {
                    node.mode | 0o700
                } else {
                    node.mode
                },
                uid: node.uid,
                gid: node.gid,
                chown: into.can_chown(),
            };
            match &node.object {
                SnapshotObject::File(_) if node.same.is_some() => {
                    let same = node.same.as_ref().unwrap_or(path);
                    into.build_hard_link(path, same, None)?;
                }
                SnapshotObject::Directory if *path == AbsPath::root() => {
                    into.set_meta(path, &meta)?
                }
                SnapshotObject::Directory => into.build_dir(path, &meta)?,
                SnapshotObject::File(bytes) => into.build_file(path, bytes, &meta)?,
                SnapshotObject::Link(target) => {
                    into.build_link(path, target)?;
                    into.own_link(path, &meta)?;
                }
                SnapshotObject::Socket => drop(into.bind_unix(path, node.mode)?),
            }
        }
        self.close_directories(into)
    }

    fn close_directories(&self, into: &Root) -> Result<(), RootError> {
        for (path, node) in self.0.iter().rev() {
            if node.object == SnapshotObject::Directory && node.mode & 0o700 != 0o700 {
                let meta = Meta {
                    mode: node.mode,
                    uid: node.uid,
                    gid: node.gid,
                    chown: false,
                };
                into.set_meta(path, &meta)?;
            }
        }
        Ok(())
    }

    /// The content of the regular file at `p`.
    pub fn content(&self, p: &str) -> Option<&[u8]> {
        match &self.0.get(&p.parse().ok()?)?.object {
            SnapshotObject::File(bytes) => Some(bytes),
            _ => None,
        }
    }
}
