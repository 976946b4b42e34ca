//! The renames that a commit is made of.

use std::io;

use rustix::{fs::RenameFlags, io::Errno};

use super::{Act, Root, RootError};
use crate::path::AbsPath;

impl Root {
    /// Makes two existing names change places in one step, whatever kinds they have.
    ///
    /// Where the file system cannot do that, [`RootError::exchange_unsupported`] is true and
    /// nothing has changed: the caller goes by way of a third name.
    pub fn exchange(&self, a: &AbsPath, b: &AbsPath) -> Result<(), RootError> {
        let act = || Act::Exchange(b.clone());
        self.rename(a, b, RenameFlags::EXCHANGE, act)
            .map_err(|error| self.failed_pair(("exchange", "with"), a, b, error))
    }

    /// Moves an object to a name that must be free.
    pub fn move_new(&self, from: &AbsPath, to: &AbsPath) -> Result<(), RootError> {
        let act = || Act::Rename(to.clone());
        let moved = match self.rename(from, to, RenameFlags::NOREPLACE, act) {
            // The file system knows no RENAME_NOREPLACE (NFS, some FUSE): look first. Whoever
            // writes here holds the transaction lock, so only strangers can still get in between.
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

    /// Puts a file in the place of another one, which is gone then: for who does not need it any more,
    /// where names cannot be exchanged.
    pub fn move_over(&self, from: &AbsPath, to: &AbsPath) -> Result<(), RootError> {
        self.rename(from, to, RenameFlags::empty(), || Act::Rename(to.clone()))
            .map_err(|error| self.failed_pair(("move", "over"), from, to, error))
    }

    pub(super) fn rename(
        &self,
        from: &AbsPath,
        to: &AbsPath,
        flags: RenameFlags,
        act: impl FnOnce() -> Act,
    ) -> io::Result<()> {
        if self.pretends_to_part(from, to) {
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
