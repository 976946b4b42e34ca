//! The one task that knows which devices there are: it reads declarations, looks below `/dev`,
//! remembers, and publishes what can be lent.
//!
//! It wakes for events: names in the directories that matter, the kernel's device events, and
//! requests. A slow rescan catches what all of them missed.

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

/// Where declarations lie; the first directory wins a resource that both declare.
pub const DECLARATION_DIRS: [&str; 3] = [
    "/etc/machinist/devices.d",
    "/run/machinist/devices.d",
    // Where the pod of a node has what its cluster says.
    "/run/machinist/cluster/devices.d",
];

/// Requests that are on their way; who comes later waits for room. Callers are the update driver, the admin socket,
/// and one task for each vendor.
const ASKS: usize = 8;

/// What the registry needs to know.
#[derive(Clone, Debug)]
pub struct RegistrySettings {
    /// What declarations may do beyond the defaults.
    pub allowances: Allowances,
    /// Whether the kernel's device events concern this root: not so for a moved one.
    pub uevents: bool,
    /// How often everything is looked at without an event; none: as often as is sensible.
    pub rescan: std::time::Duration,
    /// The state of the units that declarations go by, see [`Inventory::probed_units`].
    pub units: watch::Receiver<UnitStates>,
    /// Nothing is lent from the very start: the agent before had withheld it.
    pub withheld: Option<Withheld>,
}

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The agent is shutting down.
    #[error("the device registry has stopped")]
    Stopped,
}

impl AskError {
    /// Whether the same request may succeed later: the next agent answers it.
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

/// What became of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The kubelet is told of it.
    InForce,
    /// Another source has the name and keeps it. The offer takes its place when that one is gone.
    Taken {
        /// Who has it.
        by: Source,
    },
}

/// Everyone else's view of the registry. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Registry {
    asks: mpsc::Sender<(Ask, oneshot::Sender<()>)>,
    inventory: watch::Receiver<Arc<Inventory>>,
}

impl Registry {
    /// Starts the registry. What an earlier agent saved is there when this returns; the first
    /// look at the machine follows.
    pub fn start(root: Root, settings: RegistrySettings, tasks: &Tasks) -> Self {
        let task = Task::new(root, settings);
        let inventory = task.inventory();
        let (asks, asked) = mpsc::channel(ASKS);
        tasks.spawn("devices", task.run(asked, tasks.token()));
        Self { asks, inventory }
    }

    /// What can be lent, now and whenever it changes.
    pub fn inventory(&self) -> watch::Receiver<Arc<Inventory>> {
        self.inventory.clone()
    }

    /// Lends nothing to anybody new. Done when every device is listed as unhealthy here; the kubelet is
    /// told within its debounce.
    pub async fn withhold(&self, withheld: Withheld) -> Result<(), AskError> {
        self.ask(Ask::Withhold(Some(withheld))).await
    }

    /// Ends withholding.
    pub async fn release(&self) -> Result<(), AskError> {
        self.ask(Ask::Withhold(None)).await
    }

    /// Reads and looks at everything now; done when what was found is published.
    pub async fn rescan(&self) -> Result<(), AskError> {
        self.ask(Ask::Rescan).await
    }

    /// Takes what a live source offers under one name, whole; it replaces what that source offered there before.
    pub async fn offer(&self, offer: impl Into<Arc<Resource>>) -> Result<Standing, AskError> {
        let (reply, standing) = oneshot::channel();
        self.ask(Ask::Offer(offer.into(), reply)).await?;
        standing.await.map_err(|_| AskError::Stopped)
    }

    /// Forgets what a live source offers: under one name, or all of it.
    pub async fn withdraw(
        &self,
        source: Source,
        resource: Option<ResourceName>,
    ) -> Result<(), AskError> {
        self.ask(Ask::Withdraw(source, resource)).await
    }

    /// Forgets what a live source offers under other names than these.
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
