//! Executes a drain: evicts pods, watches them, and reports continuously what it waits for.
//!
//! One task owns the drain. It lists the node's pods once and watches them from there, so that a
//! deleted pod costs no request, and lists them again at the end, so that no pod is missed.
//! Requests run concurrently, at most [`Options::at_once`]; of the pods that one refusing budget
//! matches, only one is tried at a time.
//!
//! ```text
//! list ─▶ classify ─▶ evict ──accepted──▶ terminating ──watch event──▶ deleted ──▶ list again ──▶ done
//!                     ▲  └──refused──▶ backoff ┐   └──ended, past force limit──▶ left behind
//!                     └────────────────────────┘
//! ```
//!
//! While the API server is unreachable, only the time limit of the whole drain keeps running: no
//! requests are made, and the time does not count towards the limit after which pods are deleted.

mod error;
mod eviction_queue;
mod preflight;
mod progress;
mod task;

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;

use super::{
    DisruptionBudget, DrainRules, EvictionCallError, ForceLimits, Grace, Pod, PodId, WaitReason,
};
use machinist_base::clock::Clock;

pub use error::{DrainError, PodRefusal};
pub use preflight::{DrainPreview, PreviewedPod};
pub use progress::{DrainSummary, EvictionProgress};

/// Timeout of one call. An API server that detects a conflicting change retries an eviction for ten
/// seconds by itself; a server that has not responded after three times that will not respond.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Default number of concurrent evictions: enough that a node does not wait for round trips, few
/// enough that a server shared by five thousand nodes is not affected by one of them.
pub const DEFAULT_MAX_CONCURRENT_EVICTIONS: usize = 10;

/// The events of a watch.
pub type PodWatchStream = Pin<Box<dyn Stream<Item = Result<PodChange, EvictionCallError>> + Send>>;

/// The API requests that a drain makes.
pub trait PodApi: Send + Sync + 'static {
    /// All pods bound to the node, over all pages; an expired continue token restarts the list.
    fn list(&self, node: &str) -> impl Future<Output = Result<PodList, EvictionCallError>> + Send;

    /// Changes of these pods since a version. The stream may end at any time, and is then resumed
    /// from the last version it returned.
    fn watch(
        &self,
        node: &str,
        version: &str,
    ) -> impl Future<Output = Result<PodWatchStream, EvictionCallError>> + Send;

    /// Evicts exactly this pod (`policy/v1`, with a UID precondition).
    fn evict(
        &self,
        pod: &PodId,
        how: EvictionMethod,
    ) -> impl Future<Output = Result<(), EvictionCallError>> + Send;

    /// Deletes exactly this pod, bypassing disruption budgets.
    fn delete(
        &self,
        pod: &PodId,
        how: EvictionMethod,
    ) -> impl Future<Output = Result<(), EvictionCallError>> + Send;

    /// The disruption budgets of a namespace.
    fn budgets(
        &self,
        namespace: &str,
    ) -> impl Future<Output = Result<Vec<DisruptionBudget>, EvictionCallError>> + Send;

    /// Whether a DaemonSet of this name exists.
    fn daemon_set(
        &self,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<bool, EvictionCallError>> + Send;
}

/// A list of pods and its resource version.
#[derive(Clone, Debug, Default)]
pub struct PodList {
    /// The pods.
    pub pods: Vec<Pod>,
    /// The version from which a watch continues.
    pub version: String,
}

/// One change of the node's pods.
#[derive(Clone, Debug)]
pub enum PodChange {
    /// A pod exists or has changed, at this version.
    Applied(Box<Pod>, String),
    /// A pod was deleted, at this version.
    Deleted(PodId, String),
    /// A bookmark: no other change up to this version.
    Bookmark(String),
}

/// Options of an eviction or deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionMethod {
    /// The grace period.
    pub grace: Grace,
    /// Server-side dry run.
    pub dry_run: bool,
}

/// Whether disruption budgets are respected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BudgetMode {
    /// They are: pods are evicted.
    #[default]
    Evict,
    /// They are not: pods are deleted. Never used by updates.
    Delete,
}

