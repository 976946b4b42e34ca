//! A file system as inodes: names and objects are separate, because a power cut may separate them.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    super::{SnapshotNode, SnapshotObject, TreeSnapshot},
    Inodes,
};
use machinist_base::abs_path::AbsPath;

/// The index of an inode; 0 is the root directory.
pub(super) type Ino = usize;

#[derive(Clone, Debug)]
pub(super) enum InodeBody {
    File(Arc<[u8]>),
    Directory(BTreeMap<String, Ino>),
    Link(String),
    Socket,
}

#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) body: InodeBody,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// All inodes, including those without a name.
#[derive(Clone, Debug)]
pub(super) struct Disk(pub(super) Vec<Inode>);

impl Disk {
    pub(super) fn of(tree: &TreeSnapshot) -> Self {
        let mut disk = Self(vec![Inode {
            body: InodeBody::Directory(BTreeMap::new()),
            mode: 0o755,
            uid: 0,
            gid: 0,
        }]);
        // Paths sort after their parents'.
        for (path, node) in &tree.0 {
            let inode = Inode {
                body: match &node.object {
                    SnapshotObject::File(bytes) => InodeBody::File(bytes.as_slice().into()),
                    SnapshotObject::Directory => InodeBody::Directory(BTreeMap::new()),
                    SnapshotObject::Link(target) => InodeBody::Link(target.clone()),
                    SnapshotObject::Socket => InodeBody::Socket,
                },
                mode: node.mode,
                uid: node.uid,
                gid: node.gid,
            };
            let other_name = node.same.as_ref().and_then(|same| disk.find(same));
            match (
                path.parent().and_then(|parent| disk.find(&parent)),
                other_name,
            ) {
                (None, _) => disk.0[0] = inode,
                (Some(parent), Some(same)) => disk.set(parent, path.file_name(), Some(same)),
                (Some(parent), None) => {
                    disk.0.push(inode);
                    let child = disk.0.len() - 1;
                    disk.set(parent, path.file_name(), Some(child));
                }
            }
        }
        disk
    }

    /// The inode at `path`; links are not followed, recorded paths hold none.
    pub(super) fn find(&self, path: &AbsPath) -> Option<Ino> {
        path.components()
            .try_fold(0, |dir, name| self.child(dir, name))
    }

    pub(super) fn child(&self, dir: Ino, name: &str) -> Option<Ino> {
        match &self.0.get(dir)?.body {
            InodeBody::Directory(entries) => entries.get(name).copied(),
            _ => None,
        }
    }

    pub(super) fn is_directory(&self, ino: Ino) -> bool {
        matches!(self.0[ino].body, InodeBody::Directory(_))
    }

    /// Points the entry at `child`, or removes it.
    pub(super) fn set(&mut self, dir: Ino, name: &str, child: Option<Ino>) {
        if let InodeBody::Directory(entries) = &mut self.0[dir].body {
            match child {
                Some(child) => drop(entries.insert(name.to_owned(), child)),
                None => drop(entries.remove(name)),
            }
        }
    }

    pub(super) fn tree(&self) -> (TreeSnapshot, Inodes) {
        let (mut tree, mut inodes) = (TreeSnapshot::default(), Inodes::new());
        self.collect(0, &AbsPath::root(), &mut tree, &mut inodes);
        tree.name_alike(|path| inodes.get(path).copied());
        (tree, inodes)
    }

    fn collect(&self, ino: Ino, path: &AbsPath, into: &mut TreeSnapshot, inodes: &mut Inodes) {
        inodes.insert(path.clone(), ino);
        let inode = &self.0[ino];
        let object = match &inode.body {
            InodeBody::File(bytes) => SnapshotObject::File(bytes.to_vec()),
            InodeBody::Directory(_) => SnapshotObject::Directory,
            InodeBody::Link(target) => SnapshotObject::Link(target.clone()),
            InodeBody::Socket => SnapshotObject::Socket,
        };
        let (mode, uid, gid) = (inode.mode, inode.uid, inode.gid);
        into.0.insert(
            path.clone(),
            SnapshotNode {
                object,
                mode,
                uid,
                gid,
                same: None,
            },
        );
        if let InodeBody::Directory(entries) = &inode.body {
            for (name, child) in entries {
                if let Ok(below) = path.join(name) {
                    self.collect(*child, &below, into, inodes);
                }
            }
        }
    }
}
