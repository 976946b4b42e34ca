//! Carries a drain out: asks, watches, waits, and says all the time what for.
//!
//! One task owns the drain. It lists the node's pods once and watches them from there, so that a pod
//! that is gone costs no request, and lists them again at the end, so that nobody is missed. Requests
//! run beside it, at most [`Options::at_once`]; of the pods that one refusing budget counts only one is
//! asked for at a time.
//!
//! ```text
//! list ── judge ──▶ evict ──accepted──▶ leaving ──seen by the watch──▶ gone ──▶ list again ──▶ done
//!                    ▲  └──refused──▶ pause ┐        └──ended, past force──▶ left behind
//!                    └──────────────────────┘
//! ```
//!
//! An API server that is away stops everything but the limit of the whole drain: nothing is asked, and
//! the time does not count for the limit past which pods are deleted.

mod book;
mod error;
mod progress;
mod survey;
mod task;

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;

use super::{Budget, CallError, Grace, Limits, Pod, PodId, Rules, What};
use crate::clock::Clock;

pub use error::{DrainError, Refusal};
pub use progress::{Drained, Progress};
pub use survey::{Rehearsal, Rehearsed};

/// How long one call may last. An API server that finds an object changed under it repeats an eviction
/// for ten seconds by itself; what has not answered after three times that will not.
const CALL: Duration = Duration::from_secs(30);

/// Evictions under way at a time, unless said otherwise: enough that no node waits for round trips, few
/// enough that a server shared by five thousand nodes does not notice one of them.
pub const AT_ONCE: usize = 10;

/// What a watch brings.
pub type Changes = Pin<Box<dyn Stream<Item = Result<Change, CallError>> + Send>>;

/// What a drain needs of the API server.
pub trait Pods: Send + Sync + 'static {
    /// All pods bound to the node, over as many pages as there are; one that expires begins the list
    /// anew.
    fn list(&self, node: &str) -> impl Future<Output = Result<Listed, CallError>> + Send;

    /// What changes among them from a version on. It may end at any time, and is then begun again from
    /// the last version it brought.
    fn watch(
        &self,
        node: &str,
        version: &str,
    ) -> impl Future<Output = Result<Changes, CallError>> + Send;

    /// Evicts this pod and not its namesake (`policy/v1`, precondition by UID).
    fn evict(&self, pod: &PodId, how: How) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Deletes this pod and not its namesake; no budget is asked.
    fn delete(&self, pod: &PodId, how: How) -> impl Future<Output = Result<(), CallError>> + Send;

    /// The budgets of a namespace.
    fn budgets(
        &self,
        namespace: &str,
    ) -> impl Future<Output = Result<Vec<Budget>, CallError>> + Send;

    /// Whether there is a DaemonSet of that name.
    fn daemon_set(
        &self,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<bool, CallError>> + Send;
}

/// A list of pods, and the version that it shows.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// The pods.
    pub pods: Vec<Pod>,
    /// Where a watch goes on from.
    pub version: String,
}

/// One change among the node's pods.
#[derive(Clone, Debug)]
pub enum Change {
    /// A pod is there or looks different, at this version.
    Is(Box<Pod>, String),
    /// A pod is no longer there, at this version.
    Gone(PodId, String),
    /// Nothing happened up to this version.
    Upto(String),
}

/// How a pod is to be taken away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// How long it may take to end.
    pub grace: Grace,
    /// The server is to say what it would do, and do nothing.
    pub dry_run: bool,
}

/// Whether budgets are asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// They are: pods are evicted.
    #[default]
    Evict,
    /// They are not: pods are deleted. Never chosen by an update.
    Delete,
}

