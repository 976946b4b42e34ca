//! The device registry: one task that reads declarations, scans devices, saves its state, and
//! publishes the inventory.
//!
//! It wakes for events: changes in the watched directories, the kernel's uevents, and requests. A
//! slow periodic rescan finds changes that were missed.

mod announce;
mod declared;
mod files;
mod looking;
mod looks;
mod preview;
mod saved;
mod scan;
mod stands;
mod task;
mod watching;

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::{mpsc, oneshot, watch};

use self::task::Task;
pub use self::{
    declared::Declared,
    files::{is_declaration, read_files},
    looks::{Looks, NoLook},
    preview::{check, list, rivals, text_of},
    saved::boot_id,
    scan::{UnitStates, follow},
    stands::{Node, Prefixes, handed_out, is_stable_name},
    watching::{Depth, DirWatch, changed_or_late, watch_for},
};
use super::{
    Allowances,
    inventory::{Inventory, Resource, Withheld},
    name::ResourceName,
    source::Source,
};
use crate::{path::AbsPath, root::Root, shutdown::Tasks};

/// The directories of declarations; if two files declare a resource, the first directory wins.
pub const DECLARATION_DIRS: [&str; 3] = [
    "/etc/machinist/devices.d",
    "/run/machinist/devices.d",
    // The node pod writes the declarations from the cluster here.
    "/run/machinist/cluster/devices.d",
];

/// The capacity of the request queue; further callers wait. Callers are the update reconciler, the
/// admin socket, and one task for each vendor.
const ASKS: usize = 8;

/// The settings of the registry.
#[derive(Clone, Debug)]
pub struct RegistrySettings {
    /// What declarations may do beyond the defaults.
    pub allowances: Allowances,
    /// Whether to receive uevents, which are about the real root and not about a relocated one.
    pub uevents: bool,
    /// The interval between full rescans without an event.
    pub rescan: std::time::Duration,
    /// The state of the systemd units in [`Inventory::probed_units`].
    pub units: watch::Receiver<UnitStates>,
    /// Set if the previous agent had disabled allocation: it then stays disabled from the start.
    pub withheld: Option<Withheld>,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The agent is shutting down.
    #[error("the device registry has stopped")]
    Stopped,
}

impl AskError {
    /// Whether the same request may succeed later: the next agent can handle it.
    pub const fn again(self) -> bool {
        matches!(self, Self::Stopped)
    }
}

#[derive(Debug)]
enum Ask {
    Withhold(Option<Withheld>),
    Rescan,
    Offer(Arc<Resource>, oneshot::Sender<Standing>),
    Withdraw(Source, Option<ResourceName>),
    Only(Source, BTreeSet<ResourceName>),
}

/// The result of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The resource is published.
    InForce,
    /// Another source owns the name and keeps it. The offer is used once that source's is removed.
    Taken {
        /// The owner.
        by: Source,
    },
}

/// A handle to the registry. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Registry {
    asks: mpsc::Sender<(Ask, oneshot::Sender<()>)>,
    inventory: watch::Receiver<Arc<Inventory>>,
}

impl Registry {
    /// Starts the registry. The state that an earlier agent saved is available when this returns; the
    /// first scan follows.
    pub fn start(root: Root, settings: RegistrySettings, tasks: &Tasks) -> Self {
        let task = Task::new(root, settings);
        let inventory = task.inventory();
        let (asks, asked) = mpsc::channel(ASKS);
        tasks.spawn("devices", task.run(asked, tasks.token()));
        Self { asks, inventory }
    }

    /// A watch of the inventory.
    pub fn inventory(&self) -> watch::Receiver<Arc<Inventory>> {
        self.inventory.clone()
    }

    /// Disables new allocations. Returns when every device is unhealthy in the inventory; the device
    /// plugins notify the kubelet within their debounce time.
    pub async fn withhold(&self, withheld: Withheld) -> Result<(), AskError> {
        self.ask(Ask::Withhold(Some(withheld))).await
    }

    /// Enables allocation again.
    pub async fn release(&self) -> Result<(), AskError> {
        self.ask(Ask::Withhold(None)).await
    }

    /// Reads all files and scans all devices now; returns when the result is published.
    pub async fn rescan(&self) -> Result<(), AskError> {
        self.ask(Ask::Rescan).await
    }

    /// Submits the complete offer of a live source under one name, which replaces its previous one.
    pub async fn offer(&self, offer: impl Into<Arc<Resource>>) -> Result<Standing, AskError> {
        let (reply, standing) = oneshot::channel();
        self.ask(Ask::Offer(offer.into(), reply)).await?;
        standing.await.map_err(|_| AskError::Stopped)
    }

    /// Removes the offers of a live source: the one under `resource`, or all of them.
    pub async fn withdraw(
        &self,
        source: Source,
        resource: Option<ResourceName>,
    ) -> Result<(), AskError> {
        self.ask(Ask::Withdraw(source, resource)).await
    }

    /// Removes the offers of a live source under names other than these.
    pub async fn only(
        &self,
        source: Source,
        resources: BTreeSet<ResourceName>,
    ) -> Result<(), AskError> {
        self.ask(Ask::Only(source, resources)).await
    }

    async fn ask(&self, ask: Ask) -> Result<(), AskError> {
        let (reply, done) = oneshot::channel();
        let sent = self.asks.send((ask, reply)).await;
        sent.map_err(|_| AskError::Stopped)?;
        done.await.map_err(|_| AskError::Stopped)
    }
}

fn declaration_dirs() -> Vec<AbsPath> {
    DECLARATION_DIRS
        .iter()
        .filter_map(|dir| AbsPath::new(*dir).ok())
        .collect()
}
