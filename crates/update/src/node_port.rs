//! Defines the interface between the update and the cluster of which this machine is a node.

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

pub use super::journal::DeviceUsers;
use machinist_base::reason::Reason;

/// Describes why the cluster, or a component on this node, did not carry out a request.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct NodeError {
    /// The request, such as `cordon node a`.
    pub what: String,
    /// The Node's name.
    pub node: String,
    /// The stable reason code.
    pub reason: Reason,
    /// Whether a retry may succeed.
    pub retryable: bool,
    /// There was no answer, so the request may have been carried out.
    pub unanswered: bool,
    /// The underlying error, if there was an answer.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

/// A pending request to the node.
pub type NodeFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, NodeError>> + Send + 'a>>;

/// Number of devices per resource of each container, by `namespace/pod/container`.
pub type DeviceHolderCounts = BTreeMap<String, BTreeMap<String, usize>>;

/// The parameters of a drain.
#[derive(Debug)]
pub struct DrainOrder {
    /// Name of the config of the update.
    pub to: String,
    /// Time already spent on draining by previous runs of this process.
    pub spent: Duration,
    /// Channel for its progress.
    pub progress: watch::Sender<DrainProgress>,
    /// Stops the drain at its current state.
    pub stop: CancellationToken,
}

/// Progress of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainProgress {
    /// Time spent on draining; an outage of the API server does not count.
    pub spent: Duration,
    /// The pods that block the drain, with the reasons.
    pub blockers: Vec<Blocker>,
}

/// Result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainResult {
    /// All pods to be evicted are gone.
    Complete,
    /// It was stopped before it was complete.
    Stopped,
}

/// An object for which an update waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Its kind, for example `Pod`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The reason code.
    pub reason: Reason,
    /// One sentence with details: the disruption budget with its numbers, the finalizers, or when the end is
    /// expected.
    pub message: String,
    /// Since when it has blocked.
    pub since: Timestamp,
}

impl Blocker {
    /// Returns its full name: `namespace/name`, or `Kind name` without a namespace.
    pub fn full_name(&self) -> String {
        match self.namespace.as_str() {
            "" => format!("{} {}", self.kind, self.name),
            namespace => format!("{namespace}/{}", self.name),
        }
    }
}

/// A step that cannot be rolled back and therefore needs a fresh check of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrreversibleStep {
    /// The first change of the disk. With `drained`, no pod that the drain evicts may be on the node.
    Stage {
        /// The plan includes a drain.
        drained: bool,
    },
    /// The reboot.
    Reboot {
        /// The plan included a drain.
        drained: bool,
    },
}

/// Result of a fresh check of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepDecision {
    /// No precondition of the step has changed.
    Proceed,
    /// The node is schedulable again, was replaced by another node of the same name, or has new pods.
    DrainAgain,
}

/// This machine as a node of a cluster.
///
/// All operations are idempotent.
pub trait NodePort: Send + Sync + 'static {
    /// Cordons the node for an update to the config of this name. A cordon that already existed still belongs to
    /// its owner.
    fn cordon(&self, to: String) -> NodeFuture<'_, ()>;

    /// Enables or disables device allocation. Completes once every device plugin has applied it.
    fn set_device_users(&self, users: DeviceUsers) -> NodeFuture<'_, ()>;

    /// Returns which container holds which devices; `None` if that is unknown. A node without devices has no
    /// holders.
    fn holders(&self) -> NodeFuture<'_, Option<DeviceHolderCounts>> {
        Box::pin(async { Ok(Some(DeviceHolderCounts::new())) })
    }

    /// Returns the pods to be evicted that hold a device or are being allocated one. Checks once.
    fn evicted_holders(&self) -> NodeFuture<'_, Vec<Blocker>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Returns the units that use devices and must be stopped before the machine is changed or shut down.
    fn stop_units(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    /// Drains the node and waits as long as necessary, also for an unreachable API server. Returns an error only if
    /// waiting cannot help.
    fn drain(&self, order: DrainOrder) -> NodeFuture<'_, DrainResult>;

    /// Cancels a drain without an update, immediately and even if gates are closed: evictions stop. It uncordons
    /// the node, or leaves that to [`NodePort::uncordon`].
    fn cancel_drain(&self, _on: String) -> NodeFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Checks the cluster again before a step: towards the config `to`, or back if it is `None`. If the node's
    /// desired config has changed and the agent has not received it yet, this returns a retryable error.
    fn check_step(
        &self,
        step: IrreversibleStep,
        to: Option<String>,
    ) -> NodeFuture<'_, StepDecision>;

    /// Waits until the machine is fit for pods, then uncordons the node, unless another owner has cordoned it.
    fn uncordon(&self, on: String) -> NodeFuture<'_, ()>;

    /// Returns the earliest time at which the cluster allows an update to begin; `None` if it sets no limit.
    fn earliest_start(&self) -> NodeFuture<'_, Option<Timestamp>> {
        Box::pin(async { Ok(None) })
    }

    /// Returns why an update must not cordon the node yet; `None` if it may. Checks once.
    fn cordon_delay(&self) -> Option<Blocker> {
        None
    }

    /// Waits until that reason is gone, or for as long as an update may be delayed by it.
    fn wait_before_cordon(&self) -> NodeFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Returns whether this is a control-plane node, which holds the cluster's own state: if the API server is
    /// unreachable, this machine may be the cause.
    fn is_control_plane(&self) -> bool;
}

impl fmt::Debug for dyn NodePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Node")
    }
}
