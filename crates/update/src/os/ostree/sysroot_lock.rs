//! Takes libostree's lock, which programs hold while they change deployments.

use std::time::Duration;

use super::{OstreeProvider, RpmOstree, error::OstreeError, state::OstreeState};
use crate::os::HostCommand;
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::FileLock;

/// The file that libostree locks (`ostree_sysroot_lock`), exclusively.
const LOCK: &str = "/ostree/lock";

/// How long to wait for it. `rpm-ostree upgrade` holds it for minutes, and a step is then repeated later.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

impl<C: HostCommand + RpmOstree> OstreeProvider<C> {
    /// Keeps other programs from changing deployments while the lock is held; `None` if none ever has. Commands that take
    /// the lock themselves must not run meanwhile.
    pub(super) async fn lock_sysroot(&self) -> Result<Option<FileLock>, OstreeError> {
        let Ok(path) = AbsPath::new(LOCK) else {
            return Ok(None);
        };
        let root = self.root.clone();
        let taken =
            tokio::task::spawn_blocking(move || root.lock_record_shared(&path, LOCK_TIMEOUT));
        match taken.await {
            Ok(Err(error)) if error.is_not_found() => Ok(None),
            Ok(Ok(None)) | Err(_) => Err(OstreeError::Locked),
            Ok(taken) => Ok(taken?),
        }
    }

    /// The deployments once no other program changes them. `ostree admin` waits for its lock, and only then looks up the
    /// deployment that a position means.
    pub(super) async fn settled_state(&self) -> Result<OstreeState, OstreeError> {
        drop(self.lock_sysroot().await?);
        OstreeState::read(&self.root)
    }
}
