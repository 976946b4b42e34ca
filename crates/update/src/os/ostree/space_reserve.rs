//! Keeps space free in the file system of the repository while an image is downloaded.
//!
//! /var is often on the same file system. There the kubelet evicts pods when space is short, also from a node that is not
//! cordoned for the update yet.

use std::time::Duration;

use super::{OstreeProvider, RpmOstree, commit_image::REPOSITORY};
use crate::os::HostCommand;
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Root;

/// How much of the file system stays free. The kubelet evicts pods below 10 % by default, and below 15 % of a file system
/// with container images.
const RESERVE_PERCENT: u64 = 15;

/// How often the free space is read during a download.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The space of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Space {
    free: u64,
    reserve: u64,
}

/// A download would need the reserve.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SpaceError {
    #[error(
        "the layers of the image need {} MiB; {} MiB are free on the file system of {}, of which {} MiB ({} %) stay free",
        needed >> 20, space.free >> 20, REPOSITORY, space.reserve >> 20, RESERVE_PERCENT
    )]
    TooLarge { needed: u64, space: Space },
    #[error(
        "{} MiB are free on the file system of {}, less than the reserve of {} MiB ({} %)",
        .0.free >> 20, REPOSITORY, .0.reserve >> 20, RESERVE_PERCENT
    )]
    Low(Space),
}

impl Space {
    /// The space of the repository's file system; `None` if it cannot be read.
    fn read(root: &Root) -> Option<Self> {
        let mount = root.mount(&AbsPath::new(REPOSITORY).ok()?).ok()?;
        Some(Self {
            free: mount.free_bytes,
            reserve: mount.size_bytes / 100 * RESERVE_PERCENT,
        })
    }

    const fn is_low(self) -> bool {
        self.free < self.reserve
    }

    /// Whether the reserve would be needed for so many bytes more. Unpacked they are more, so that this is only the least.
    const fn is_too_small_for(self, needed: u64) -> bool {
        self.free.saturating_sub(self.reserve) < needed
    }
}

impl<C: HostCommand + RpmOstree> OstreeProvider<C> {
    /// Returns the space before a download, if it can be read and the reserve is free.
    pub(super) fn check_reserve(&self) -> Result<Option<Space>, SpaceError> {
        match Space::read(&self.root) {
            Some(space) if space.is_low() => Err(SpaceError::Low(space)),
            space => Ok(space),
        }
    }

    /// Waits until the running download needs the reserve: the registry may send more than it announced.
    pub(super) async fn until_reserve_is_needed(&self, before: Option<Space>) -> SpaceError {
        let mut interval = tokio::time::interval(CHECK_INTERVAL);
        loop {
            interval.tick().await;
            if let Some((space, needed)) = before.zip(self.needed_bytes())
                && space.is_too_small_for(needed)
            {
                return SpaceError::TooLarge { needed, space };
            }
            if let Err(error) = self.check_reserve() {
                return error;
            }
        }
    }
}
