//! The channels and handles that the task of a vendor works with.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::vendor_api::{
    lazy_messages::LazySnapshot,
    snapshot::{self, OtherResources, SnapshotRejection},
    status::LiveVendorStatus,
    task_messages::{VendorEvent, VendorRequest},
};
use machinist_device::{
    Inventory, Resource, ResourceName,
    registry::{PathCheckError, PathChecker, Registry},
    vendor_declaration::Vendor,
};
use machinist_rootfs::Root;

/// Where the results of the task go.
pub(in crate::vendor_api) struct VendorTaskDeps {
    pub(in crate::vendor_api) snapshots: SnapshotReader,
    pub(in crate::vendor_api) registry: Registry,
    pub(in crate::vendor_api) status: StatusPublisher,
}

/// What wakes the task.
pub(in crate::vendor_api) struct VendorTaskInputs {
    /// The vendor's file, as last read.
    pub(in crate::vendor_api) vendor: watch::Receiver<Arc<Vendor>>,
    /// Why vendors have to release their hardware; `None` when they need not.
    pub(in crate::vendor_api) quiesced: watch::Receiver<Option<String>>,
    pub(in crate::vendor_api) inventory: watch::Receiver<Arc<Inventory>>,
    pub(in crate::vendor_api) requests: mpsc::Receiver<VendorRequest>,
    pub(in crate::vendor_api) events: mpsc::Receiver<VendorEvent>,
    /// Cancelled when the vendor's file is removed.
    pub(in crate::vendor_api) removed: CancellationToken,
    /// Cancelled when the agent stops.
    pub(in crate::vendor_api) stop: CancellationToken,
}

/// Decodes snapshots and checks their paths on the machine.
pub(in crate::vendor_api) struct SnapshotReader {
    pub(in crate::vendor_api) root: Root,
    pub(in crate::vendor_api) path_checker: PathChecker,
}

impl SnapshotReader {
    /// Reads a snapshot of `bytes` encoded bytes. If it is dropped, the blocking check runs to its
    /// end and its result is discarded.
    pub(super) async fn read(
        &self,
        vendor: Arc<Vendor>,
        name: ResourceName,
        (snapshot, bytes): (LazySnapshot, usize),
        others: OtherResources,
    ) -> Result<Result<Resource, SnapshotRejection>, PathCheckError> {
        let root = self.root.clone();
        let read = move || snapshot::read(Some(&root), &vendor, &name, (snapshot, bytes), others);
        self.path_checker.check_path(read).await
    }
}

/// Publishes the status of one vendor.
pub(in crate::vendor_api) struct StatusPublisher {
    pub(in crate::vendor_api) status: watch::Sender<LiveVendorStatus>,
    /// Bumped on every change of any vendor's status.
    pub(in crate::vendor_api) change_count: Arc<watch::Sender<u64>>,
}

impl StatusPublisher {
    pub(super) fn publish(&self, status: LiveVendorStatus) {
        let is_changed = self.status.send_if_modified(|published| {
            let is_changed = *published != status;
            if is_changed {
                *published = status;
            }
            is_changed
        });
        if is_changed {
            self.change_count.send_modify(|count| *count += 1);
        }
    }
}
