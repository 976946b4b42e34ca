//! Collects the properties of one object for the rule about directories that users control.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, Statx},
    io::Errno,
};

use super::{
    FileKind, Meta, Root, Stat,
    directory_control::{ComponentFacts, MountCrossing, TrustedUsers},
    resolve,
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
        above: u64,
    ) -> io::Result<(OwnedFd, ComponentFacts, u64)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |more| rustix::fs::openat(dir, name, flags | more, Mode::empty());
        // Opening it as a directory makes the kernel mount an automount point.
        let handle = match open(OFlags::DIRECTORY) {
            Err(Errno::NOTDIR | Errno::LOOP) => open(OFlags::empty())?,
            opened => opened?,
        };
        let (raw, id) = mount_of(&handle)?;
        let mount = match id == above {
            true => None,
            false => Some(self.crossed(id)?),
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

/// The cached attributes of an object, and its mount id. A FUSE file system that does not let root
/// in returns no attributes and is recognised by its mount only.
pub(super) fn mount_of(handle: impl AsFd) -> io::Result<(Statx, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let raw = rustix::fs::statx(handle, "", flags, Stat::STAT_FIELDS)?;
    Ok((raw, raw.stx_mnt_id))
}

/// Whether the file system is on a block device, so that its cached attributes are correct.
pub(super) fn is_local(raw: &Statx) -> bool {
    raw.stx_dev_major != 0
}

/// EACCES for the top of a FUSE file system that neither root nor this process's user mounted.
pub(super) fn refuse_foreign_fuse(raw: &Statx) -> io::Result<()> {
    let top = Stat::of(raw).mount_point;
    if !top || is_local(raw) {
        return Ok(());
    }
    let mount = crossed(raw.stx_mnt_id)?;
    let own = rustix::process::geteuid().as_raw();
    match mount.fuse && ![0, own].contains(&mount.user) {
        true => Err(Errno::ACCESS.into()),
        false => Ok(()),
    }
}

/// Looks up a mount id in proc_pid_mountinfo(5).
#[expect(
    clippy::disallowed_methods,
    reason = "/proc describes the mounts of this process, not the tree"
)]
fn crossed(id: u64) -> io::Result<MountCrossing> {
    // Without /proc the mounts are unknown; do not report that as a missing object.
    let text = std::fs::read_to_string("/proc/self/mountinfo").map_err(io::Error::other)?;
    let id = id.to_string();
    let line = text
        .lines()
        .find(|line| line.split(' ').next() == Some(&id));
    let rest = line.and_then(|line| line.split_once(" - "));
    let Some((_, rest)) = rest else {
        // Unmounted since, or hidden: nothing is known about it.
        return Ok(MountCrossing {
            fuse: true,
            user: u32::MAX,
        });
    };
    let kind = rest.split(' ').next().unwrap_or_default();
    let options = rest.split(' ').nth(2).unwrap_or_default();
    let user = options
        .split(',')
        .find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    Ok(MountCrossing {
        fuse: kind == "fuse" || kind == "fuseblk" || kind.starts_with("fuse."),
        user: user.unwrap_or(0),
    })
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
