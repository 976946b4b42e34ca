//! Resolves a checked path to a descriptor, always inside the root.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    path::PathBuf,
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx},
    io::Errno,
};

use super::{Root, Stat, mount_crossing};
use machinist_base::abs_path::AbsPath;

/// How often one resolution is retried after EAGAIN, which the kernel returns when a rename or
/// mount anywhere on the machine raced with a `..` in a link (openat2(2)). The race window is
/// microseconds; a thousand failures in a row mean something other than a race.
const MAX_RESOLVE_ATTEMPTS: usize = 1000;

/// The number of links that the kernel follows in one path (path_resolution(7)).
pub const MAX_SYMLINKS: usize = 40;

/// Another process holds a lease on a file (fcntl(2), `F_SETLEASE`), as its owner may: the file
/// cannot be opened until that process gives the lease up, or for `lease-break-time` (45 s).
#[derive(Debug, thiserror::Error)]
#[error("it is held by a lease of another process")]
pub(super) struct LeasedFile;

/// A directory descriptor that fixes the object that was checked.
#[derive(Clone)]
pub(super) struct PinnedDir {
    pub(super) at: AbsPath,
    pub(super) dir: Arc<OwnedFd>,
    /// Whether a user other than root may change it.
    pub(super) users: bool,
}

/// A directory and one name in it, as needed by calls on names.
#[derive(Debug)]
pub(super) struct DirEntryRef<'a> {
    pub(super) dir: OwnedFd,
    pub(super) name: &'a str,
}

impl DirEntryRef<'_> {
    /// A path of fixed length for calls without descriptors. The directory is fixed, but the call
    /// itself resolves the name, so it must be one that does not follow links.
    pub(super) fn proc_path(&self) -> PathBuf {
        proc_path(&self.dir).join(self.name)
    }

    /// Opens the named object with `O_PATH`; no link is followed.
    pub(super) fn handle(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(
            &self.dir,
            self.name,
            flags,
            Mode::empty(),
        )?)
    }
}

/// The magic link that leads to an open object, even if its name was changed or removed.
pub(super) fn proc_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Opens the object behind a handle.
fn reopen(handle: &OwnedFd, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, proc_path(handle), flags, Mode::empty()) {
        Err(Errno::AGAIN) => Err(io::Error::new(io::ErrorKind::WouldBlock, LeasedFile)),
        opened => Ok(opened?),
    }
}

pub(super) fn statx_of(fd: impl AsFd) -> io::Result<Statx> {
    Ok(rustix::fs::statx(
        fd,
        "",
        AtFlags::EMPTY_PATH,
        Stat::STAT_FIELDS,
    )?)
}

/// The metadata of an object. EACCES if it is on a FUSE file system that another user mounted,
/// because its server could block the call for ever.
pub(super) fn statx_unless_foreign(fd: impl AsFd) -> io::Result<Statx> {
    mount_crossing::refuse_foreign_fuse(&mount_crossing::mount_of(&fd)?.0)?;
    statx_of(fd)
}

/// The metadata of `name`, which is one component, in a directory; a link is not followed. EACCES
/// on a FUSE file system that another user mounted.
pub(super) fn statx_in(dir: impl AsFd, name: &str) -> io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let cached = rustix::fs::statx(
        &dir,
        name,
        flags | AtFlags::STATX_DONT_SYNC,
        Stat::STAT_FIELDS,
    )?;
    if mount_crossing::is_local(&cached) {
        return Ok(cached);
    }
    mount_crossing::refuse_foreign_fuse(&cached)?;
    Ok(rustix::fs::statx(dir, name, flags, Stat::STAT_FIELDS)?)
}

impl Root {
    /// Calls `openat2` below the root. `relative` is empty for the root itself.
    pub(super) fn open_raw(&self, relative: &str, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
        let path = if relative.is_empty() { "." } else { relative };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        self.resolve(path, flags, mode, resolve)
    }

