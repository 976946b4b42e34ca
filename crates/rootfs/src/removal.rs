//! Removes objects. Nothing here is durable until the caller syncs.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::OwnedFd,
};

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, RenameFlags},
    io::Errno,
};

use super::{FileKind, FsOpKind, Root, RootError, Stat, resolve};
use machinist_base::abs_path::AbsPath;

/// Levels of directories that are open at once. Deeper directories are moved up to the top: users
/// can create trees of any depth, but descriptors and stack are limited.
const MAX_OPEN_DEPTH: usize = 128;

/// How often the top of a tree is scanned for directories that were moved there: a process that
/// still has a directory of it open may keep creating new ones.
const MAX_PASSES: usize = 1000;

/// The position in a tree during a removal.
#[derive(Clone, Copy)]
struct RemovalCursor<'a> {
    mount: u64,
    depth: usize,
    /// The top of the tree; `None` at the top itself.
    top: Option<&'a OwnedFd>,
}

impl Root {
    /// Removes the name `p` of an object other than a directory. It is no error if nothing exists
    /// there.
    pub fn remove_file(&self, p: &AbsPath) -> Result<(), RootError> {
        match self.unlink(p) {
            Err(error) if resolve::is_absent(&error) => Ok(()),
            answer => answer.map_err(|error| self.failed("remove", p, error)),
        }
    }

    /// Removes the directory `p` if it is empty; returns whether it did. A directory that is not
    /// empty, is a mount point, or does not exist is no error.
    pub fn remove_empty_dir(&self, p: &AbsPath) -> Result<bool, RootError> {
        use io::ErrorKind as K;
        match self.remove_dir(p) {
            Ok(()) => Ok(true),
            Err(error)
                if matches!(
                    error.kind(),
                    K::DirectoryNotEmpty | K::NotFound | K::ResourceBusy
                ) || error.raw_os_error() == Some(Errno::EXIST.raw_os_error()) =>
            {
                Ok(false)
            }
            Err(error) => Err(self.failed("remove the directory", p, error)),
        }
    }

    /// Removes `p` and everything below it. Links are removed, never followed. A mount point is an
    /// error; objects that precede it in its directory are removed by then. It is no error if
    /// nothing exists at `p`.
    pub fn remove_tree(&self, p: &AbsPath) -> Result<(), RootError> {
        let slot = match self.slot(p) {
            Err(error) if resolve::is_absent(&error) => return Ok(()),
            slot => slot.map_err(|error| self.failed("remove", p, error))?,
        };
        let mount = resolve::statx_of(&slot.dir)
            .map_err(|error| self.failed("look at", p, error))?
            .stx_mnt_id;
        let name = CString::new(slot.name).map_err(|bad| self.failed("remove", p, bad.into()))?;
        let within = RemovalCursor {
            mount,
            depth: 0,
            top: None,
        };
        self.remove_at(&slot.dir, &name, p, within)
    }

    /// Works on descriptors, so that a directory exchanged for a link meanwhile is not followed,
    /// and on raw names, because foreign names need not be UTF-8.
    fn remove_at(
        &self,
        dir: &OwnedFd,
        name: &CStr,
        p: &AbsPath,
        within: RemovalCursor<'_>,
    ) -> Result<(), RootError> {
        let failed = |error: io::Error| self.failed("remove", p, error);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let raw = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            handle => handle
                .map_err(io::Error::from)
                .and_then(resolve::statx_of)
                .map_err(failed)?,
        };
        let stat = Stat::of(&raw);
        if raw.stx_mnt_id != within.mount || stat.mount_point || self.is_simulated_mount(p) {
            return Err(RootError::MountPoint {
                path: self.host_path(p),
            });
        }
        if stat.kind != FileKind::Directory {
            let unlink = || Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?);
            let removed = self.tapped(p, || FsOpKind::Unlink, unlink);
            return unless_gone(removed).map_err(failed);
        }
        if let Some(top) = within.top.filter(|_| within.depth >= MAX_OPEN_DEPTH) {
            return unless_gone(lift(dir, name, top)).map_err(failed);
        }
        self.empty(dir, name, p, within)?;
        let remove = || Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?);
        unless_gone(self.tapped(p, || FsOpKind::RemoveDir, remove)).map_err(failed)
    }

    fn empty(
        &self,
        dir: &OwnedFd,
        name: &CStr,
        p: &AbsPath,
        within: RemovalCursor<'_>,
    ) -> Result<(), RootError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let failed = |error: io::Error| self.failed("list", p, error);
        let inner = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            inner => inner.map_err(|error| failed(error.into()))?,
        };
        take_from_users(&inner);
        let below = RemovalCursor {
            depth: within.depth + 1,
            top: Some(within.top.unwrap_or(&inner)),
            ..within
        };
        for _ in 0..MAX_PASSES {
            let names = raw_names(&inner).map_err(failed)?;
            for name in &names {
                // Only shown and recorded, never resolved. If the path would be too long, its
                // directory is shown instead.
                let shown = p.join(&name.to_string_lossy());
                let shown = shown.unwrap_or_else(|_| p.clone());
                self.remove_at(&inner, name, &shown, below)?;
            }
            // Directories that were too deep are at the top now, so scan it again.
            if names.is_empty() || within.top.is_some() {
                break;
            }
        }
        Ok(())
    }

    fn unlink(&self, p: &AbsPath) -> io::Result<()> {
        self.unlink_in(&self.slot(p)?, p)
    }

    /// Does the same in a directory that is open already.
    pub(super) fn unlink_in(&self, slot: &resolve::DirEntryRef<'_>, p: &AbsPath) -> io::Result<()> {
        let unlink = || {
            Ok(rustix::fs::unlinkat(
                &slot.dir,
                slot.name,
                AtFlags::empty(),
            )?)
        };
        self.tapped(p, || FsOpKind::Unlink, unlink)
    }

    fn remove_dir(&self, p: &AbsPath) -> io::Result<()> {
        let slot = self.slot(p)?;
        let remove = || {
            Ok(rustix::fs::unlinkat(
                &slot.dir,
                slot.name,
                AtFlags::REMOVEDIR,
            )?)
        };
        self.tapped(p, || FsOpKind::RemoveDir, remove)
    }
}

/// Ignores that another process, which has the directory open, has removed the object first.
fn unless_gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Takes a directory that is about to be removed from its user, who could otherwise keep adding objects to it while it
/// is emptied. Without the permission to do that, all users are this one.
fn take_from_users(dir: &OwnedFd) {
    let own = rustix::process::geteuid();
    let shared = rustix::fs::fstat(dir)
        .is_ok_and(|stat| stat.st_uid != own.as_raw() || stat.st_mode & 0o022 != 0);
    if shared && rustix::fs::fchown(dir, Some(own), None).is_ok() {
        let _ = rustix::fs::fchmod(dir, Mode::RWXU);
    }
}

/// Moves a directory to the top of its tree, under an unused name. Not recorded, since no tree in
/// recorded tests is that deep.
fn lift(dir: &OwnedFd, name: &CStr, top: &OwnedFd) -> io::Result<()> {
    for number in 0_u64.. {
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(dir, name, top, format!(".{number}"), flags) {
            Err(Errno::EXIST) => {}
            moved => return Ok(moved?),
        }
    }
    Ok(())
}

fn raw_names(dir: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}
