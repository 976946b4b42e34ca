//! Locks between processes.

use std::{os::fd::OwnedFd, time::Duration};

use rustix::{
    fs::{FlockOperation, OFlags},
    io::Errno,
};

use super::{Root, RootError};
use machinist_base::abs_path::AbsPath;

/// How often a lock that is held is tried again. A process that changes a user holds it for some
/// milliseconds.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// An exclusive lock on a file, held until this is dropped or the process ends.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct FileLock {
    held: OwnedFd,
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing is not enough for flock(2): a child process shares the open file until it
        // executes another program. A failure cannot be handled; closing follows.
        let _ = rustix::fs::flock(&self.held, FlockOperation::Unlock);
    }
}

impl Root {
    /// Locks `p` exclusively with flock(2). The file is created if missing and never removed
    /// (removing a lock file would allow two holders). `None` if another process holds the lock.
    pub fn lock(&self, p: &AbsPath) -> Result<Option<FileLock>, RootError> {
        let taken = self.open_or_new(p).and_then(|file| {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Some(FileLock { held: file })),
                Err(Errno::WOULDBLOCK) => Ok(None),
                Err(errno) => Err(errno.into()),
            }
        });
        taken.map_err(|error| self.failed("lock", p, error))
    }

    /// Takes the record lock of fcntl(2) on all of `p`, as lckpwdf(3) does, and waits for it.
    /// `None` if another process still holds it after `patience`. The file is created (0600) if
    /// missing.
    ///
    /// The lock belongs to the process, not to the descriptor: no other code in this process may
    /// open and close `p` meanwhile.
    pub fn lock_record(
        &self,
        p: &AbsPath,
        patience: Duration,
    ) -> Result<Option<FileLock>, RootError> {
        let tries = patience.as_millis() / LOCK_POLL_INTERVAL.as_millis();
        let taken = self.open_or_new(p).and_then(|file| {
            let mut left = tries;
            loop {
                let exclusive = FlockOperation::NonBlockingLockExclusive;
                match rustix::fs::fcntl_lock(&file, exclusive) {
                    Ok(()) => return Ok(Some(FileLock { held: file })),
                    Err(Errno::AGAIN | Errno::ACCESS) if left > 0 => {
                        left -= 1;
                        std::thread::sleep(LOCK_POLL_INTERVAL);
                    }
                    Err(Errno::AGAIN | Errno::ACCESS) => return Ok(None),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        });
        taken.map_err(|error| self.failed("lock", p, error))
    }

    /// Takes a shared record lock of fcntl(2) on all of `p`, which keeps other processes from exclusive ones, also those of
    /// open file descriptions. `None` if another process holds an exclusive lock. The file must exist, and may be on a
    /// read-only mount. For the lock's owner see [`Self::lock_record`].
    pub fn lock_record_shared(&self, p: &AbsPath) -> Result<Option<FileLock>, RootError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let taken = self.open_raw(p.relative(), flags, 0).and_then(|file| {
            match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockShared) {
                Ok(()) => Ok(Some(FileLock { held: file })),
                Err(Errno::AGAIN | Errno::ACCESS) => Ok(None),
                Err(errno) => Err(errno.into()),
            }
        });
        taken.map_err(|error| self.failed("lock", p, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_lock_is_released_even_if_a_child_has_the_file_open() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        let path = AbsPath::new("/lock").unwrap();
        let lock = root.lock(&path).unwrap().unwrap();
        let child = lock.held.try_clone().unwrap();
        assert!(root.lock(&path).unwrap().is_none());
        drop(lock);
        assert!(root.lock(&path).unwrap().is_some());
        drop(child);
    }
}
