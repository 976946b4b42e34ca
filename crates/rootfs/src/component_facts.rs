//! Collects the properties of one object for the rule about directories that users control.

use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use super::{
    FileKind, Meta, Root, Stat,
    directory_control::{ComponentFacts, MountCrossing, TrustedUsers},
    mount_crossing::{MountId, crossed, mount_of},
    resolve,
};

/// A subvolume of btrfs, which users can create in their directories.
const SUBVOLUME: MountCrossing = MountCrossing {
    fuse: false,
    user: 0,
};

/// The mounts on the way, by mount id.
pub(super) type MountCrossings = Arc<Mutex<BTreeMap<u64, MountCrossing>>>;

impl Root {
    /// This root with a cache of mounts, for one pass over many paths. A mount that appears
    /// meanwhile has a new id.
    #[must_use]
    pub fn for_one_pass(&self) -> Self {
        let inner = super::Inner {
            crossings: Some(Arc::default()),
            ..super::Inner::clone(&self.0)
        };
        Self(Arc::new(inner))
    }

    pub(super) fn trusted(&self) -> io::Result<TrustedUsers> {
        let own = rustix::process::geteuid().as_raw();
        let top = resolve::statx_of(&*self.0.dir)?.stx_uid;
        Ok(TrustedUsers([0, own, top]))
    }

    /// Opens the object called `name` in a directory on the mount `above` with `O_PATH`, without
    /// following a link.
    pub(super) fn found(
        &self,
        dir: &OwnedFd,
        name: &str,
        above: MountId,
    ) -> io::Result<(OwnedFd, ComponentFacts, MountId)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |more| rustix::fs::openat(dir, name, flags | more, Mode::empty());
        // Opening it as a directory makes the kernel mount an automount point.
        let handle = match open(OFlags::DIRECTORY) {
            Err(Errno::NOTDIR | Errno::LOOP) => open(OFlags::empty())?,
            opened => opened?,
        };
        let (raw, id) = mount_of(&handle)?;
        let is_dir = Stat::of(&raw).kind == FileKind::Directory;
        let mount = match id.mount == above.mount {
            // An overlay shows device numbers of other file systems for files.
            true => (is_dir && id != above).then_some(SUBVOLUME),
            false => Some(self.crossed(id.mount)?),
        };
        // A FUSE server may never answer, so use only the cached attributes.
        let stat = match &mount {
            Some(MountCrossing { fuse: true, .. }) => Stat::of(&raw),
            _ => Stat::of(&resolve::statx_of(&handle)?),
        };
        let fuse = mount.as_ref().is_some_and(|mount| mount.fuse);
        let shared = stat.kind == FileKind::Directory && !fuse && may_be_written(&handle, &stat);
        let found = ComponentFacts {
            stat,
            shared,
            mount,
        };
        Ok((handle, found, id))
    }

    fn crossed(&self, id: u64) -> io::Result<MountCrossing> {
        let Some(known) = &self.0.crossings else {
            return crossed(id);
        };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mount) = known.get(&id) {
            return Ok(mount.clone());
        }
        let mount = crossed(id)?;
        known.insert(id, mount.clone());
        Ok(mount)
    }
}

impl ComponentFacts {
    /// Replaces mode and owner of a directory by planned ones.
    pub(super) fn plan(&mut self, handle: &OwnedFd, meta: &Meta) {
        if self.stat.kind != FileKind::Directory {
            return;
        }
        self.stat.mode = meta.mode;
        if meta.chown {
            (self.stat.uid, self.stat.gid) = (meta.uid, meta.gid);
        }
        let fuse = self.mount.as_ref().is_some_and(|mount| mount.fuse);
        self.shared = !fuse && may_be_written(handle, &self.stat);
    }
}

/// Whether a user other than root may add and remove names in a directory, by its mode or its
/// access control list. The group bits of the mode are the upper limit of the list.
fn may_be_written(handle: &OwnedFd, stat: &Stat) -> bool {
    match stat.mode & 0o022 {
        0 => false,
        0o020 if stat.gid == 0 => list_lets_others_write(handle),
        _ => true,
    }
}

/// Reads the list in the format of acl(5): a version, then entries of tag, permissions and id.
fn list_lets_others_write(handle: &OwnedFd) -> bool {
    const ACL_USER_TAG: u16 = 0x02;
    const ACL_GROUP_TAG: u16 = 0x08;
    const ACL_WRITE_BIT: u16 = 0x02;
    let list = match super::xattrs::attribute_of(handle, "system.posix_acl_access") {
        Ok(list) => list,
        Err(error) => {
            let errno = error.raw_os_error().map(Errno::from_raw_os_error);
            // A list that cannot be read may allow anything.
            return !matches!(errno, Some(Errno::NODATA | Errno::OPNOTSUPP));
        }
    };
    let entries = list.get(4..).unwrap_or_default().chunks_exact(8);
    entries.into_iter().any(|entry| {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        let rights = u16::from_le_bytes([entry[2], entry[3]]);
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        matches!(tag, ACL_USER_TAG | ACL_GROUP_TAG) && id != 0 && rights & ACL_WRITE_BIT != 0
    })
}
