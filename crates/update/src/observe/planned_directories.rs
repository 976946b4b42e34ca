//! Mode and owner that the update will give to directories.

use std::collections::{BTreeMap, HashMap};

use machinist_base::abs_path::AbsPath;
use machinist_plan::{Attributes, FileFacts, MachineFacts, ObjectKind, PlannedObjects};
use machinist_rootfs::{Meta, Root};

/// Mode and owner that directories will have.
#[derive(Default)]
pub(super) struct PlannedDirectories {
    /// By canonical path.
    pub(super) at: BTreeMap<AbsPath, Meta>,
    /// By device and inode, for those that exist: a mount may lead to the same directory at another path.
    objects: HashMap<((u32, u32), u64), Meta>,
}

impl PlannedDirectories {
    pub(super) fn of(planned: &PlannedObjects, seen: &MachineFacts, chown: bool) -> Self {
        let mut all = Self::default();
        for (path, attributes) in &planned.directories {
            let meta = meta(*attributes, chown);
            all.at.insert(path.clone(), meta);
            let there = seen.objects.get(path);
            let stays =
                |facts: &&FileFacts| facts.kind == ObjectKind::Directory && !planned.replaces(path);
            if let Some(facts) = there.filter(stays) {
                all.objects.insert((facts.device, facts.inode), meta);
            }
        }
        all
    }

    /// The mode and owner that the directory at `at` will have, if the update sets them there or at another path of
    /// the same directory.
    pub(super) fn of_directory(&self, root: &Root, at: &AbsPath) -> Option<&Meta> {
        let by_path = self.at.get(at);
        if by_path.is_some() || self.objects.is_empty() {
            return by_path;
        }
        // An object that cannot be examined is reported by the step into it.
        let stat = root.stat(at).ok().flatten()?;
        self.objects.get(&(stat.device, stat.identity.ino))
    }
}

fn meta(attributes: Attributes, chown: bool) -> Meta {
    let Attributes { mode, uid, gid } = attributes;
    Meta {
        mode,
        uid,
        gid,
        chown,
    }
}
