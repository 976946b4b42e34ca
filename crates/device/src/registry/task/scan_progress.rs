//! What the registry knows about the scan that runs, and about the last one.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use super::SCAN_DEBOUNCE;
use crate::registry::{background_scan::ScanWorker, scan::Scan};
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Root;

/// How long after the agent's start devices of an earlier boot may be absent before they are removed: slow buses
/// and firmware take tens of seconds to bring up theirs.
pub(super) const ABSENT_DEVICE_GRACE: Duration = Duration::from_secs(60);

/// The scans and their relation to events that came meanwhile.
pub(super) struct ScanProgress {
    pub(super) worker: ScanWorker,
    /// When the last scan began.
    last_at: Option<Instant>,
    /// Device nodes that were removed since the last scan began, which may still have seen them.
    removed_nodes: BTreeSet<AbsPath>,
    /// Whether absent devices of an earlier boot were removed, or there are none.
    absent_removed: bool,
}

impl ScanProgress {
    /// `new_boot`: whether the saved devices are those of an earlier boot.
    pub(super) fn new(root: Root, new_boot: bool) -> Self {
        Self {
            worker: ScanWorker::new(root),
            last_at: None,
            removed_nodes: BTreeSet::new(),
            absent_removed: !new_boot,
        }
    }

    /// Records that a scan begins.
    pub(super) fn begin(&mut self) {
        self.last_at = Some(Instant::now());
        self.removed_nodes.clear();
    }

    /// The earliest time of a scan for an event that does not wait for a burst to end.
    pub(super) fn earliest(&self) -> Instant {
        let now = Instant::now();
        self.last_at.map_or(now, |at| (at + SCAN_DEBOUNCE).max(now))
    }

    /// Records device nodes that were removed while a scan may be under way.
    pub(super) fn record_removed(&mut self, nodes: BTreeSet<AbsPath>) {
        self.removed_nodes.extend(nodes);
    }

    /// Removes the devices whose nodes were removed after the scan had begun.
    pub(super) fn leave_out_removed(&self, scan: &mut Scan) {
        if !self.removed_nodes.is_empty() {
            scan.remove_nodes(&self.removed_nodes);
        }
    }

    /// Whether absent devices of an earlier boot are to be removed now, `uptime` after the start. This is so once.
    pub(super) fn takes_absent_devices(&mut self, uptime: Duration) -> bool {
        let late = uptime >= ABSENT_DEVICE_GRACE;
        let first = late && !self.absent_removed;
        self.absent_removed |= late;
        first
    }

    /// Whether absent devices of an earlier boot are still waited for.
    pub(super) const fn awaits_absent_devices(&self) -> bool {
        !self.absent_removed
    }
}
