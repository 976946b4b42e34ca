//! The renames of which a commit consists.

use std::io;

use rustix::{fs::RenameFlags, io::Errno};

use super::{FsOpKind, Root, RootError};
use machinist_base::abs_path::AbsPath;

impl Root {
    /// Exchanges two existing names atomically, whatever their kinds.
    ///
    /// Where the file system does not support that, [`RootError::exchange_unsupported`] is true and
    /// nothing has changed: the caller then uses a third name.
    pub fn exchange(&self, a: &AbsPath, b: &AbsPath) -> Result<(), RootError> {
        let act = || FsOpKind::Exchange(b.clone());
        self.rename(a, b, RenameFlags::EXCHANGE, act)
            .map_err(|error| self.failed_pair(("exchange", "with"), a, b, error))
    }

    /// Moves an object to a name that must not exist.
    pub fn move_new(&self, from: &AbsPath, to: &AbsPath) -> Result<(), RootError> {
        let act = || FsOpKind::Rename(to.clone());
        let moved = match self.rename(from, to, RenameFlags::NOREPLACE, act) {
            // The file system has no RENAME_NOREPLACE (NFS, some FUSE): check first. The
            // transaction lock keeps other writers of ours out, so only foreign processes can still
            // race with this.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                match self.stat(to)? {
                    Some(_) => Err(Errno::EXIST.into()),
                    None => self.rename(from, to, RenameFlags::empty(), act),
                }
            }
            answer => answer,
        };
        moved.map_err(|error| self.failed_pair(("move", "to"), from, to, error))
    }

    /// Replaces a file by another one, for file systems that cannot exchange names and callers that
    /// no longer need the replaced file.
    pub fn move_over(&self, from: &AbsPath, to: &AbsPath) -> Result<(), RootError> {
        self.rename(from, to, RenameFlags::empty(), || {
            FsOpKind::Rename(to.clone())
        })
        .map_err(|error| self.failed_pair(("move", "over"), from, to, error))
    }

    pub(super) fn rename(
        &self,
        from: &AbsPath,
        to: &AbsPath,
        flags: RenameFlags,
        act: impl FnOnce() -> FsOpKind,
    ) -> io::Result<()> {
        if self.crosses_simulated_mount(from, to) {
            return Err(Errno::XDEV.into());
        }
        let (source, target) = (self.slot(from)?, self.slot(to)?);
        self.tapped(from, act, || {
            Ok(rustix::fs::renameat_with(
                &source.dir,
                source.name,
                &target.dir,
                target.name,
                flags,
            )?)
        })
    }
}
