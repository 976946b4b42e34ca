//! Waits for the directory and locks it, so that only one agent serves in it.

use std::time::Duration;

use super::{DEVICE_PLUGIN_DIR, FAULT_RETRY_INTERVAL, LOCK_FILE_NAME, PluginDirTask};
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{FileKind, FileLock, RootError, Watch, WatchEvent, WatchKind};

/// How often to retry a lock that another agent holds. Its release causes no event, and two agents
/// are a mistake that an operator has to correct.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// A directory that occupies the lock's path is moved to this name.
const FOREIGN_LOCK_NAME: &str = "m.lock.foreign";

/// The result of attaching to the directory.
pub(super) enum DirectoryState {
    /// It is watched and locked.
    Ours(Watch, FileLock),
    /// It cannot be used; retry after this time.
    Later(Duration),
    /// Retry at once.
    Again,
}

impl PluginDirTask {
    /// Waits for the directory by events, then locks it.
    pub(super) async fn attach(&mut self) -> Result<DirectoryState, RootError> {
        let Ok(directory) = AbsPath::new(DEVICE_PLUGIN_DIR) else {
            return Ok(DirectoryState::Later(FAULT_RETRY_INTERVAL));
        };
        let mut watch = self.root.watch()?;
        if !self.root.is_dir(&directory)? {
            self.record_absent(&format!("kubelet not found: missing {DEVICE_PLUGIN_DIR}"));
            self.wait_for(&directory, &mut watch).await?;
            return Ok(DirectoryState::Again);
        }
        match watch.add_names(&directory) {
            Err(error) if error.is_not_found() => return Ok(DirectoryState::Again),
            added => added?,
        };
        let Some(lock) = Self::path(LOCK_FILE_NAME) else {
            return Ok(DirectoryState::Later(FAULT_RETRY_INTERVAL));
        };
        self.clear(&lock)?;
        match self.root.lock(&lock)? {
            Some(held) => Ok(DirectoryState::Ours(watch, held)),
            None => {
                let why = format!("another agent serves devices on this node: it holds {lock}");
                if self.status_writer.presence(Some(&why)) {
                    tracing::warn!("{why}");
                }
                Ok(DirectoryState::Later(LOCK_RETRY_INTERVAL))
            }
        }
    }

    /// Removes an object at the lock's path that is not our file: otherwise other users with write
    /// access to the directory could block all device registration. An object that cannot be
    /// removed, such as a directory that is not empty, is moved aside.
    fn clear(&self, lock: &AbsPath) -> Result<(), RootError> {
        let Some(stat) = self.root.stat(lock)? else {
            return Ok(());
        };
        let owner = lock.parent().and_then(|dir| self.root.stat(&dir).ok()?);
        let owner = owner.map_or(0, |dir| dir.uid);
        if stat.kind == FileKind::File && [0, owner].contains(&stat.uid) {
            return Ok(());
        }
        let (kind, user) = (stat.kind.as_str(), stat.uid);
        tracing::warn!(
            "{lock} is a {kind} owned by user {user}, not machinist's lock: removing it"
        );
        if stat.kind != FileKind::Directory {
            return self.root.remove_file(lock);
        }
        match (
            self.root.remove_empty_dir(lock)?,
            Self::path(FOREIGN_LOCK_NAME),
        ) {
            (false, Some(aside)) => self.root.move_new(lock, &aside),
            _ => Ok(()),
        }
    }

    /// Waits until the next missing component of `wanted` may exist.
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
        // The watch does not report objects created before it.
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
