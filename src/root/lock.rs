//! Locks between processes.

use std::os::fd::OwnedFd;

use rustix::{fs::FlockOperation, io::Errno};

use super::{Root, RootError};
use crate::path::AbsPath;

/// An exclusive lock on a file, held until this is dropped or the process ends.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct Lock {
    _held: OwnedFd,
}

impl Root {
    /// Takes the exclusive flock(2) of `p`, which is made when missing and never removed (a removed
    /// lock file would let two holders in). None when somebody else holds it.
    pub fn lock(&self, p: &AbsPath) -> Result<Option<Lock>, RootError> {
        let taken = self.open_or_new(p).and_then(|file| {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Some(Lock { _held: file })),
                Err(Errno::WOULDBLOCK) => Ok(None),
                Err(errno) => Err(errno.into()),
            }
        });
        taken.map_err(|error| self.failed("lock", p, error))
    }
}
