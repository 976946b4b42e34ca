//! The task that runs a drain: starts due requests, and merges results into the state.

mod requests;
mod results;

use std::{collections::BTreeSet, panic::resume_unwind, pin::pin, time::Duration};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::{
    DisruptionBudget, Drain, DrainError, DrainSummary, EvictionCallError, EvictionProgress,
    ForceState, PodApi, PodChange, PodWatchStream,
    eviction_queue::{DueRequest, EvictionQueue, NextWake},
    preflight::{FailedCall, NodePodsReview},
};
use machinist_base::backoff::Backoff;

/// Backoff of requests while the API server is unreachable.
const OUTAGE_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));

/// Minimum interval between surveys, and between watches that end immediately.
const MIN_REQUEST_SPACING: Duration = Duration::from_secs(1);

/// Debounce of progress updates: 250 pods that are evicted in one second cause ten updates, not
/// five hundred.
const PROGRESS_DEBOUNCE: Duration = Duration::from_millis(100);

/// Minimum update interval of the spent time, which the caller stores.
const SPENT_TIME_INTERVAL: Duration = Duration::from_secs(60);

/// The response to a request for one pod.
struct PodCallResult {
    request: DueRequest,
    asked: Instant,
    answer: Result<(), EvictionCallError>,
}

/// The result of a read from the API server.
enum ReadOutcome {
    Node(Instant, Box<Result<NodePodsReview, FailedCall>>),
    Budgets(String, Result<Vec<DisruptionBudget>, EvictionCallError>),
    Watching(Result<PodWatchStream, EvictionCallError>),
}

/// Time that counts for the force limit; it stops while the API server is unreachable.
struct SpentTime {
    before: Duration,
    since: Option<Instant>,
}

impl SpentTime {
    fn at(&self, now: Instant) -> Duration {
        let running = self.since.map(|since| now.saturating_duration_since(since));
        self.before + running.unwrap_or_default()
    }

    fn stop(&mut self, at: Instant) {
        self.before = self.at(at);
        self.since = None;
    }
}

/// State of an outage of the API server.
struct ApiOutage {
    since: Instant,
    told: Timestamp,
    failures: u32,
}

pub(super) struct DrainTask<'a, P> {
    drain: &'a Drain<P>,
    force: ForceState,
    book: EvictionQueue,
    began: Instant,
    gives_up: Option<Timestamp>,
    asks: JoinSet<PodCallResult>,
    looks: JoinSet<ReadOutcome>,
    changes: Option<PodWatchStream>,
    version: String,
    spent: SpentTime,
    away: Option<ApiOutage>,
    /// When the node is surveyed next; none if not needed or already running.
    look_at: Option<Instant>,
    looking: bool,
    looked: Option<Instant>,
    watched: Option<Instant>,
    /// Namespaces whose budgets are being read.
    reading: BTreeSet<String>,
    /// The last survey found no pod that must leave.
    clean: bool,
    begun: bool,
    told: Option<Instant>,
    changed: bool,
}

