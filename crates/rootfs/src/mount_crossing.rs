//! Looks up the mount of an object, and refuses FUSE file systems that other users mounted.
//!
//! A subvolume of btrfs is judged as a mount: its objects have the mount of the directory above, but nothing can be
//! renamed into it from there, and users can create subvolumes.

use std::{io, os::fd::AsFd};

use rustix::{
    fs::{AtFlags, Statx},
    io::Errno,
};

use super::{Stat, directory_control::MountCrossing};

/// The part of a mount within which objects can be renamed: all of it, or one subvolume of btrfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MountId {
    /// The kernel's mount id: distinguishes mounts now, meaningless after a boot. Bind mounts have equal device numbers.
    pub mount: u64,
    /// The device number of the directories, which differs between subvolumes.
    pub device: (u32, u32),
}

impl MountId {
    pub(super) const fn of(raw: &Statx) -> Self {
        Self {
            mount: raw.stx_mnt_id,
            device: (raw.stx_dev_major, raw.stx_dev_minor),
        }
    }
}

/// The cached attributes of an object, and its mount. A FUSE file system that does not let root
/// in returns no attributes and is recognised by its mount only.
pub(super) fn mount_of(handle: impl AsFd) -> io::Result<(Statx, MountId)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let raw = rustix::fs::statx(handle, "", flags, Stat::STAT_FIELDS)?;
    Ok((raw, MountId::of(&raw)))
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
pub(super) fn crossed(id: u64) -> io::Result<MountCrossing> {
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
