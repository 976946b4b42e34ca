//! Replaces the program's own small files atomically; they are durable when the call returns.

use std::{io, os::fd::OwnedFd};

use rustix::fs::{FlockOperation, OFlags, RenameFlags};

use super::{FileKind, FsOpKind, Root, RootError, resolve};
use machinist_base::abs_path::AbsPath;

impl Root {
    /// Replaces the file at `p`: readers see the old or the new content, and after a power cut one
    /// of the two exists. A link at `p` is replaced, not followed.
    ///
    /// The new content is written to `.<name>.new` in the same directory. The name is fixed so that
    /// a crash leaves at most one such file, which the next call reuses; a lock on it serialises
    /// writers.
    pub fn replace(&self, p: &AbsPath, bytes: &[u8], mode: u32) -> Result<(), RootError> {
        self.replace_by(p, &[bytes], mode)
    }

    /// Like [`Root::replace`], with all of `parts` in sequence.
    pub fn replace_by(&self, p: &AbsPath, parts: &[&[u8]], mode: u32) -> Result<(), RootError> {
        self.replace_filled(p, |beside, file| self.fill(beside, file, parts, mode))
    }

    /// Replaces the file at `p` by a temporary file that `fill` has written and synced.
    pub(super) fn replace_filled(
        &self,
        p: &AbsPath,
        fill: impl FnOnce(&AbsPath, &OwnedFd) -> io::Result<()>,
    ) -> Result<(), RootError> {
        let replace = || {
            let parent = p.parent().ok_or(rustix::io::Errno::ISDIR)?;
            let beside = parent
                .join(&format!(".{}.new", p.file_name()))
                .map_err(io::Error::other)?;
            let file = self.claim(&beside)?;
            if let Err(error) = fill(&beside, &file) {
                // A partial file would occupy space on a disk that may be full. It stays locked
                // until it is removed.
                let _ = self.remove_file(&beside);
                return Err(error);
            }
            self.rename(&beside, p, RenameFlags::empty(), || {
                FsOpKind::Rename(p.clone())
            })?;
            self.sync_one_dir(&parent)
        };
        replace().map_err(|error| self.failed("replace", p, error))
    }

    fn fill(&self, beside: &AbsPath, file: &OwnedFd, parts: &[&[u8]], mode: u32) -> io::Result<()> {
        rustix::fs::ftruncate(file, 0)?;
        self.write_content(beside, file, parts)?;
        self.set_mode(beside, file, mode)?;
        self.sync_open_file(beside, file)
    }

    /// Opens or creates the file at `p` and locks it. The previous holder of the lock may have
    /// renamed the file; then the new one is opened.
    pub(super) fn claim(&self, p: &AbsPath) -> io::Result<OwnedFd> {
        loop {
            let file = self.open_or_new(p)?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            let held = resolve::statx_of(&file)?;
            match self.handle(p).and_then(resolve::statx_of) {
                Ok(named) if named.stx_ino == held.stx_ino => return Ok(file),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // Errors that do not pass by themselves, such as too many open files, are returned.
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens the file at `p` for writing, and creates it (0600) if missing.
    pub(super) fn open_or_new(&self, p: &AbsPath) -> io::Result<OwnedFd> {
        use io::ErrorKind as K;
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        loop {
            match self.open_raw(p.relative(), flags, 0) {
                Err(error) if error.kind() == K::NotFound => {}
                opened => return opened,
            }
            match self.create_new(p, 0o600) {
                // Another process created it between the two calls.
                Err(error) if error.kind() == K::AlreadyExists => {}
                made => {
                    let file = made?;
                    self.unmask(p, &file)?;
                    return Ok(file);
                }
            }
        }
    }

    /// A umask may have left a new file without the permissions that its owner needs to open it
    /// again.
    fn unmask(&self, p: &AbsPath, file: &OwnedFd) -> io::Result<()> {
        match super::Stat::of(&resolve::statx_of(file)?).mode {
            0o600 => Ok(()),
            _ => self.set_mode(p, file, 0o600),
        }
    }

    /// Creates the directory `p` and its missing parents, durably and with `mode` whatever the
    /// umask. Existing directories, and links to directories, are unchanged.
    pub fn make_dirs(&self, p: &AbsPath, mode: u32) -> Result<(), RootError> {
        let mut absent = Vec::new();
        for dir in std::iter::once(p.clone()).chain(p.ancestors()) {
            match self.dir_handle(dir.relative()) {
                Ok(_) => break,
                Err(error) if resolve::is_absent(&error) => absent.push(dir),
                Err(error) => return Err(self.failed("make the directory", &dir, error)),
            }
        }
        for dir in absent.into_iter().rev() {
            self.make_durable_dir(&dir, mode)
                .map_err(|e| self.failed("make the directory", &dir, e))?;
        }
        Ok(())
    }

    fn make_durable_dir(&self, dir: &AbsPath, mode: u32) -> io::Result<()> {
        match self.make_one_dir(dir, mode) {
            // Another process created it meanwhile; anything but a directory is an error.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return self.dir_handle(dir.relative()).map(drop);
            }
            made => made?,
        }
        let fd = self.open_raw(dir.relative(), OFlags::DIRECTORY | OFlags::NOFOLLOW, 0)?;
        self.set_mode(dir, fd, mode)?;
        self.sync_one_dir(dir)?;
        dir.parent()
            .map_or(Ok(()), |parent| self.sync_one_dir(&parent))
    }

    /// Whether `p` is a directory, or a link to one inside the root.
    pub fn is_dir(&self, p: &AbsPath) -> Result<bool, RootError> {
        match self
            .open_raw(p.relative(), OFlags::PATH, 0)
            .and_then(resolve::statx_of)
        {
            Ok(raw) => Ok(super::Stat::of(&raw).kind == FileKind::Directory),
            Err(error) if resolve::is_absent(&error) => Ok(false),
            Err(error) => Err(self.failed("look at", p, error)),
        }
    }
}
