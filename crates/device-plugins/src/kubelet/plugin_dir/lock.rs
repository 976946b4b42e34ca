//! Waits for the directory, and makes sure that only one agent serves in it.

use std::time::Duration;

use tokio::time::Instant;

use super::{DEVICE_PLUGIN_DIR, EARLIER_LOCK_NAME, FAULT_RETRY_INTERVAL, PluginDirTask};
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_rootfs::{FileKind, FileLock, RootError, Watch, WatchEvent, WatchKind};

/// Locked by the agent that serves in the directory. The lock is in the state directory, which only
/// root can open: pods of device plugins mount the kubelet's directory, and could hold a lock there
/// for ever.
const LOCK_PATH: &str = "/var/lib/machinist/kubelet.lock";
/// How often to retry a lock that another agent holds. Its release causes no event, and two agents
/// are a mistake that an operator has to correct.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How long to wait for an agent of an earlier version to end. An agent ends within a second, and an
/// update of the program ends the old one first; any other process may hold its lock for ever.
const EARLIER_AGENT_PATIENCE: Duration = Duration::from_secs(3);
/// How often to retry the earlier lock within that time.
const EARLIER_LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The lock of agents of earlier versions. They know only this one, in the kubelet's own directory.
#[derive(Debug, Default)]
pub(super) struct EarlierLock {
    held: Option<FileLock>,
    /// Until when to wait for it. It is set once, so that no other process causes a second wait.
    deadline: Option<Instant>,
    is_logged: bool,
}

impl EarlierLock {
    /// An open file delays the event that reports a removed directory.
    pub(super) fn release(&mut self) {
        self.held = None;
    }
}

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
        let Some(lock) = self.lock_exclusively()? else {
            let why = format!("another agent serves devices on this node: it holds {LOCK_PATH}");
            self.record_blocked(&why);
            return Ok(DirectoryState::Later(LOCK_RETRY_INTERVAL));
        };
        if self.must_wait_for_earlier_agent() {
            return Ok(DirectoryState::Later(EARLIER_LOCK_RETRY_INTERVAL));
        }
        Ok(DirectoryState::Ours(watch, lock))
    }

    fn record_blocked(&self, why: &str) {
        if self.status_writer.presence(Some(why))
            && let Some(suppressed) = self.status_writer.log_rates.take("directory")
        {
            tracing::warn!(suppressed, "{why}");
        }
    }

    /// `None` if another agent has the lock.
    fn lock_exclusively(&self) -> Result<Option<FileLock>, RootError> {
        let Ok(lock) = AbsPath::new(LOCK_PATH) else {
            return Ok(None);
        };
        if let Some(state_dir) = lock.parent() {
            self.root.make_dirs(&state_dir, 0o700)?;
        }
        self.root.lock(&lock)
    }

    /// Takes the lock of earlier versions if it is free, and returns whether to wait for it. Other
    /// users can write to the directory. So neither an object at the lock's path nor its holder, who
    /// cannot be identified from within a pod, blocks registration for longer than
    /// [`EARLIER_AGENT_PATIENCE`].
    fn must_wait_for_earlier_agent(&mut self) -> bool {
        let Some(path) = Self::path(EARLIER_LOCK_NAME) else {
            return false;
        };
        match self.root.stat(&path) {
            Ok(Some(stat)) if stat.kind != FileKind::File => return false,
            _ => {}
        }
        match self.root.lock(&path) {
            Ok(Some(lock)) => {
                self.earlier_lock.held = Some(lock);
                return false;
            }
            Ok(None) => {}
            // Whatever is there, no agent holds it.
            Err(error) => {
                tracing::debug!("{}", chain(&error));
                return false;
            }
        }
        let now = Instant::now();
        let deadline = *self
            .earlier_lock
            .deadline
            .get_or_insert(now + EARLIER_AGENT_PATIENCE);
        if now < deadline {
            self.record_blocked(&format!(
                "another process holds {path}: waiting {} s for an agent of an earlier version to end",
                EARLIER_AGENT_PATIENCE.as_secs()
            ));
            return true;
        }
        if !std::mem::replace(&mut self.earlier_lock.is_logged, true) {
            tracing::warn!(
                "serving devices although another process holds {path}: if it is an agent of an earlier version, stop it"
            );
        }
        false
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
