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
use machinist_base::{rate_limit::LogRates, shutdown::Tasks};
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
    checkpoint: ClaimCheckpoint,
    /// Whether the checkpoint is known to be complete.
    is_complete: bool,
    status: DriverStatusWriter,
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
    pub allocators: Allocators,
    /// Only the resources that are served by claims.
    pub inventory: watch::Receiver<Arc<Inventory>>,
    /// The ResourceSlices that are published in the cluster.
    pub published: watch::Receiver<PublishedPool>,
}

impl DraDriver {
    /// Loads the state of an earlier agent. Nothing is served yet.
    pub fn load(root: Root) -> Self {
        let store = CheckpointFile::new(root.clone());
        let (checkpoint, is_complete) = store.load();
        let status = DriverStatusWriter::new(&checkpoint);
        Self {
            root,
            store,
            checkpoint,
            is_complete,
            status,
            preparing: InFlightAllocations::default(),
        }
    }

    /// The driver's current state, as a watch.
    pub fn state(&self) -> watch::Receiver<DriverState> {
        self.status.subscribe()
    }

    /// The claims that are being prepared.
    pub fn preparing(&self) -> watch::Receiver<Allocations> {
        self.preparing.counts()
    }

    /// Does not start the driver, for this reason. Devices that are still published in the cluster
    /// then no longer keep other contracts from advertising them.
    pub fn abandon_driver(mut self, why: &str) {
        self.checkpoint.offered.clear();
        self.status.holding(&self.checkpoint);
        self.status.registration(Some(why));
    }

    fn serve_sockets(
        &self,
        service: grpc::DraService,
        needed: watch::Receiver<bool>,
        tasks: &Tasks,
    ) {
        let (root, status) = (self.root.clone(), self.status.clone());
        let sockets = sockets::DriverSockets::new(root, service, status, needed);
        let stop = tasks.token();
        let tracked = tasks.clone();
        tasks.spawn("driver", async move {
            tokio::select! {
                // Safe to drop: the sockets are removed with their servers.
                () = stop.cancelled() => {}
                () = sockets.run(tracked) => {}
            }
        });
    }

    /// Serves claims until `tasks` end; returns the devices to publish. An ending agent removes
    /// only its sockets: the kubelet waits 30 s for the next agent before it deletes the node's
    /// slices.
    pub fn start(self, with: DriverDeps, tasks: &Tasks) -> watch::Receiver<DesiredPool> {
        let (calls, call_receiver) = mpsc::channel(CALL_QUEUE_LEN);
        let (desired_pool, desired_pool_watch) = watch::channel(None);
        let (needed, socket_needed) = watch::channel(false);
        let service = grpc::DraService::new(
            calls.clone(),
            (with.inventory.clone(), with.node.clone()),
            self.preparing.clone(),
            tasks,
        );
        self.serve_sockets(service, socket_needed, tasks);
        let gc = claim_gc::ClaimGc {
            claims: Arc::clone(&with.claims),
            in_use: Arc::clone(&with.given),
            calls,
        };
        let allocator = ClaimAllocator {
            root: self.root.clone(),
            allocators: with.allocators,
            boot: self.store.boot().map(Arc::from),
        };
        let claim_store = ClaimStore::new(
            self.store,
            self.checkpoint,
            self.is_complete,
            self.status.clone(),
        );
        let refresh = SpecRefresh {
            root: self.root,
            claims_without_spec: BTreeSet::new(),
            allocator: allocator.clone(),
            claim_store: claim_store.clone(),
            inventory: with.inventory.clone(),
        };
        tasks.spawn("nodes of claims", refresh.run(tasks.token()));
        let preparer = ClaimPreparer {
            node: with.node.into(),
            claim_store,
            inventory: with.inventory.clone(),
            allocator,
            gc,
            log_rates: LogRates::default(),
        };
        let inputs = ClaimTaskInputs {
            inventory: with.inventory,
            state: self.status.subscribe(),
            published: with.published,
        };
        let outputs = ClaimTaskOutputs {
            desired_pool,
            needed,
        };
        let claim_task = ClaimTask::new(preparer, inputs, outputs, tasks.clone());
        tasks.spawn("claims", claim_task.run(call_receiver, tasks.token()));
        desired_pool_watch
    }
}
