//! Makes changes durable.

use std::{io, os::fd::OwnedFd};

use rustix::fs::OFlags;

use super::{FsOpKind, Root, RootError};
use machinist_base::abs_path::AbsPath;

/// A descriptor on a file system, opened before anything is written there.
///
/// The kernel tracks write-back errors per open descriptor: one that is opened afterwards does not
/// report earlier errors (syncfs(2), since Linux 5.8).
#[derive(Debug)]
pub struct SyncPoint {
    root: Root,
    at: AbsPath,
    fd: OwnedFd,
}

impl SyncPoint {
    /// Makes everything written to this file system durable and reports every write-back error
    /// since the point was opened.
    pub fn sync(&self) -> Result<(), RootError> {
        self.root
            .tapped(
                &self.at,
                || FsOpKind::SyncFs,
                || Ok(rustix::fs::syncfs(&self.fd)?),
            )
            .map_err(|error| self.root.failed("sync the file system of", &self.at, error))
    }
}

impl Root {
    /// Opens a sync point on the file system of `p`, or of its nearest existing parent.
    pub fn sync_point(&self, p: &AbsPath) -> Result<SyncPoint, RootError> {
        let mut at = p.clone();
        loop {
            match self.open_raw(at.relative(), OFlags::DIRECTORY, 0) {
                Ok(fd) => {
                    return Ok(SyncPoint {
                        root: self.clone(),
                        at,
                        fd,
                    });
                }
                Err(error) => match (super::resolve::is_absent(&error), at.parent()) {
                    (true, Some(parent)) => at = parent,
                    _ => return Err(self.failed("open", &at, error)),
                },
            }
        }
    }

    /// Makes a regular file's content and attributes durable; its name needs a sync of its
    /// directory.
    pub fn sync_file(&self, p: &AbsPath) -> Result<(), RootError> {
        self.open_raw(
            p.relative(),
            OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY,
            0,
        )
        .and_then(|fd| self.sync_open_file(p, &fd))
        .map_err(|error| self.failed("sync", p, error))
    }

    /// Makes a directory's entries and attributes durable.
    pub fn sync_dir(&self, p: &AbsPath) -> Result<(), RootError> {
        self.sync_one_dir(p)
            .map_err(|error| self.failed("sync the directory", p, error))
    }

    pub(super) fn sync_open_file(&self, p: &AbsPath, fd: &OwnedFd) -> io::Result<()> {
        self.tapped(p, || FsOpKind::SyncFile, || Ok(rustix::fs::fsync(fd)?))
    }

    pub(super) fn sync_one_dir(&self, p: &AbsPath) -> io::Result<()> {
        let fd = self.open_raw(p.relative(), OFlags::DIRECTORY, 0)?;
        self.tapped(p, || FsOpKind::SyncDir, || Ok(rustix::fs::fsync(fd)?))
    }
}
