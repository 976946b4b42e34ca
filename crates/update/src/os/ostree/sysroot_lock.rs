//! Takes libostree's lock, which programs hold while they change deployments.

use super::{OstreeProvider, RpmOstree, error::OstreeError, staged::Staged, state::OstreeState};
use crate::os::HostCommand;
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::FileLock;

/// The file that libostree locks (`ostree_sysroot_lock`), exclusively.
const SYSROOT_LOCK: &str = "/ostree/lock";

impl<C: HostCommand + RpmOstree> OstreeProvider<C> {
    /// Keeps other programs from changing deployments while the lock is held; `None` if none ever has. Commands that take
    /// the lock themselves must not run meanwhile. Does not wait: `rpm-ostree upgrade` holds the lock for minutes, and the
    /// step is repeated later.
    pub(super) fn lock_sysroot(&self) -> Result<Option<FileLock>, OstreeError> {
        let Ok(path) = AbsPath::new(SYSROOT_LOCK) else {
            return Ok(None);
        };
        match self.root.lock_record_shared(&path) {
            Err(error) if error.is_not_found() => Ok(None),
            Ok(None) => Err(OstreeError::Locked),
            taken => Ok(taken?),
        }
    }

    /// Returns the deployments, or [`OstreeError::Locked`] while another program changes them. The lock is released before:
    /// `ostree admin` waits for it, and only then looks up the deployment that a position means.
    pub(super) fn settled_state(&self) -> Result<OstreeState, OstreeError> {
        drop(self.lock_sysroot()?);
        OstreeState::read(&self.root)
    }

    /// Removes the lock file of a staged deployment that does not exist, unless a program is staging one: they create the
    /// file first.
    pub(super) fn remove_stale_lock(&self) -> Result<(), OstreeError> {
        let lock = self.lock_sysroot()?;
        Staged::remove_stale_lock(&self.root)?;
        drop(lock);
        Ok(())
    }
}
