//! The events that wake the registry: changes of watched directories and kernel device events.

use std::time::Duration;

use tokio::sync::watch;

use super::RegistryEvent;
use crate::{
    declaration::{Declaration, HealthProbe},
    registry::{
        dir_watch::{DirChange, DirWatch},
        scan::UnitStates,
        watch_target::watch_for,
    },
    uevent::{UeventError, UeventResult, Uevents},
};
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_rootfs::Root;

/// The rescan interval without uevents or some directory watch: inotify alone does not see hardware without a node
/// in `/dev`, and without inotify, changes of files go unnoticed.
const RESCAN_INTERVAL_WITHOUT_EVENTS: Duration = Duration::from_secs(60);
/// The rescan interval while health probes read sysfs attributes, whose changes cause no event.
const ATTRIBUTE_RESCAN_INTERVAL: Duration = Duration::from_secs(10);

/// The sources of events, and the interval of the rescans that find what they miss.
pub(super) struct EventSources {
    file_watch: Option<DirWatch>,
    pub(super) node_watch: Option<DirWatch>,
    pub(super) uevents: Option<Uevents>,
    /// The state of the systemd units that health probes name.
    pub(super) units: watch::Receiver<UnitStates>,
    /// The interval between full rescans, which find changes whose events were lost (full queues).
    pub(super) rescan_interval: Duration,
}

impl EventSources {
    /// `kernel`: whether to receive uevents.
    pub(super) fn new(
        root: &Root,
        kernel: bool,
        units: watch::Receiver<UnitStates>,
        rescan_interval: Duration,
    ) -> Self {
        Self {
            file_watch: watcher(root),
            node_watch: watcher(root),
            uevents: kernel.then(listen).flatten(),
            units,
            rescan_interval,
        }
    }

    /// Waits for the next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> RegistryEvent {
        tokio::select! {
            biased;
            // Cancel-safe: events stay in the kernel's queues.
            _ = changed(&mut self.file_watch) => RegistryEvent::Files,
            change = changed(&mut self.node_watch) => RegistryEvent::Nodes(change),
            uevent = next_uevent(self.uevents.as_ref()) => RegistryEvent::Kernel(uevent),
            // Cancel-safe: a change stays marked as unseen.
            Ok(()) = self.units.changed() => RegistryEvent::Units,
        }
    }

    /// Watches the directories of declarations.
    pub(super) fn watch_declarations(&mut self, root: &Root, dirs: &[AbsPath]) {
        if let Some(watch) = &mut self.file_watch {
            watch.set(&dirs.iter().map(|dir| watch_for(root, dir)).collect());
        }
    }

    /// Sets up a watch that failed. Whether it covers all directories is known after the scan.
    pub(super) fn retry_watches(&mut self, root: &Root) {
        let again = || DirWatch::new(root).ok();
        self.node_watch = self.node_watch.take().or_else(again);
        self.file_watch = self.file_watch.take().or_else(again);
    }

    /// Whether inotify covers all directories of declarations.
    pub(super) fn watches_all_files(&self) -> bool {
        self.file_watch.as_ref().is_some_and(DirWatch::is_complete)
    }

    /// How long after a scan the next one begins without an event.
    pub(super) fn rescan_wait<'a>(
        &self,
        mut in_force: impl Iterator<Item = &'a Declaration>,
    ) -> Duration {
        let watches_all =
            self.watches_all_files() && self.node_watch.as_ref().is_some_and(DirWatch::is_complete);
        let slow = match self.uevents.is_some() && watches_all {
            true => self.rescan_interval,
            false => self.rescan_interval.min(RESCAN_INTERVAL_WITHOUT_EVENTS),
        };
        let reads_attributes = |one: &Declaration| {
            one.probes
                .iter()
                .any(|probe| matches!(probe, HealthProbe::Sysfs { .. }))
        };
        match in_force.any(reads_attributes) {
            true => slow.min(ATTRIBUTE_RESCAN_INTERVAL),
            false => slow,
        }
    }
}

fn watcher(root: &Root) -> Option<DirWatch> {
    DirWatch::new(root)
        .inspect_err(|error| {
            tracing::warn!(
                "directory watch unavailable, falling back to rescans: {}",
                chain(error)
            )
        })
        .ok()
}

fn listen() -> Option<Uevents> {
    Uevents::listen()
        .inspect_err(|error| {
            tracing::info!(
                "no kernel device events; detecting hot plug by watching /dev instead: {}",
                chain(error)
            )
        })
        .ok()
}

async fn changed(watch: &mut Option<DirWatch>) -> DirChange {
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

async fn next_uevent(uevents: Option<&Uevents>) -> Result<UeventResult, UeventError> {
    match uevents {
        Some(uevents) => uevents.next().await,
        None => std::future::pending().await,
    }
}
