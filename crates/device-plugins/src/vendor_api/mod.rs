//! The vendor API: hardware vendors' device drivers connect to the agent over gRPC and report their
//! devices.
//!
//! A vendor is declared by a file of the machine's owner. `files` watches those; `room` runs a task
//! and a socket for each; `server` and `connection` accept its processes, one `session` at a time;
//! `keeper` owns the vendor's offers and passes them to the registry. Vendors are not trusted:
//! `codec` measures a message before it is decoded, `lazy_messages` leaves devices encoded until they are
//! read, `snapshot`, `recipe` and `paths` check everything against the file, and `limits` has the
//! limits that hold for all vendors; those that a file may set are in `device/vendor/check`.

pub mod api;
pub mod conformance;
mod connection;
mod device_spec;
mod handshake;
pub mod lazy_messages;
pub mod limited_codec;
mod limits;
mod offered_resources;
mod path_policy;
mod requests;
mod session;
mod snapshot;
mod socket;
mod status;
mod supervisor;
mod task_messages;
mod vendor_files;
mod vendor_task;

use std::sync::Arc;

use tokio::sync::watch;

use self::supervisor::{VendorHandles, VendorSupervisor};
pub use self::{
    requests::OrderOutcome,
    socket::{SOCKET_NAME, VENDORS_DIR},
    status::{LiveVendorStatus, OfferStatus},
    vendor_files::follow,
};
use machinist_base::shutdown::Tasks;
use machinist_device::{registry::Registry, vendor_declaration::Vendors};
use machinist_rootfs::Root;

/// A handle to all vendors. Cheap to clone.
#[derive(Clone, Debug)]
pub struct VendorsHandle {
    root: Root,
    handles: watch::Receiver<Arc<VendorHandles>>,
    quiesced: Arc<watch::Sender<Option<String>>>,
    status_changes: Arc<watch::Sender<u64>>,
}

/// Starts a task for every vendor that `vendors` declares, and restores the offers of an earlier
/// agent. Ends with `tasks` without withdrawing anything: the next agent continues. `quiesced` is
/// the reason if vendors have to release their hardware from the start.
pub fn start(
    root: Root,
    registry: Registry,
    vendors: watch::Receiver<Arc<Vendors>>,
    quiesced: Option<String>,
    tasks: &Tasks,
) -> VendorsHandle {
    let quiesced = Arc::new(watch::Sender::new(quiesced));
    let status_changes = Arc::new(watch::Sender::new(0));
    let (publish, handles) = watch::channel(Arc::new(VendorHandles::new()));
    let room = VendorSupervisor::new(
        root.clone(),
        registry,
        tasks.clone(),
        publish,
        (quiesced.subscribe(), Arc::clone(&status_changes)),
    );
    let stop = tasks.token();
    tasks.spawn("vendors", async move {
        tokio::select! {
            // Safe to drop: tasks and sockets end by the same token.
            () = stop.cancelled() => {}
            () = room.run(vendors) => {}
        }
    });
    VendorsHandle {
        root,
        handles,
        quiesced,
        status_changes,
    }
}

impl VendorsHandle {
    fn handles(&self) -> Arc<VendorHandles> {
        self.handles.borrow().clone()
    }

    /// Whether any vendor is declared.
    pub fn any(&self) -> bool {
        !self.handles.borrow().is_empty()
    }

    /// Waits until a vendor is added or removed; never returns after the agent has ended. Safe to
    /// drop.
    pub async fn vendors_changed(&mut self) {
        if self.handles.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// A counter that changes whenever [`VendorsHandle::status`] does.
    pub fn status_changes(&self) -> watch::Receiver<u64> {
        self.status_changes.subscribe()
    }

    /// The current status of all vendors.
    pub fn status(&self) -> Vec<LiveVendorStatus> {
        let handles = self.handles();
        let each = handles.values().map(|handle| LiveVendorStatus {
            problem: handle.problem.borrow().clone(),
            ..handle.status.borrow().clone()
        });
        each.collect()
    }
}