    /// Like [`Root::open_raw`], but a link anywhere in the path gives ELOOP.
    pub(super) fn open_without_links(&self, relative: &str) -> io::Result<OwnedFd> {
        let path = if relative.is_empty() { "." } else { relative };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        self.resolve(path, OFlags::PATH | OFlags::DIRECTORY, 0, resolve)
    }

    fn resolve(
        &self,
        path: &str,
        flags: OFlags,
        mode: u32,
        how: ResolveFlags,
    ) -> io::Result<OwnedFd> {
        let (shown, asked) = (path, how);
        let (dir, path, how) = match self.pin(path) {
            Some((dir, below)) => (
                dir,
                below,
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
            ),
            None => (&*self.0.dir, path, how),
        };
        let mut tries = 0;
        loop {
            tries += 1;
            let mode = Mode::from_raw_mode(mode);
            match rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, mode, how) {
                // A handle with `O_PATH` does not conflict with a lease, so that only races remain.
                Err(Errno::AGAIN) if flags.contains(OFlags::NONBLOCK) => {
                    let at_path = OFlags::PATH | flags & (OFlags::NOFOLLOW | OFlags::DIRECTORY);
                    let handle = self.resolve(shown, at_path, 0, asked)?;
                    return reopen(&handle, flags - OFlags::NOFOLLOW);
                }
                Err(Errno::AGAIN | Errno::INTR) if tries < MAX_RESOLVE_ATTEMPTS => {}
                answer => return Ok(answer?),
            }
        }
    }

    /// The pinned directory that contains `path`, and the rest of the path.
    fn pin<'p>(&self, path: &'p str) -> Option<(&OwnedFd, &'p str)> {
        self.0.pins.iter().find_map(|pin| {
            let below = match path.strip_prefix(pin.at.relative())? {
                "" => ".",
                rest => rest.strip_prefix('/')?,
            };
            Some((&*pin.dir, below))
        })
    }

    /// Whether the directory of `p` is pinned and a user other than root may change it.
    pub(super) fn is_in_users_directory(&self, p: &AbsPath) -> bool {
        let mut pins = self.0.pins.iter();
        let innermost = pins.find(|pin| p.is_under(&pin.at) && *p != pin.at);
        innermost.is_some_and(|pin| pin.users)
    }

    /// Opens the object itself with `O_PATH`: a FIFO or a device notices nothing.
    pub(super) fn handle(&self, p: &AbsPath) -> io::Result<OwnedFd> {
        self.open_raw(p.relative(), OFlags::PATH | OFlags::NOFOLLOW, 0)
    }

    /// A directory handle to resolve names in; links are followed inside the root.
    pub(super) fn dir_handle(&self, relative: &str) -> io::Result<OwnedFd> {
        self.open_raw(relative, OFlags::PATH | OFlags::DIRECTORY, 0)
    }

    /// The directory of `p`, and the name of `p` in it. The root itself has no name: EISDIR.
    pub(super) fn slot<'a>(&self, p: &'a AbsPath) -> io::Result<DirEntryRef<'a>> {
        let parent = p.parent().ok_or(Errno::ISDIR)?;
        let dir = self.dir_handle(parent.relative())?;
        Ok(DirEntryRef {
            dir,
            name: p.file_name(),
        })
    }

    /// `p`, or its nearest existing parent, with a handle on it.
    pub(super) fn nearest(&self, p: &AbsPath) -> io::Result<(AbsPath, OwnedFd)> {
        let mut at = p.clone();
        loop {
            match self.handle(&at) {
                Ok(handle) => return Ok((at, handle)),
                Err(error) if !is_absent(&error) => return Err(error),
                Err(error) => at = at.parent().ok_or(error)?,
            }
        }
    }
}

/// Whether the object does not exist, or a parent is no directory.
pub(super) fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(error.kind(), K::NotFound | K::NotADirectory)
}
