//! Chooses the staging directories: beside the machine's own files, on the target's own mount.

use std::collections::BTreeMap;

use super::{
    TransactionError,
    mount_point_dirs::{self, KnownHolders},
};
use crate::store::paths;
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{MountId, Root};

/// Staging directories by mount.
///
/// Each mount has one: the state directory if the target shares its mount, else `/etc/.machinist/` on the mount of
/// `/etc`, else a [private directory](holders) at the mount point. The target's own directory is not used, because
/// daemons read whole directories, and no name is ignored by all of them. Objects cannot be renamed between two bind mounts of one
/// file system, nor between two subvolumes of btrfs.
pub(super) struct StagingDirs<'a> {
    root: &'a Root,
    id: &'a str,
    by_mount: BTreeMap<MountId, AbsPath>,
    by_parent: BTreeMap<AbsPath, AbsPath>,
    known: KnownHolders,
    used: Vec<AbsPath>,
}

impl<'a> StagingDirs<'a> {
    pub(super) fn new(
        root: &'a Root,
        id: &'a str,
        known: KnownHolders,
    ) -> Result<Self, TransactionError> {
        let state = paths::state_dir();
        let mut by_mount = BTreeMap::new();
        let etc = AbsPath::root().join("etc")?;
        // If this update creates `/etc`, a staging directory in it would change the config's directory.
        if root.is_dir(&etc)? {
            by_mount.insert(root.mount(&etc)?.id, etc.join(&format!(".machinist/{id}"))?);
        }
        by_mount.insert(root.mount(&state)?.id, state.join(&format!("tx/{id}"))?);
        Ok(Self {
            root,
            id,
            by_mount,
            by_parent: BTreeMap::new(),
            known,
            used: Vec::new(),
        })
    }

    /// Returns the staging directory for an object that is exchanged: on the mount of its directory.
    pub(super) fn staging_for(&mut self, target: &AbsPath) -> Result<AbsPath, TransactionError> {
        self.staging_in(&target.parent().unwrap_or_else(AbsPath::root))
    }

    /// Returns the staging directory on the mount of this directory, which may be the mount point.
    pub(super) fn staging_in(&mut self, parent: &AbsPath) -> Result<AbsPath, TransactionError> {
        if let Some(known) = self.by_parent.get(parent) {
            return Ok(known.clone());
        }
        let mount = self.root.mount(parent)?;
        let place = match self.by_mount.get(&mount.id) {
            Some(place) => place.clone(),
            None => mount_point_dirs::choose(self.root, &mount, &self.known)?.join(self.id)?,
        };
        self.by_mount.insert(mount.id, place.clone());
        self.by_parent.insert(parent.clone(), place.clone());
        if !self.used.contains(&place) {
            self.used.push(place.clone());
        }
        Ok(place)
    }

    pub(super) const fn root(&self) -> &'a Root {
        self.root
    }

    pub(super) fn used(self) -> Vec<AbsPath> {
        self.used
    }
}
