//! What the driver needs of the cluster that this machine is a node of, and nothing more.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    time::Duration,
};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use super::journal::Lending;
use crate::reason::Reason;

/// Why the cluster, or somebody on this node, did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct NodeError {
    /// What was to be done, such as `cordon node a`.
    pub what: String,
    /// The Node's name.
    pub node: String,
    /// The stable code.
    pub reason: Reason,
    /// Whether the same may succeed later.
    pub again: bool,
    /// Nobody answered: whatever was asked may have been done all the same.
    pub unanswered: bool,
    /// What was answered, if anything was.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

/// What is asked of a node, on its way.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, NodeError>> + Send + 'a>>;

/// How many devices of which resource each container has, by `namespace/pod/container`.
pub type Holders = BTreeMap<String, BTreeMap<String, usize>>;

/// What a drain is given.
#[derive(Debug)]
pub struct DrainOrder {
    /// The config that it is for, by name.
    pub to: String,
    /// How long the pods have been asked to go already, in other lives of this process.
    pub spent: Duration,
    /// Where it says how far it is.
    pub progress: watch::Sender<DrainProgress>,
    /// Ends it where it is.
    pub stop: CancellationToken,
}

/// How far a drain is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainProgress {
    /// How long the pods have been asked to go; an outage of the API server does not count.
    pub spent: Duration,
    /// Who does not go, and why.
    pub blockers: Vec<Blocker>,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emptied {
    /// Every pod has left that must.
    Wholly,
    /// It was ended before.
    Stopped,
}

/// Something that an update waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Its kind, such as `Pod`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Why it blocks.
    pub reason: Reason,
    /// One sentence: the budget with its numbers, the finalizers, when the end is expected.
    pub message: String,
    /// Since when.
    pub since: Timestamp,
}

impl Blocker {
    /// Where it is found: `namespace/name`, and `Kind name` for what has no namespace.
    pub fn place(&self) -> String {
        match self.namespace.as_str() {
            "" => format!("{} {}", self.kind, self.name),
            namespace => format!("{namespace}/{}", self.name),
        }
    }
}

/// A step that nobody can take back, and that therefore wants a fresh look at the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The first change of the disk. With `drained`, nobody may be there whom the drain takes away.
    Stage {
        /// The plan drains.
        drained: bool,
    },
    /// The reboot.
    Reboot {
        /// The plan drained.
        drained: bool,
    },
}

/// What a fresh look at the cluster says of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// Nothing has changed that the step depends on.
    Go,
    /// The node is schedulable again, is another one of the same name, or has new pods.
    Refilled,
}

/// This machine as a node of a cluster.
///
/// Everything may be repeated: what is done already is not done again.
pub trait Node: Send + Sync + 'static {
    /// Keeps new pods away for an update to the config of this name. A cordon that stood before stays its
    /// owner's.
    fn cordon(&self, to: String) -> Asked<'_, ()>;

    /// Lends devices, or ceases to; done when whoever lends them has heard of it.
    fn lend(&self, lending: Lending) -> Asked<'_, ()>;

    /// Who has which device; none where nobody tells. What lends nothing has no holders.
    fn holders(&self) -> Asked<'_, Option<Holders>> {
        Box::pin(async { Ok(Some(Holders::new())) })
    }

    /// Who still has a device in hand, or is being given one, of those whom the drain takes away. One look.
    fn held(&self) -> Asked<'_, Vec<Blocker>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Units that use devices and want to be stopped before the machine is changed or goes down.
    fn stop_units(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    /// Has the pods leave, and waits as long as it takes, also for an API server that is away; it errs only
    /// where waiting helps nobody.
    fn drain(&self, order: DrainOrder) -> Asked<'_, Emptied>;

    /// Ends a drain of which nothing came, at once and whatever gates are closed: whoever evicts pods must cease. The
    /// cordon is lifted, or left to [`Node::uncordon`].
    fn take_back(&self, _on: String) -> Asked<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Looks afresh whether a step may be taken, towards the config of this name or, without one, back.
    /// That the node is to be on another config by now, which will be heard of soon, is an error of the
    /// kind that passes.
    fn permit(&self, step: Step, to: Option<String>) -> Asked<'_, Permit>;

    /// Waits until the machine is fit for pods, then lets them come, unless somebody else keeps them away.
    fn uncordon(&self, on: String) -> Asked<'_, ()>;

    /// Before when the cluster wants no update to begin here; none where it does not care.
    fn earliest(&self) -> Asked<'_, Option<Timestamp>> {
        Box::pin(async { Ok(None) })
    }

    /// Whether the cluster's own state lives on this node: its absence may be this machine's fault.
    fn is_control_plane(&self) -> bool;
}

impl fmt::Debug for dyn Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Node")
    }
}
