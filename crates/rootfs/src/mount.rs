//! Determines the mount of a path and its properties.

use std::io;

use rustix::{
    fs::{StatVfsMountFlags, StatxFlags},
    io::Errno,
};

use super::{Root, RootError, mount_crossing::MountId, resolve};
use machinist_base::abs_path::AbsPath;

/// A mount, as seen from one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// What distinguishes it from other mounts.
    pub id: MountId,
    /// The mount point or the subvolume inside the root; `/` if the root itself is on this mount.
    pub top: AbsPath,
    /// The file system's name, or its magic number in hexadecimal if unknown.
    pub fs_type: String,
    /// An identifier that stays the same over boots; `None` if there is none. Only file systems
    /// that derive `f_fsid` from the identifier on their disk have one (xfs derives it from the
    /// device number, which may change).
    pub uuid: Option<String>,
    /// Whether the mount or the file system under it is read-only.
    pub read_only: bool,
    /// Bytes free without the file system's reserve for the superuser.
    pub free_bytes: u64,
    /// Bytes that this process can write: as root also the reserve of ext file systems, which is root's by default
    /// (`resuid` in ext4(5)).
    pub usable_bytes: u64,
    /// Size of the file system in bytes.
    pub size_bytes: u64,
    /// Free inodes; `None` if the file system creates them on demand.
    pub free_inodes: Option<u64>,
    /// The total number of inodes, under the same condition.
    pub all_inodes: Option<u64>,
    /// Whether it is a network file system.
    pub network: bool,
}

/// The meaning of a magic number of statfs(2).
struct FilesystemInfo {
    magic: u64,
    name: &'static str,
    network: bool,
    /// `f_fsid` comes from the identifier on disk (read off each file system's `statfs`).
    lasting_id: bool,
}

const fn known(magic: u64, name: &'static str) -> FilesystemInfo {
    FilesystemInfo {
        magic,
        name,
        network: false,
        lasting_id: false,
    }
}

const fn lasting(magic: u64, name: &'static str) -> FilesystemInfo {
    FilesystemInfo {
        lasting_id: true,
        ..known(magic, name)
    }
}

const fn remote(magic: u64, name: &'static str) -> FilesystemInfo {
    FilesystemInfo {
        network: true,
        ..known(magic, name)
    }
}

/// Linux's `include/uapi/linux/magic.h` and the file systems' own headers.
const KNOWN_FILESYSTEMS: &[FilesystemInfo] = &[
    lasting(0xEF53, "ext4"),
    lasting(0x9123_683E, "btrfs"),
    lasting(0xCA45_1A4E, "bcachefs"),
    known(0x5846_5342, "xfs"),
    known(0xF2F5_2010, "f2fs"),
    known(0x2FC1_2FC1, "zfs"),
    known(0x4D44, "vfat"),
    known(0x2011_BAB0, "exfat"),
    known(0x0102_1994, "tmpfs"),
    known(0x8584_58F6, "ramfs"),
    known(0x794C_7630, "overlay"),
    known(0x7371_7368, "squashfs"),
    known(0xE0F5_E1E2, "erofs"),
    known(0x9FA0, "proc"),
    known(0x6265_6572, "sysfs"),
    known(0x6573_5546, "fuse"),
    remote(0x6969, "nfs"),
    remote(0x517B, "smb"),
    remote(0xFF53_4D42, "cifs"),
    remote(0xFE53_4D42, "smb2"),
    remote(0x00C3_6400, "ceph"),
    remote(0x0102_1997, "9p"),
    remote(0x5346_414F, "afs"),
    remote(0x0BD0_0BD0, "lustre"),
];

impl Root {
    /// The mount of `p`, or of its nearest existing parent. Links in the parents are followed
    /// inside the root.
    pub fn mount(&self, p: &AbsPath) -> Result<Mount, RootError> {
        let path = self.canonical(p)?;
        self.mount_of(&path)
            .map_err(|error| self.failed("find the mount of", p, error))
    }

    fn mount_of(&self, path: &AbsPath) -> io::Result<Mount> {
        let (at, handle) = self.nearest(path)?;
        let raw = resolve::statx_of(&handle)?;
        if raw.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
            // Linux before 5.8. Device numbers would not distinguish bind mounts.
            return Err(Errno::NOSYS.into());
        }
        let id = MountId::of(&raw);
        let space = rustix::fs::fstatvfs(&handle)?;
        let magic = rustix::fs::fstatfs(&handle)?.f_type;
        // The kernel's field is signed on some architectures; the numbers are 32 bits wide.
        let magic = u64::try_from(magic).unwrap_or_default() & 0xFFFF_FFFF;
        let found = KNOWN_FILESYSTEMS.iter().find(|known| known.magic == magic);
        let has_reserve = found.is_some_and(|known| known.name == "ext4");
        let usable = match has_reserve && rustix::process::geteuid().is_root() {
            true => space.f_bfree,
            false => space.f_bavail,
        };
        let mount = Mount {
            id,
            top: self.top_of(at, id)?,
            fs_type: found.map_or_else(|| format!("{magic:#x}"), |known| known.name.to_owned()),
            uuid: found
                .filter(|known| known.lasting_id)
                .map(|_| format!("{:016x}", space.f_fsid)),
            read_only: space.f_flag.contains(StatVfsMountFlags::RDONLY),
            free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
            usable_bytes: usable.saturating_mul(space.f_frsize),
            size_bytes: space.f_blocks.saturating_mul(space.f_frsize),
            free_inodes: (space.f_files > 0).then_some(space.f_favail),
            all_inodes: (space.f_files > 0).then_some(space.f_files),
            network: found.is_some_and(|known| known.network),
        };
        Ok(self.simulated_space(self.simulated_mount(path, mount)))
    }

    /// Goes up from `at`, which contains no links, while the parent is on the same mount.
    fn top_of(&self, at: AbsPath, id: MountId) -> io::Result<AbsPath> {
        let mut top = at;
        while let Some(parent) = top.parent() {
            if MountId::of(&resolve::statx_of(self.handle(&parent)?)?) != id {
                break;
            }
            top = parent;
        }
        Ok(top)
    }
}
