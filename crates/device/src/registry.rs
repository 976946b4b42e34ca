//! The device registry: one task that reads declarations, scans devices, saves its state, and
//! publishes the inventory.
//!
//! It wakes for events: changes in the watched directories, the kernel's uevents, and requests. A
//! slow periodic rescan finds changes that were missed.

mod background_scan;
mod change_log;
mod checkpoint;
mod config_files;
mod declaration_allocator;
mod dir_watch;
mod dry_scan;
mod follow_links;
mod path_check;
mod path_probe;
mod scan;
mod task;
mod watch_target;

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::{mpsc, oneshot, watch};

use self::task::RegistryTask;
pub use self::{
    checkpoint::boot_id,
    config_files::{is_declaration, read_files},
    declaration_allocator::DeclarationAllocator,
    dir_watch::{DirWatch, changed_or_timeout},
    dry_scan::{check, conflicting_sources, list, text_of},
    follow_links::follow,
    path_check::{PathCheckError, PathChecker},
    path_probe::{MountPrefixes, PathObject, is_stable_name, path_for_container},
    scan::UnitStates,
    watch_target::{WatchDepth, watch_for},
};
use super::{
    Allowances,
    inventory::{AllocationDisabled, Inventory, Resource},
    resource_name::ResourceName,
    source::ResourceSource,
};
use machinist_base::{abs_path::AbsPath, shutdown::Tasks};
use machinist_rootfs::Root;

/// The directories of declarations; if two files declare a resource, the first directory wins.
pub const DECLARATION_DIRS: [&str; 3] = [
    "/etc/machinist/devices.d",
    "/run/machinist/devices.d",
    // The node pod writes the declarations from the cluster here.
    "/run/machinist/cluster/devices.d",
];

/// The capacity of the request queue; further callers wait. Callers are the update reconciler, the
/// admin socket, and one task for each vendor.
const REQUEST_QUEUE_LEN: usize = 8;

/// The settings of the registry.
#[derive(Clone, Debug)]
pub struct RegistrySettings {
    /// What declarations may do beyond the defaults.
    pub allowances: Allowances,
    /// Whether to receive uevents, which are about the real root and not about a relocated one.
    pub uevents: bool,
    /// The interval between full rescans without an event.
    pub rescan: std::time::Duration,
    /// How long a stop waits for the last save of the device list.
    pub save_timeout: std::time::Duration,
    /// The state of the systemd units in [`Inventory::probed_units`].
    pub units: watch::Receiver<UnitStates>,
    /// Set if the previous agent had disabled allocation: it then stays disabled from the start.
    pub allocation_disabled: Option<AllocationDisabled>,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The agent is shutting down.
    #[error("the device registry has stopped")]
    Stopped,
}

impl RegistryError {
    /// Whether the same request may succeed later: the next agent can handle it.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Stopped)
    }
}

#[derive(Debug)]
enum RegistryRequest {
    SetAllocationDisabled(Option<AllocationDisabled>),
    Rescan,
    Offer(Arc<Resource>, oneshot::Sender<OfferOutcome>),
    Withdraw(ResourceSource, Option<ResourceName>),
    RetainOffers(ResourceSource, BTreeSet<ResourceName>),
}

/// The result of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfferOutcome {
    /// The resource is published.
    InForce,
    /// Another source owns the name and keeps it. The offer is used once that source's is removed.
    Taken {
        /// The owner.
        by: ResourceSource,
    },
}

/// A handle to the registry. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Registry {
    requests: mpsc::Sender<(RegistryRequest, oneshot::Sender<()>)>,
    inventory: watch::Receiver<Arc<Inventory>>,
}

impl Registry {
    /// Starts the registry. The state that an earlier agent saved is available when this returns; the
    /// first scan follows.
    pub fn start(root: Root, settings: RegistrySettings, tasks: &Tasks) -> Self {
        let task = RegistryTask::new(root, settings);
        let inventory = task.inventory();
        let (requests, request_receiver) = mpsc::channel(REQUEST_QUEUE_LEN);
        tasks.spawn("devices", task.run(request_receiver, tasks.token()));
        Self {
            requests,
            inventory,
        }
    }

    /// A watch of the inventory.
    pub fn inventory(&self) -> watch::Receiver<Arc<Inventory>> {
        self.inventory.clone()
    }

    /// Disables new allocations. Returns when every device is unhealthy in the inventory; the device
    /// plugins notify the kubelet within their debounce time.
    pub async fn disable_allocation(
        &self,
        allocation_disabled: AllocationDisabled,
    ) -> Result<(), RegistryError> {
        self.request(RegistryRequest::SetAllocationDisabled(Some(
            allocation_disabled,
        )))
        .await
    }

    /// Enables allocation again.
    pub async fn enable_allocation(&self) -> Result<(), RegistryError> {
        self.request(RegistryRequest::SetAllocationDisabled(None))
            .await
    }

    /// Reads all files and scans all devices now; returns when the result is published.
    pub async fn rescan(&self) -> Result<(), RegistryError> {
        self.request(RegistryRequest::Rescan).await
    }

    /// Submits the complete offer of a live source under one name, which replaces its previous one.
    pub async fn offer(
        &self,
        offer: impl Into<Arc<Resource>>,
    ) -> Result<OfferOutcome, RegistryError> {
        let (reply, outcome) = oneshot::channel();
        self.request(RegistryRequest::Offer(offer.into(), reply))
            .await?;
        outcome.await.map_err(|_| RegistryError::Stopped)
    }

    /// Removes the offers of a live source: the one under `resource`, or all of them.
    pub async fn withdraw(
        &self,
        source: ResourceSource,
        resource: Option<ResourceName>,
    ) -> Result<(), RegistryError> {
        self.request(RegistryRequest::Withdraw(source, resource))
            .await
    }

    /// Removes the offers of a live source under names other than these.
    pub async fn retain_offers(
        &self,
        source: ResourceSource,
        resources: BTreeSet<ResourceName>,
    ) -> Result<(), RegistryError> {
        self.request(RegistryRequest::RetainOffers(source, resources))
            .await
    }

    async fn request(&self, request: RegistryRequest) -> Result<(), RegistryError> {
        let (reply, done) = oneshot::channel();
        let sent = self.requests.send((request, reply)).await;
        sent.map_err(|_| RegistryError::Stopped)?;
        done.await.map_err(|_| RegistryError::Stopped)
    }
}

fn declaration_dirs() -> Vec<AbsPath> {
    DECLARATION_DIRS
        .iter()
        .filter_map(|dir| AbsPath::new(*dir).ok())
        .collect()
}
