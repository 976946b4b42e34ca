//! Builds complete objects, to be moved into place later: content, owner, mode, attributes.
//!
//! Nothing here is durable until the caller syncs.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid},
    io::Errno,
};

use super::{FileKind, FsOpKind, Meta, ObjectIdentity, Root, RootError, Stat, resolve};
use machinist_base::abs_path::AbsPath;

/// Parts in one writev(2): `IOV_MAX`.
const MAX_IOVECS: usize = 1024;

impl Root {
    /// Creates a file that must not exist yet. Its mode is set after its owner, because a change of
    /// owner clears setuid and setgid.
    pub fn build_file(&self, at: &AbsPath, bytes: &[u8], meta: &Meta) -> Result<(), RootError> {
        let build = || {
            let file = self.create_new(at, 0o600)?;
            self.write_content(at, &file, &[bytes])?;
            self.own(at, &file, meta)
        };
        build().map_err(|error| self.failed("write", at, error))
    }

    /// Creates a directory that must not exist yet.
    pub fn build_dir(&self, at: &AbsPath, meta: &Meta) -> Result<(), RootError> {
        let build = || {
            self.make_one_dir(at, 0o700)?;
            self.own(
                at,
                self.open_raw(at.relative(), OFlags::DIRECTORY | OFlags::NOFOLLOW, 0)?,
                meta,
            )
        };
        build().map_err(|error| self.failed("make the directory", at, error))
    }

    /// Creates a symbolic link that must not exist yet. `target` is written unchanged.
    pub fn build_link(&self, at: &AbsPath, target: &str) -> Result<(), RootError> {
        let build = || {
            let slot = self.slot(at)?;
            self.tapped(
                at,
                || FsOpKind::MakeLink(target.to_owned()),
                || Ok(rustix::fs::symlinkat(target, &slot.dir, slot.name)?),
            )
        };
        build().map_err(|error| self.failed("make the link", at, error))
    }

    /// Creates a hard link at `at`, which must not exist yet, to the file at `file` on the same
    /// mount. ESTALE if that is no regular file, or has another inode than the given one.
    ///
    /// The link is made from the handle of the object that was examined, because a user may put
    /// another one at its path at any time.
    pub fn build_hard_link(
        &self,
        at: &AbsPath,
        file: &AbsPath,
        inode: Option<u64>,
    ) -> Result<(), RootError> {
        let is_expected = |stat: &Stat| {
            stat.kind == FileKind::File && inode.is_none_or(|inode| inode == stat.identity.ino)
        };
        self.link_object(at, file, is_expected)
    }

    /// Creates a hard link at `at`, which must not exist yet, to the symbolic link at `link` itself, on the same mount.
    /// ESTALE if that is no symbolic link.
    pub fn build_hard_link_to_symlink(
        &self,
        at: &AbsPath,
        link: &AbsPath,
    ) -> Result<(), RootError> {
        self.link_object(at, link, |stat| stat.kind == FileKind::Link)
    }

    fn link_object(
        &self,
        at: &AbsPath,
        object: &AbsPath,
        is_expected: impl Fn(&Stat) -> bool,
    ) -> Result<(), RootError> {
        let build = || {
            if self.crosses_simulated_mount(at, object) {
                return Err(Errno::XDEV.into());
            }
            let (from, to) = (self.handle(object)?, self.slot(at)?);
            if !is_expected(&Stat::of(&resolve::statx_of(&from)?)) {
                return Err(Errno::STALE.into());
            }
            let link = || {
                let (from, flags) = (resolve::proc_path(&from), AtFlags::SYMLINK_FOLLOW);
                Ok(rustix::fs::linkat(CWD, from, &to.dir, to.name, flags)?)
            };
            self.tapped(at, || FsOpKind::HardLink(object.clone()), link)
        };
        build().map_err(|error| self.failed_pair(("make", "another name of"), at, object, error))
    }

