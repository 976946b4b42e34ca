//! Keeps on the Node what is to be said there: one task writes, the latest wish wins.
//!
//! What is there already is not written; what vanishes, because the Node was registered anew or
//! somebody took it away, comes back by itself, since wish and Node are compared whenever either
//! changes. Only the conditions are confirmed with time.

use std::time::Duration;

use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Change, OwnNode, Sight,
    notice::{Condition, Differs, Notice, conditions, differs, leftover_conditions, metadata},
    patches,
    refused::RefusedTaints,
    taints,
};
use crate::{
    backoff::{Backoff, jitter},
    clock::Clock,
    cluster::{ClusterError, events::Events},
    crd::NodeView,
    telemetry::chain,
};

/// How often is written, at most and at least.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The conditions are confirmed after this time, and up to a fifth more: twelve writes an hour at
    /// most, of the fifteen that an idle node may make.
    pub heartbeat: Duration,
    /// Between two conditions: what changes faster is seen in its last form.
    pub gap: Duration,
    /// The same where only the words are others: numbers move all the time.
    pub words: Duration,
    /// After a write that did not succeed.
    pub retry: Backoff,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(300),
            gap: Duration::from_secs(1),
            words: Duration::from_secs(30),
            retry: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
        }
    }
}

/// Writes what `notices` says last, until `stop`; nothing before it says something. `clock` is what
/// conditions are dated by; `events` reports taints that the API server refuses.
pub async fn keep(
    node: OwnNode,
    mut notices: watch::Receiver<Option<Notice>>,
    events: Events,
    clock: Clock,
    pace: Pace,
    stop: CancellationToken,
) {
    let mut sights = node.sights();
    let mut keeper = Keeper::new(events, clock, pace);
    loop {
        let notice = notices.borrow_and_update().clone();
        let sight = sights.borrow_and_update().node.clone();
        let due = match (&sight, &notice) {
            (Some(view), Some(notice)) => keeper.due(view, notice),
            _ => Due::Nothing,
        };
        let until = match due {
            Due::Now(change, taint) => {
                let sent = tokio::select! {
                    () = stop.cancelled() => return,
                    // Safe to drop: what is sent is sent again when it is missing.
                    sent = node.change(&change) => sent.map(drop),
                };
                match keeper.sent(&change, taint, sent) {
                    Some(until) => until,
                    None => continue,
                }
            }
            Due::At(when) => Until::At(when),
            Due::Nothing => Until::Change,
        };
        tokio::select! {
            () = stop.cancelled() => return,
            // Safe to drop, all of them: whoever changed is still marked unseen.
            () = seen(&mut sights, until.wakes()) => {}
            () = changed(&mut notices), if until.wakes() => {}
            () = until.passed() => {}
        }
    }
}

/// Never where nobody speaks any more.
async fn changed<T>(of: &mut watch::Receiver<T>) {
    if of.changed().await.is_err() {
        std::future::pending().await
    }
}

/// The Node is another; or, after a failure, the server was away and answers again.
async fn seen(sights: &mut watch::Receiver<Sight>, any: bool) {
    if any {
        return changed(sights).await;
    }
    let away = sights.wait_for(|sight| sight.away.is_some()).await.is_ok();
    let back = away && sights.wait_for(|sight| sight.away.is_none()).await.is_ok();
    if !back {
        std::future::pending().await
    }
}

/// What is taken away later than this after it was written is no quarrel.
const QUARREL: Duration = Duration::from_secs(600);

enum Until {
    Change,
    At(Instant),
    After(Duration),
}

impl Until {
    /// Whether a change ends the wait; after a failure only time does, or the server's return.
    const fn wakes(&self) -> bool {
        !matches!(self, Self::After(_))
    }

    async fn passed(&self) {
        match self {
            Self::Change => std::future::pending().await,
            Self::At(when) => sleep_until(*when).await,
            Self::After(wait) => sleep(*wait).await,
        }
    }
}

enum Due {
    /// A change, and the declared taint that it adds or removes.
    Now(Change, Option<String>),
    At(Instant),
    Nothing,
}

/// What the writer remembers.
struct Keeper {
    clock: Clock,
    pace: Pace,
    /// The Node that the rest is about.
    uid: String,
    /// Leftovers of an earlier version were looked for on this Node.
    swept: bool,
    /// Whom the conditions named when they were written last; none where that did not succeed.
    named: Option<Vec<String>>,
    /// When the conditions were written last.
    written: Option<Instant>,
    /// When they are to be confirmed.
    confirm: Option<Instant>,
    failures: u32,
    /// What was written last beside the condition, when, and how often in a row.
    last: Option<(Value, Instant, u32)>,
    refused: RefusedTaints,
}