impl<'a, P: PodApi> DrainTask<'a, P> {
    pub(super) fn new(drain: &'a Drain<P>, force: ForceState, began: Instant) -> Self {
        let limit = drain.options.time_limit;
        let gives_up = limit.and_then(|limit| drain.clock.now().checked_add(limit).ok());
        Self {
            spent: SpentTime {
                before: force.spent,
                since: None,
            },
            drain,
            force,
            book: EvictionQueue::default(),
            began,
            gives_up,
            asks: JoinSet::new(),
            looks: JoinSet::new(),
            changes: None,
            version: String::new(),
            away: None,
            look_at: Some(began),
            looking: false,
            looked: None,
            watched: None,
            reading: BTreeSet::new(),
            clean: false,
            begun: false,
            told: None,
            changed: true,
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<DrainSummary, DrainError> {
        let ended = self.turns(stop).await;
        // Wait for running evictions, each of which has a timeout.
        while let Some(answered) = self.asks.join_next().await {
            if let Ok(answered) = answered {
                // The drain has already ended for another reason, so the result does not matter.
                let _ = self.record_response(answered);
            }
        }
        self.tell(Instant::now());
        ended.map(|()| DrainSummary {
            progress: self.drain.progress.borrow().clone(),
        })
    }

    async fn turns(&mut self, stop: CancellationToken) -> Result<(), DrainError> {
        loop {
            let now = Instant::now();
            if self.clean && self.book.tier().is_none() {
                return Ok(());
            }
            self.check_limits(now)?;
            self.start(now);
            if self.changed && self.told.is_none_or(|told| now >= told + PROGRESS_DEBOUNCE) {
                self.tell(now);
            }
            let mut sleep = pin!(sleep_until(self.wake(now)));
            tokio::select! {
                // Cancel-safe: the token stays cancelled.
                () = stop.cancelled() => return Err(DrainError::Stopped),
                // Cancel-safe: a set returns a result only if this branch is selected.
                Some(answered) = self.asks.join_next() => self.record_response(done(answered))?,
                // Cancel-safe, as above.
                Some(looked) = self.looks.join_next() => self.record_read(done(looked))?,
                // Cancel-safe: a stream keeps unread items.
                change = next(&mut self.changes) => self.change(change),
                // Cancel-safe: a missed change stays marked as unseen.
                () = ordered(&mut self.force.ordered) => self.changed = true,
                // Cancel-safe: the next round computes the time again.
                () = &mut sleep => self.changed = true,
            }
        }
    }

    fn is_ordered(&self) -> bool {
        self.force.ordered.borrow().is_some()
    }

    fn check_limits(&mut self, now: Instant) -> Result<(), DrainError> {
        let limit = self.drain.options.time_limit;
        match limit.filter(|limit| now >= self.began + *limit) {
            Some(limit) => Err(DrainError::TimedOut {
                limit,
                waits: self.progress(now).waits,
            }),
            None => Ok(()),
        }
    }

    /// Starts all due requests.
    fn start(&mut self, now: Instant) {
        let (spent, ordered) = (self.spent.at(now), self.is_ordered());
        let options = &self.drain.options;
        let wall = self.drain.clock.now();
        if self.begun && self.away.is_none() {
            self.book.stop_waiting(options, spent, ordered, wall);
            while self.asks.len() < options.at_once.max(1) {
                let Some(request) = self.book.next(options, spent, ordered, now) else {
                    break;
                };
                self.changed = true;
                self.send_request(request, now);
            }
            if self.book.tier().is_none() && !self.looking && self.look_at.is_none() {
                self.look_at = Some(now);
            }
        }
        if self.look_at.is_some_and(|at| at <= now) && !self.looking {
            self.start_survey(now);
        }
    }

    fn progress(&self, now: Instant) -> EvictionProgress {
        let wall = self.drain.clock.now();
        EvictionProgress {
            begun: self.begun,
            spent: self.spent.at(now),
            away_since: self.away.as_ref().map(|away| away.told),
            ordered: self.force.ordered.borrow().clone(),
            ..self.book.progress(wall, self.gives_up)
        }
    }

    fn tell(&mut self, now: Instant) {
        let progress = self.progress(now);
        self.drain.progress.send_replace(progress);
        (self.told, self.changed) = (Some(now), false);
    }

    /// When the next round is due if no other event occurs.
    fn wake(&mut self, now: Instant) -> Instant {
        let told = self.told.unwrap_or(now);
        let mut first = told
            + if self.changed {
                PROGRESS_DEBOUNCE
            } else {
                SPENT_TIME_INTERVAL
            };
        let mut earlier = |at: Option<Instant>| first = at.map_or(first, |at| at.min(first));
        let options = &self.drain.options;
        earlier(options.time_limit.map(|limit| self.began + limit));
        earlier(self.look_at);
        if self.away.is_none() && self.begun {
            let full = self.asks.len() >= options.at_once.max(1);
            let force = options.limits.next(self.spent.at(now));
            earlier(force.map(|left| now + left));
            for wake in self.book.wake(options, self.drain.clock.now()) {
                match wake {
                    // A response frees a slot, and is waited for anyway.
                    NextWake::At(_) if full => {}
                    NextWake::At(at) => earlier(Some(at)),
                    NextWake::In(left) => earlier(Some(now + left)),
                }
            }
        }
        // All due requests were started before, so the minimum delay prevents a busy loop over
        // those that could not.
        first.max(now + Duration::from_millis(1))
    }
}

/// Propagates a panic of a spawned task.
fn done<T>(joined: Result<T, JoinError>) -> T {
    match joined {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // Tasks are aborted only when the set is dropped, so this is not expected.
            Err(error) => resume_unwind(Box::new(error.to_string())),
        },
    }
}

/// The next change; waits forever if there is no watch.
async fn next(
    changes: &mut Option<PodWatchStream>,
) -> Option<Result<PodChange, EvictionCallError>> {
    match changes {
        Some(changes) => changes.next().await,
        None => std::future::pending().await,
    }
}

/// Waits for a change of the operator's force request; forever if the sender is dropped.
async fn ordered(word: &mut watch::Receiver<Option<String>>) {
    if word.changed().await.is_err() {
        std::future::pending().await
    }
}
