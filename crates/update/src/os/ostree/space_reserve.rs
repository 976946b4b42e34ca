//! Keeps space free in the file system of the repository while an image or packages are downloaded.
//!
//! /var is often on the same file system. There the kubelet evicts pods when space is short, also from a node that is not
//! cordoned for the update yet.

use super::{OstreeProvider, RpmOstree, commit_image::REPOSITORY};
use crate::os::HostCommand;
use machinist_base::abs_path::AbsPath;

/// How much of the file system stays free. The kubelet evicts pods below 10 % by default, and below 15 % of a file system
/// with container images.
const RESERVE_PERCENT: u64 = 15;

/// Less space than the reserve is free.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} MiB are free on the file system of {REPOSITORY}, less than the reserve of {} MiB ({RESERVE_PERCENT} %)",
    free >> 20, reserve >> 20
)]
pub(super) struct LowSpaceError {
    /// In bytes.
    free: u64,
    /// In bytes.
    reserve: u64,
}

impl<C: HostCommand + RpmOstree> OstreeProvider<C> {
    /// Fails if less than the reserve is free. Space that cannot be read is enough.
    pub(super) fn check_reserve(&self) -> Result<(), LowSpaceError> {
        let path = AbsPath::new(REPOSITORY).ok();
        let Some(mount) = path.and_then(|path| self.root.mount(&path).ok()) else {
            return Ok(());
        };
        let reserve = mount.size_bytes / 100 * RESERVE_PERCENT;
        match mount.free_bytes < reserve {
            true => Err(LowSpaceError {
                free: mount.free_bytes,
                reserve,
            }),
            false => Ok(()),
        }
    }
}
