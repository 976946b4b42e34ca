//! Coming into the directory: waiting for it, and making sure that nobody else serves in it.

use std::time::Duration;

use super::{DIRECTORY, Directory, FAULT_PAUSE, LOCK};
use crate::{
    path::AbsPath,
    root::{Kind, Lock, RootError, Watch, WatchEvent, WatchKind},
};

/// How often the lock is tried while another agent has it. A lock's release is no event, and this
/// state is a mistake that a person has to end.
const LOCK_PAUSE: Duration = Duration::from_secs(5);
/// Where a directory goes that stands in the lock's place.
const FOREIGN: &str = "m.lock.foreign";

/// What the directory is good for at the moment.
pub(super) enum Attached {
    /// It is watched and locked.
    Ours(Watch, Lock),
    /// Something stands in the way; try again after this time.
    Later(Duration),
    /// Try again at once.
    Again,
}

impl Directory {
    /// Waits for the directory by events, then locks it.
    pub(super) async fn attach(&mut self) -> Result<Attached, RootError> {
        let Ok(directory) = AbsPath::new(DIRECTORY) else {
            return Ok(Attached::Later(FAULT_PAUSE));
        };
        let mut watch = self.root.watch()?;
        if !self.root.is_dir(&directory)? {
            self.absent(&format!("no kubelet here: there is no {DIRECTORY}"));
            self.wait_for(&directory, &mut watch).await?;
            return Ok(Attached::Again);
        }
        match watch.add_names(&directory) {
            Err(error) if error.is_not_found() => return Ok(Attached::Again),
            added => added?,
        };
        let Some(lock) = Self::path(LOCK) else {
            return Ok(Attached::Later(FAULT_PAUSE));
        };
        self.clear(&lock)?;
        match self.root.lock(&lock)? {
            Some(held) => Ok(Attached::Ours(watch, held)),
            None => {
                let why = format!("another agent serves devices here: it holds {lock}");
                if self.board.presence(Some(&why)) {
                    tracing::warn!("{why}");
                }
                Ok(Attached::Later(LOCK_PAUSE))
            }
        }
    }

    /// Removes what stands in the lock's place and is no file of ours: others who may write in the directory could
    /// keep every device from being offered by it. What cannot be removed, such as a directory with something in it,
    /// is moved aside.
    fn clear(&self, lock: &AbsPath) -> Result<(), RootError> {
        let Some(stat) = self.root.stat(lock)? else {
            return Ok(());
        };
        let owner = lock.parent().and_then(|dir| self.root.stat(&dir).ok()?);
        let owner = owner.map_or(0, |dir| dir.uid);
        if stat.kind == Kind::File && [0, owner].contains(&stat.uid) {
            return Ok(());
        }
        let (kind, user) = (stat.kind.as_str(), stat.uid);
        tracing::warn!("{lock} is a {kind} of user {user}, not our lock: it is removed");
        if stat.kind != Kind::Directory {
            return self.root.remove_file(lock);
        }
        match (self.root.remove_empty_dir(lock)?, Self::path(FOREIGN)) {
            (false, Some(aside)) => self.root.move_new(lock, &aside),
            _ => Ok(()),
        }
    }

    /// Waits until the next component on the way to `wanted` may have come to be.
    async fn wait_for(&self, wanted: &AbsPath, watch: &mut Watch) -> Result<(), RootError> {
        let mut awaited = wanted.clone();
        while let Some(parent) = awaited.parent() {
            if self.root.is_dir(&parent)? {
                break;
            }
            awaited = parent;
        }
        let Some(nearest) = awaited.parent() else {
            return Ok(());
        };
        watch.add_names(&nearest)?;
        // What came before the watch is not told.
        while !self.root.is_dir(&awaited)? {
            if watch.next().await?.iter().any(matches_gone) {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn matches_gone(event: &WatchEvent) -> bool {
    matches!(event.kind, WatchKind::DirGone | WatchKind::Overflow)
}