    /// Sets the owner of a link itself to that of `meta`.
    pub fn own_link(&self, at: &AbsPath, meta: &Meta) -> Result<(), RootError> {
        if !meta.chown {
            return Ok(());
        }
        let own = || {
            let slot = self.slot(at)?;
            let (uid, gid) = (Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            self.tapped(
                at,
                || FsOpKind::SetOwner(meta.uid, meta.gid),
                || Ok(rustix::fs::chownat(&slot.dir, slot.name, uid, gid, flags)?),
            )
        };
        own().map_err(|error| self.failed("set the owner of", at, error))
    }

    /// Sets mode and owner of a directory in place, through a descriptor.
    pub fn set_meta(&self, dir: &AbsPath, meta: &Meta) -> Result<(), RootError> {
        self.open_raw(dir.relative(), OFlags::DIRECTORY | OFlags::NOFOLLOW, 0)
            .and_then(|fd| self.own(dir, fd, meta))
            .map_err(|error| self.failed("set mode and owner of", dir, error))
    }

    /// Sets mode and owner of an object of this kind in place, through a handle: a lease that a
    /// file's owner holds does not delay it. Fails if the object is not the `expected` one.
    pub fn set_meta_of(
        &self,
        file: &AbsPath,
        (kind, expected): (FileKind, Option<ObjectIdentity>),
        meta: &Meta,
    ) -> Result<(), RootError> {
        let act = "set mode and owner of";
        let failed = |error| self.failed(act, file, error);
        let handle = self.handle(file).map_err(failed)?;
        let stat = Stat::of(&resolve::statx_of(&handle).map_err(failed)?);
        if expected.is_some_and(|expected| expected != stat.identity) {
            return Err(failed(Errno::STALE.into()));
        }
        if stat.kind != kind {
            return Err(RootError::WrongKind {
                act,
                path: self.host_path(file),
                found: stat.kind,
            });
        }
        // In a directory that a user controls, the file may have hard links anywhere.
        if kind == FileKind::File && stat.nlink != 1 && self.is_in_users_directory(file) {
            return Err(failed(Errno::MLINK.into()));
        }
        self.chown_handle(file, &handle, meta).map_err(failed)
    }

    pub(super) fn create_new(&self, at: &AbsPath, mode: u32) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        self.tapped(
            at,
            || FsOpKind::Create(mode),
            || self.open_raw(at.relative(), flags, mode),
        )
    }

    pub(super) fn write_content(
        &self,
        at: &AbsPath,
        fd: &OwnedFd,
        parts: &[&[u8]],
    ) -> io::Result<()> {
        let write = || {
            parts
                .chunks(MAX_IOVECS)
                .try_for_each(|parts| write_all(fd, parts))
        };
        self.tapped(at, || FsOpKind::Write(parts.concat()), write)
    }

    pub(super) fn make_one_dir(&self, at: &AbsPath, mode: u32) -> io::Result<()> {
        let slot = self.slot(at)?;
        self.tapped(
            at,
            || FsOpKind::MakeDir(mode),
            || {
                Ok(rustix::fs::mkdirat(
                    &slot.dir,
                    slot.name,
                    Mode::from_raw_mode(mode),
                )?)
            },
        )
    }

    pub(super) fn own(&self, at: &AbsPath, fd: impl AsFd, meta: &Meta) -> io::Result<()> {
        if meta.chown {
            let (uid, gid) = (Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)));
            self.tapped(
                at,
                || FsOpKind::SetOwner(meta.uid, meta.gid),
                || Ok(rustix::fs::fchown(&fd, uid, gid)?),
            )?;
        }
        self.set_mode(at, &fd, meta.mode)
    }

    /// Does the same with a handle that was opened with `O_PATH`, of an object that is no link.
    fn chown_handle(&self, at: &AbsPath, handle: &OwnedFd, meta: &Meta) -> io::Result<()> {
        if meta.chown {
            let (uid, gid) = (Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)));
            let flags = AtFlags::EMPTY_PATH;
            self.tapped(
                at,
                || FsOpKind::SetOwner(meta.uid, meta.gid),
                || Ok(rustix::fs::chownat(handle, "", uid, gid, flags)?),
            )?;
        }
        let mode = Mode::from_raw_mode(meta.mode);
        self.tapped(
            at,
            || FsOpKind::SetMode(meta.mode),
            || Ok(rustix::fs::chmod(resolve::proc_path(handle), mode)?),
        )
    }

    pub(super) fn set_mode(&self, at: &AbsPath, fd: impl AsFd, mode: u32) -> io::Result<()> {
        self.tapped(
            at,
            || FsOpKind::SetMode(mode),
            || Ok(rustix::fs::fchmod(fd, Mode::from_raw_mode(mode))?),
        )
    }
}

impl resolve::DirEntryRef<'_> {
    /// The path with the descriptor that keeps it valid.
    pub(super) fn proc_path_kept(self) -> (OwnedFd, std::path::PathBuf) {
        let path = self.proc_path();
        (self.dir, path)
    }
}

pub(super) fn write_all(fd: &OwnedFd, parts: &[&[u8]]) -> io::Result<()> {
    let full = parts.iter().filter(|part| !part.is_empty());
    let mut slices: Vec<IoSlice<'_>> = full.map(|part| IoSlice::new(part)).collect();
    let mut left = slices.as_mut_slice();
    while !left.is_empty() {
        match rustix::io::writev(fd, left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut left, written),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