/// Options of a drain.
#[derive(Clone, Debug)]
pub struct Options {
    /// How pods are classified.
    pub rules: DrainRules,
    /// The grace period. After [`Options::limits`] each pod's own one is used.
    pub grace: Grace,
    /// When blocked pods are deleted.
    pub limits: ForceLimits,
    /// Time limit of the drain; none means unlimited. Outages count.
    pub time_limit: Option<Duration>,
    /// How long the API server may be unreachable before the drain fails; none means unlimited.
    pub patience: Option<Duration>,
    /// Maximum number of concurrent evictions; at least one.
    pub at_once: usize,
    /// Whether disruption budgets are respected.
    pub way: BudgetMode,
}

impl Options {
    /// For unattended updates: all evictable pods are evicted, budgets are respected until
    /// `force_after`, and an outage of the API server is waited out. `own` is the UID of the
    /// agent's pod.
    pub fn unattended(own: Option<String>, force_after: Option<Duration>) -> Self {
        Self {
            rules: DrainRules::unattended(own),
            limits: ForceLimits::after(force_after),
            ..Self::default()
        }
    }
}

impl Default for Options {
    /// The behaviour of kubectl without flags, without a time limit.
    fn default() -> Self {
        Self {
            rules: DrainRules::default(),
            grace: Grace::Own,
            limits: ForceLimits::default(),
            time_limit: None,
            patience: None,
            at_once: DEFAULT_MAX_CONCURRENT_EVICTIONS,
            way: BudgetMode::Evict,
        }
    }
}

/// Time spent in earlier runs, and an operator's request to force the drain.
#[derive(Debug)]
pub struct ForceState {
    /// Time that earlier runs of this drain have spent: the last stored [`EvictionProgress::spent`].
    pub spent: Duration,
    /// The reason, once an operator forces this drain.
    pub ordered: watch::Receiver<Option<String>>,
}

impl ForceState {
    /// A new drain that cannot be forced.
    pub fn never() -> Self {
        Self {
            spent: Duration::ZERO,
            // The value never changes, because the sender is dropped.
            ordered: watch::channel(None).1,
        }
    }
}

/// The drain of one node.
///
/// ```text
/// let drain = Drain::new(pods, "worker-1", Options::unattended(own, force_after), clock);
/// let mut progress = drain.progress();          // blockers; store `spent` every minute
/// let drained = drain.run(Force { spent, ordered }, stop).await?;
/// ```
#[derive(Debug)]
pub struct Drain<P> {
    pods: Arc<P>,
    node: String,
    options: Options,
    clock: Clock,
    progress: watch::Sender<EvictionProgress>,
}

impl<P: PodApi> Drain<P> {
    /// Creates a drain without sending a request. The caller must have cordoned the node.
    pub fn new(pods: Arc<P>, node: impl Into<String>, options: Options, clock: Clock) -> Self {
        Self {
            pods,
            node: node.into(),
            options,
            clock,
            progress: watch::Sender::default(),
        }
    }

    /// The progress. It is updated within a second after a change, and at least once a minute; the
    /// last value stays when [`Drain::run`] has ended, whatever the result.
    pub fn progress(&self) -> watch::Receiver<EvictionProgress> {
        self.progress.subscribe()
    }

    /// Reports what would be done without doing it. With `ask` the server checks each eviction
    /// (`dryRun`); nothing is waited for.
    pub async fn rehearse(&self, ask: bool) -> Result<DrainPreview, DrainError> {
        preflight::rehearse(self, ask).await
    }

    /// All pods of the node, and whether a drain evicts them.
    pub async fn judge(&self) -> Result<Vec<(PodId, bool)>, DrainError> {
        preflight::judge(self).await
    }

    /// Drains the node until all pods that must leave are deleted, `stop` is cancelled, the time
    /// limit is over, or an error occurs that does not resolve by waiting.
    ///
    /// It waits for running requests, each of which has a timeout, so that no eviction happens
    /// after it returns. It may be called again after any error, with the time spent.
    pub async fn run(
        &self,
        force: ForceState,
        stop: CancellationToken,
    ) -> Result<DrainSummary, DrainError> {
        task::DrainTask::new(self, force, Instant::now())
            .run(stop)
            .await
    }
}

/// Adds a timeout to a call.
async fn bounded<T>(
    call: impl Future<Output = Result<T, EvictionCallError>>,
) -> Result<T, EvictionCallError> {
    let late = || {
        EvictionCallError::NoAnswer(
            format!("no response within {} s", CALL_TIMEOUT.as_secs()).into(),
        )
    };
    timeout(CALL_TIMEOUT, call)
        .await
        .unwrap_or_else(|_| Err(late()))
}
