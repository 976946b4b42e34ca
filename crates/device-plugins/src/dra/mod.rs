//! The driver for dynamic resource allocation (DRA): it prepares the kubelet's claims, on two
//! sockets.
//!
//! The kubelet finds the registrar's socket in its plugin directory (`serving`), and calls the
//! driver to prepare and unprepare claims (`server`). One task handles the calls (`keeper`). Claims
//! are prepared concurrently (`prepare`, `granting`); the results are written one after the other:
//! first the checkpoint of prepared claims, then the CDI specs (`shelf`, `book`), and again when a
//! device's nodes change (`refresh`). The desired ResourceSlices are handed to the cluster module,
//! which publishes them.

pub mod api;
mod claim_allocation;
mod claim_files;
mod claim_gc;
mod claim_preparation;
mod claim_store;
mod claim_task;
mod device_health;
mod grpc;
mod kubelet_call;
mod prepare_error;
mod sockets;
mod spec_refresh;
mod status;

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::{mpsc, watch};

pub use self::status::DriverState;
use self::{
    claim_allocation::ClaimAllocator,
    claim_files::CheckpointFile,
    claim_preparation::ClaimPreparer,
    claim_store::ClaimStore,
    claim_task::{ClaimTask, ClaimTaskInputs, ClaimTaskOutputs},
    spec_refresh::SpecRefresh,
    status::DriverStatusWriter,
};
use crate::kubelet::{Allocations, InFlightAllocations};
use machinist_base::shutdown::Tasks;
use machinist_device::{
    Inventory,
    allocator::Allocators,
    dra::{
        claim_checkpoint::ClaimCheckpoint,
        traits::{ClaimReader, DesiredPool, InUseDevices, PublishedPool},
    },
};
use machinist_rootfs::Root;

/// Calls of the kubelet that may be queued; it makes one for each pod that starts or ends.
const CALL_QUEUE_LEN: usize = 64;

/// The driver before its start, with the state of an earlier agent.
#[derive(Debug)]
pub struct DraDriver {
    root: Root,
    store: CheckpointFile,
    book: ClaimCheckpoint,
    /// Whether the checkpoint is known to be complete.
    whole: bool,
    board: DriverStatusWriter,
    preparing: InFlightAllocations,
}

/// The driver's dependencies.
#[derive(Debug)]
pub struct DriverDeps {
    /// The Node's name, which is also the pool's name.
    pub node: String,
    /// Reads ResourceClaims from the cluster.
    pub claims: Arc<dyn ClaimReader>,
    /// Reads from the kubelet which devices containers have without claims.
    pub given: Arc<dyn InUseDevices>,
    /// The allocation backends of sources.
    pub answerers: Allocators,
    /// Only the resources that are served by claims.
    pub inventory: watch::Receiver<Arc<Inventory>>,
    /// The ResourceSlices that are published in the cluster.
    pub published: watch::Receiver<PublishedPool>,
}

impl DraDriver {
    /// Loads the state of an earlier agent. Nothing is served yet.
    pub fn load(root: Root) -> Self {
        let store = CheckpointFile::new(root.clone());
        let (book, whole) = store.load();
        let board = DriverStatusWriter::new(&book);
        Self {
            root,
            store,
            book,
            whole,
            board,
            preparing: InFlightAllocations::default(),
        }
    }

    /// The driver's current state, as a watch.
    pub fn state(&self) -> watch::Receiver<DriverState> {
        self.board.subscribe()
    }

    /// The claims that are being prepared.
    pub fn preparing(&self) -> watch::Receiver<Allocations> {
        self.preparing.counts()
    }

    /// Does not start the driver, for this reason. Devices that are still published in the cluster
    /// then no longer keep other contracts from advertising them.
    pub fn abandon_driver(mut self, why: &str) {
        self.book.offered.clear();
        self.board.holding(&self.book);
        self.board.registration(Some(why));
    }

    /// Serves claims until `tasks` end; returns the devices to publish. An ending agent removes
    /// only its sockets: the kubelet waits 30 s for the next agent before it deletes the node's
    /// slices.
    pub fn start(self, with: DriverDeps, tasks: &Tasks) -> watch::Receiver<DesiredPool> {
        let (calls, called) = mpsc::channel(CALL_QUEUE_LEN);
        let (wish, wished) = watch::channel(None);
        let (needed, needs) = watch::channel(false);
        let service = grpc::DraService::new(
            calls.clone(),
            (with.inventory.clone(), with.node.clone()),
            self.preparing.clone(),
            tasks,
        );
        let serving =
            sockets::DriverSockets::new(self.root.clone(), service, self.board.clone(), needs);
        let stop = tasks.token();
        let tracked = tasks.clone();
        tasks.spawn("driver", async move {
            tokio::select! {
                // Safe to drop: the sockets are removed with their servers.
                () = stop.cancelled() => {}
                () = serving.run(tracked) => {}
            }
        });
        let sweep = claim_gc::ClaimGc {
            claims: Arc::clone(&with.claims),
            given: Arc::clone(&with.given),
            calls,
        };
        let granting = ClaimAllocator {
            root: self.root.clone(),
            answerers: with.answerers,
            boot: self.store.boot().map(Arc::from),
        };
        let shelf = ClaimStore::new(self.store, self.book, self.whole, self.board.clone());
        let refresh = SpecRefresh {
            root: self.root,
            moved: BTreeSet::new(),
            granting: granting.clone(),
            shelf: shelf.clone(),
            inventory: with.inventory.clone(),
        };
        tasks.spawn("nodes of claims", refresh.run(tasks.token()));
        let preparer = ClaimPreparer {
            node: with.node.into(),
            shelf,
            inventory: with.inventory.clone(),
            granting,
            sweep,
        };
        let ears = ClaimTaskInputs {
            inventory: with.inventory,
            state: self.board.subscribe(),
            published: with.published,
        };
        let outlets = ClaimTaskOutputs { wish, needed };
        let keeper = ClaimTask::new(preparer, ears, outlets, tasks.clone());
        tasks.spawn("claims", keeper.run(called, tasks.token()));
        wished
    }
}
