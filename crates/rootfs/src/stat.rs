//! Metadata of an object below the root, as plain data.

use rustix::fs::{FileType, Statx, StatxAttributes, StatxFlags};
use serde::{Deserialize, Serialize};

/// The kind of a file system object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A named pipe.
    Fifo,
    /// A Unix socket.
    Socket,
    /// A character device node.
    CharDevice,
    /// A block device node.
    BlockDevice,
}

impl FileKind {
    /// The kind as messages name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "regular file",
            Self::Directory => "directory",
            Self::Link => "symbolic link",
            Self::Fifo => "named pipe",
            Self::Socket => "socket",
            Self::CharDevice => "character device",
            Self::BlockDevice => "block device",
        }
    }

    /// `None` for a type without a name in this kernel interface (seen only as `DT_UNKNOWN`).
    pub(super) const fn of(kind: FileType) -> Option<Self> {
        match kind {
            FileType::RegularFile => Some(Self::File),
            FileType::Directory => Some(Self::Directory),
            FileType::Symlink => Some(Self::Link),
            FileType::Fifo => Some(Self::Fifo),
            FileType::Socket => Some(Self::Socket),
            FileType::CharacterDevice => Some(Self::CharDevice),
            FileType::BlockDevice => Some(Self::BlockDevice),
            FileType::Unknown => None,
        }
    }
}

/// The identity of an object over renames, exchanges and boots.
///
/// Device numbers and mount ids are left out on purpose: they change at boot. Two objects of
/// different file systems may therefore share an identity; compare only below one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ObjectIdentity {
    /// Inode number.
    pub ino: u64,
    /// Creation time, in seconds and nanoseconds since 1970; `None` if the file system stores no
    /// birth time, in which case an inode number may have been reused.
    pub birth: Option<(i64, u32)>,
}

/// Metadata that is available without opening an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky (07777).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of content; of a link, the length of its target.
    pub size: u64,
    /// Which object it is.
    pub identity: ObjectIdentity,
    /// Number of hard links.
    pub nlink: u32,
    /// When the content last changed, in seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
    /// When content or attributes last changed (`ctime`), in seconds and nanoseconds since 1970.
    pub changed: (i64, u32),
    /// Major and minor number of the file system's device; they change at boot.
    pub device: (u32, u32),
    /// Major and minor number of a device node; `None` for everything else.
    pub rdev: Option<(u32, u32)>,
    /// Whether it is a mount point, which can be neither renamed nor removed.
    pub mount_point: bool,
    /// Whether the immutable flag is set (`chattr +i`).
    pub immutable: bool,
    /// Whether the append-only flag is set (`chattr +a`).
    pub append_only: bool,
}

impl Stat {
    /// The statx fields that [`Stat::of`] needs.
    pub(super) const STAT_FIELDS: StatxFlags = StatxFlags::BASIC_STATS
        .union(StatxFlags::BTIME)
        .union(StatxFlags::MNT_ID);

    pub(super) fn of(raw: &Statx) -> Self {
        let kind =
            FileKind::of(FileType::from_raw_mode(raw.stx_mode.into())).unwrap_or(FileKind::File);
        let has_birth = raw.stx_mask & StatxFlags::BTIME.bits() != 0;
        let flags = raw.stx_attributes;
        Self {
            kind,
            mode: u32::from(raw.stx_mode) & 0o7777,
            uid: raw.stx_uid,
            gid: raw.stx_gid,
            size: raw.stx_size,
            identity: ObjectIdentity {
                ino: raw.stx_ino,
                birth: has_birth.then_some((raw.stx_btime.tv_sec, raw.stx_btime.tv_nsec)),
            },
            nlink: raw.stx_nlink,
            mtime: (raw.stx_mtime.tv_sec, raw.stx_mtime.tv_nsec),
            changed: (raw.stx_ctime.tv_sec, raw.stx_ctime.tv_nsec),
            device: (raw.stx_dev_major, raw.stx_dev_minor),
            rdev: matches!(kind, FileKind::CharDevice | FileKind::BlockDevice)
                .then_some((raw.stx_rdev_major, raw.stx_rdev_minor)),
            mount_point: flags.contains(StatxAttributes::MOUNT_ROOT),
            immutable: flags.contains(StatxAttributes::IMMUTABLE),
            append_only: flags.contains(StatxAttributes::APPEND),
        }
    }
}

/// The mode and owner that an object is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Permission bits with setuid, setgid and sticky (07777).
    pub mode: u32,
    /// Owner; used only when `chown` is set.
    pub uid: u32,
    /// Group; used only when `chown` is set.
    pub gid: u32,
    /// Whether to set the owner at all: an offline root without CAP_CHOWN leaves it unchanged.
    pub chown: bool,
}

impl Meta {
    /// A mode, with the process's own user as owner.
    pub const fn unowned(mode: u32) -> Self {
        Self {
            mode,
            uid: 0,
            gid: 0,
            chown: false,
        }
    }
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name, one component.
    pub name: String,
    /// Its kind; a link counts as a link, whatever its target is.
    pub kind: FileKind,
}

/// All names of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Sorted by name.
    pub entries: Vec<DirEntry>,
    /// The number of names that are not UTF-8 and therefore missing above.
    pub unreadable_names: usize,
    /// One of these names, with its other bytes replaced.
    pub unreadable_name: Option<String>,
    /// There are more names than requested; which of them are missing is arbitrary.
    pub more: bool,
}
