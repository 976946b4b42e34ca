//! The one task of a drain: what is due goes out, what comes back is written into the book.

mod incoming;
mod outgoing;

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
    Budget, CallError, Change, Changes, Drain, DrainError, Drained, Force, Pods, Progress,
    book::{Book, Request, Wake},
    survey::{Failed, Survey},
};
use crate::backoff::Backoff;

/// While the API server is away, who asks whether it is back.
const AWAY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));

/// Looks and watches that end at once are not begun more often.
const SPACED: Duration = Duration::from_secs(1);

/// What changed is told together with what changes at the same moment: 250 pods that are evicted in one
/// second make ten pages, not five hundred.
const TELL: Duration = Duration::from_millis(100);

/// Time spent is told so often even when nothing else happens: the caller keeps it.
const MINUTE: Duration = Duration::from_secs(60);

/// The answer to a request for one pod.
struct Answered {
    request: Request,
    asked: Instant,
    answer: Result<(), CallError>,
}

/// What a look at the API server brought.
enum Looked {
    Node(Instant, Box<Result<Survey, Failed>>),
    Budgets(String, Result<Vec<Budget>, CallError>),
    Watching(Result<Changes, CallError>),
}

/// Time that counts: it stands still while the API server is away.
struct Spent {
    before: Duration,
    since: Option<Instant>,
}

impl Spent {
    fn at(&self, now: Instant) -> Duration {
        let running = self.since.map(|since| now.saturating_duration_since(since));
        self.before + running.unwrap_or_default()
    }

    fn stop(&mut self, at: Instant) {
        self.before = self.at(at);
        self.since = None;
    }
}

/// The API server does not answer.
struct Away {
    since: Instant,
    told: Timestamp,
    failures: u32,
}

pub(super) struct Task<'a, P> {
    drain: &'a Drain<P>,
    force: Force,
    book: Book,
    began: Instant,
    gives_up: Option<Timestamp>,
    asks: JoinSet<Answered>,
    looks: JoinSet<Looked>,
    changes: Option<Changes>,
    version: String,
    spent: Spent,
    away: Option<Away>,
    /// When the node is looked at as a whole again; none while that is not needed or under way.
    look_at: Option<Instant>,
    looking: bool,
    looked: Option<Instant>,
    watched: Option<Instant>,
    /// Namespaces whose budgets are being read.
    reading: BTreeSet<String>,
    /// The last look found nobody who must go.
    clean: bool,
    begun: bool,
    told: Option<Instant>,
    changed: bool,
}

impl<'a, P: Pods> Task<'a, P> {
    pub(super) fn new(drain: &'a Drain<P>, force: Force, began: Instant) -> Self {
        let limit = drain.options.time_limit;
        let gives_up = limit.and_then(|limit| drain.clock.now().checked_add(limit).ok());
        Self {
            spent: Spent {
                before: force.spent,
                since: None,
            },
            drain,
            force,
            book: Book::default(),
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

    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<Drained, DrainError> {
        let ended = self.turns(stop).await;
        // No eviction is left under way when this returns; each ends by itself within its limit.
        while let Some(answered) = self.asks.join_next().await {
            if let Ok(answered) = answered {
                // How it went is known from the pod; the drain has ended for another reason.
                let _ = self.answered(answered);
            }
        }
        self.tell(Instant::now());
        ended.map(|()| Drained {
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
            if self.changed && self.told.is_none_or(|told| now >= told + TELL) {
                self.tell(now);
            }
            let mut sleep = pin!(sleep_until(self.wake(now)));
            tokio::select! {
                // Safe to drop: the token stays cancelled.
                () = stop.cancelled() => return Err(DrainError::Stopped),
                // Safe to drop: a set gives an answer back once, when this arm is the one taken.
                Some(answered) = self.asks.join_next() => self.answered(done(answered))?,
                // Safe to drop: as above.
                Some(looked) = self.looks.join_next() => self.looked(done(looked))?,
                // Safe to drop: a stream keeps what was not taken.
                change = next(&mut self.changes) => self.change(change),
                // Safe to drop: a word that is missed here is still marked unseen.
                () = ordered(&mut self.force.ordered) => self.changed = true,
                // Safe to drop: the next turn computes the time anew.
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

    /// Starts whatever is due.
    fn start(&mut self, now: Instant) {
        let (spent, ordered) = (self.spent.at(now), self.is_ordered());
        let options = &self.drain.options;
        let wall = self.drain.clock.now();
        if self.begun && self.away.is_none() {
            self.book.let_go(options, spent, ordered, wall);
            while self.asks.len() < options.at_once.max(1) {
                let Some(request) = self.book.next(options, spent, ordered, now) else {
                    break;
                };
                self.changed = true;
                self.ask(request, now);
            }
            if self.book.tier().is_none() && !self.looking && self.look_at.is_none() {
                self.look_at = Some(now);
            }
        }
        if self.look_at.is_some_and(|at| at <= now) && !self.looking {
            self.look(now);
        }
    }

    fn progress(&self, now: Instant) -> Progress {
        let wall = self.drain.clock.now();
        Progress {
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

    /// When there is something to do even if nothing happens.
    fn wake(&mut self, now: Instant) -> Instant {
        let told = self.told.unwrap_or(now);
        let mut first = told + if self.changed { TELL } else { MINUTE };
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
                    // An answer makes room, and is waited for anyway.
                    Wake::At(_) if full => {}
                    Wake::At(at) => earlier(Some(at)),
                    Wake::In(left) => earlier(Some(now + left)),
                }
            }
        }
        // What is due was started before; what cannot be is not asked about without end.
        first.max(now + Duration::from_millis(1))
    }
}

/// A task that panicked takes the drain with it.
fn done<T>(joined: Result<T, JoinError>) -> T {
    match joined {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // Nobody aborts them but the drop of the set that is being read.
            Err(error) => resume_unwind(Box::new(error.to_string())),
        },
    }
}

/// The next change; never, where nothing is watched.
async fn next(changes: &mut Option<Changes>) -> Option<Result<Change, CallError>> {
    match changes {
        Some(changes) => changes.next().await,
        None => std::future::pending().await,
    }
}

/// A person's word changed; never again, where nobody can give one.
async fn ordered(word: &mut watch::Receiver<Option<String>>) {
    if word.changed().await.is_err() {
        std::future::pending().await
    }
}
