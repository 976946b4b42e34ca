//! The events that wake the registry: changes of watched directories and kernel device events.

use crate::{
    registry::dir_watch::{DirChange, DirWatch},
    uevent::{UeventError, UeventResult, Uevents},
};
use machinist_base::error_chain::chain;
use machinist_rootfs::Root;

pub(super) fn watcher(root: &Root) -> Option<DirWatch> {
    DirWatch::new(root)
        .inspect_err(|error| {
            tracing::warn!(
                "directory watch unavailable, falling back to rescans: {}",
                chain(error)
            )
        })
        .ok()
}

pub(super) fn listen() -> Option<Uevents> {
    Uevents::listen()
        .inspect_err(|error| {
            tracing::info!(
                "no kernel device events; detecting hot plug by watching /dev instead: {}",
                chain(error)
            )
        })
        .ok()
}

pub(super) async fn changed(watch: &mut Option<DirWatch>) -> DirChange {
    let Some(watching) = watch else {
        return std::future::pending().await;
    };
    watching.changed().await.unwrap_or_else(|error| {
        tracing::warn!(
            "directory watch failed, falling back to rescans: {}",
            chain(&error)
        );
        *watch = None;
        DirChange::Other
    })
}

pub(super) async fn next_uevent(uevents: Option<&Uevents>) -> Result<UeventResult, UeventError> {
    match uevents {
        Some(uevents) => uevents.next().await,
        None => std::future::pending().await,
    }
}