impl Keeper {
    const fn new(events: Events, clock: Clock, pace: Pace) -> Self {
        Self {
            clock,
            pace,
            uid: String::new(),
            swept: false,
            named: None,
            written: None,
            confirm: None,
            failures: 0,
            last: None,
            refused: RefusedTaints::new(events),
        }
    }

    /// The next write, or when to look again.
    fn due(&mut self, view: &NodeView, notice: &Notice) -> Due {
        if view.uid != self.uid {
            self.uid.clone_from(&view.uid);
            (self.swept, self.written, self.confirm) = (false, None, None);
            self.named = None;
            self.refused.clear();
        }
        let change = metadata(view, notice, !self.swept)
            .or_else(|| patches::stand_back(view, notice.stand_back))
            .or_else(|| patches::not_ready_taint(view, notice.not_ready_taint?));
        if let Some(change) = change {
            return Due::Now(change, None);
        }
        let waits = |taint: &str| self.refused.waits(taint);
        if let Some((taint, change)) = taints::change(view, &notice.taints, waits) {
            return Due::Now(change, Some(taint));
        }
        if let Some(change) = leftover_conditions(view, notice) {
            return Due::Now(change, None);
        }
        self.swept = true;
        let due = match notice.conditions.is_empty() {
            true => Due::Nothing,
            false => self.conditions(view, &notice.conditions),
        };
        match (due, self.refused.next_try()) {
            (Due::At(when), Some(next)) => Due::At(when.min(next)),
            (Due::Nothing, Some(next)) => Due::At(next),
            (due, _) => due,
        }
    }

    fn conditions(&mut self, view: &NodeView, wanted: &[Condition]) -> Due {
        let now = Instant::now();
        let names: Vec<_> = wanted.iter().flat_map(|one| one.names.clone()).collect();
        let differs = match differs(view, wanted) {
            Differs::Words if self.named.as_ref() != Some(&names) => Differs::Fact,
            differs => differs,
        };
        let when = match (differs, self.written, self.confirm) {
            (Differs::Not, _, Some(confirm)) => confirm,
            (Differs::Not | Differs::Words, Some(written), _) => written + self.pace.words,
            (Differs::Fact, Some(written), _) => written + self.pace.gap,
            _ => now,
        };
        match when > now {
            true => Due::At(when),
            false => {
                self.named = Some(names);
                Due::Now(conditions(view, wanted, self.clock.now()), None)
            }
        }
    }

    /// How long to wait after a write; none where it may go on at once.
    fn sent(
        &mut self,
        change: &Change,
        taint: Option<String>,
        sent: Result<(), ClusterError>,
    ) -> Option<Until> {
        let error = match sent {
            Ok(()) => {
                self.failures = 0;
                if let Some(taint) = taint {
                    self.refused.written(&taint);
                }
                if matches!(change, Change::Conditions(_)) {
                    let now = Instant::now();
                    let later = self.pace.heartbeat.mul_f64(jitter() / 5.0);
                    self.written = Some(now);
                    self.confirm = Some(now + self.pace.heartbeat + later);
                }
                return self.repeated(change).map(Until::After);
            }
            Err(error) => error,
        };
        if let Some(taint) = taint.filter(|_| error.is_forbidden()) {
            self.refused.refused(&taint, &error);
            return None;
        }
        self.named = None;
        let wait = self.pace.retry.wait(self.failures, jitter());
        // Somebody wrote in between, as happens all day: their version is on its way to us. Twice in a
        // row it may be a policy that says no with the same code.
        let in_between = error.is_conflict() && self.failures == 0;
        match self.failures == u32::from(error.is_conflict()) {
            true => tracing::warn!(reason = %error.reason(), "{}", chain(&error)),
            false => tracing::debug!("{}", chain(&error)),
        }
        self.failures = self.failures.saturating_add(1);
        if in_between {
            return Some(Until::At(Instant::now() + wait));
        }
        let wait = wait.max(error.retry_after().unwrap_or_default());
        Some(Until::After(wait))
    }

    /// How long to wait after a write that says the same as the one before: somebody takes away what we
    /// write, and neither is to do so a hundred times a second.
    fn repeated(&mut self, change: &Change) -> Option<Duration> {
        let said = match change {
            Change::Conditions(_) => return None,
            Change::Fields(fields) => fields.clone(),
            Change::Operations(operations) => {
                let operations = operations.as_array().into_iter().flatten();
                operations
                    .filter(|it| it["op"] != "test")
                    .cloned()
                    .collect()
            }
        };
        let now = Instant::now();
        let times = match self.last.take() {
            Some((last, at, times)) if last == said && at + QUARREL > now => times + 1,
            _ => 0,
        };
        self.last = Some((said, now, times));
        (times > 0).then(|| self.pace.retry.wait(times - 1, jitter()))
    }
}