/// How a node is drained.
#[derive(Clone, Debug)]
pub struct Options {
    /// How pods are judged.
    pub rules: Rules,
    /// How long pods may take to end. Past [`Options::limits`] it is always their own time.
    pub grace: Grace,
    /// When pods are deleted past what keeps them.
    pub limits: Limits,
    /// When the drain gives up; none never does. An outage counts.
    pub time_limit: Option<Duration>,
    /// How long the API server may be away before the drain gives up; none waits for ever.
    pub patience: Option<Duration>,
    /// Evictions under way at a time; at least one.
    pub at_once: usize,
    /// Whether budgets are asked.
    pub way: Way,
}

impl Options {
    /// For updates that nobody watches: everything that may go goes, budgets are waited for until
    /// `force_after`, and an API server that is away for as long as it takes. `own` is the UID of the
    /// agent's pod.
    pub fn unattended(own: Option<String>, force_after: Option<Duration>) -> Self {
        Self {
            rules: Rules::unattended(own),
            limits: Limits::after(force_after),
            ..Self::default()
        }
    }
}

impl Default for Options {
    /// What kubectl does without flags, and for as long as it takes.
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            grace: Grace::Own,
            limits: Limits::default(),
            time_limit: None,
            patience: None,
            at_once: AT_ONCE,
            way: Way::Evict,
        }
    }
}

/// What the time before this run counts for, and a person's word.
#[derive(Debug)]
pub struct Force {
    /// Seconds that earlier runs of this drain have spent: the last [`Progress::spent`] that was kept.
    pub spent: Duration,
    /// Becomes the reason once somebody wants this one drain forced.
    pub ordered: watch::Receiver<Option<String>>,
}

impl Force {
    /// A drain that begins now and that nobody can force.
    pub fn never() -> Self {
        Self {
            spent: Duration::ZERO,
            // Without a sender the value stays what it is.
            ordered: watch::channel(None).1,
        }
    }
}

/// The drain of one node.
///
/// ```text
/// let drain = Drain::new(pods, "worker-1", Options::unattended(own, force_after), clock);
/// let mut progress = drain.progress();          // what is waited for; `spent` to be kept each minute
/// let drained = drain.run(Force { spent, ordered }, stop).await?;
/// ```
#[derive(Debug)]
pub struct Drain<P> {
    pods: Arc<P>,
    node: String,
    options: Options,
    clock: Clock,
    progress: watch::Sender<Progress>,
}

impl<P: Pods> Drain<P> {
    /// Nothing is asked yet. The node must be unschedulable already: who cordons it is not known here.
    pub fn new(pods: Arc<P>, node: impl Into<String>, options: Options, clock: Clock) -> Self {
        Self {
            pods,
            node: node.into(),
            options,
            clock,
            progress: watch::Sender::default(),
        }
    }

    /// How far it is. Something new is there within a second, and once a minute in any case; the last
    /// value stays when [`Drain::run`] has ended, however it ended.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Says what would be done, and does nothing. With `ask` the server is asked about each pod
    /// (`dryRun`); it is not waited for anything.
    pub async fn rehearse(&self, ask: bool) -> Result<Rehearsal, DrainError> {
        survey::rehearse(self, ask).await
    }

    /// Every pod of the node, and whether a drain takes it away.
    pub async fn judge(&self) -> Result<Vec<(PodId, bool)>, DrainError> {
        survey::judge(self).await
    }

    /// Drains the node: until every pod that must go is gone, `stop` is cancelled, the time limit is
    /// over, or something is wrong that waiting does not change.
    ///
    /// Requests that are under way when it ends are waited for (each has an end of its own): when this
    /// returns, no eviction comes any more. May be called again after any error, with the time spent.
    pub async fn run(&self, force: Force, stop: CancellationToken) -> Result<Drained, DrainError> {
        task::Task::new(self, force, Instant::now()).run(stop).await
    }
}

/// A call with an end.
async fn bounded<T>(call: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
    let late = || CallError::NoAnswer(format!("no answer within {} s", CALL.as_secs()).into());
    timeout(CALL, call).await.unwrap_or_else(|_| Err(late()))
}
