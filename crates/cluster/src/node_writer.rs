//! Maintains machinist's fields on the Node: one task writes them, and the latest notice wins.
//!
//! Fields that already have the desired value are not written. Fields that disappear, because the Node was
//! recreated or another client removed them, are restored: the desired and the observed state are compared whenever
//! either changes. Only conditions have a periodic heartbeat.

mod rejected_taints;

use std::time::Duration;

use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    ClusterError,
    events::Events,
    node::{
        NodePatch, NodeSnapshot, OwnNode,
        desired_status::{
            ConditionDiff, DesiredCondition, DesiredNodeStatus, conditions, differs,
            leftover_conditions, metadata,
        },
        patches, taints,
    },
};
use machinist_base::{
    backoff::{Backoff, jitter},
    clock::Clock,
    error_chain::chain,
};
use machinist_kube_api::NodeView;
use rejected_taints::RefusedTaints;

/// Intervals between writes.
#[derive(Clone, Copy, Debug)]
pub struct WriteRate {
    /// Heartbeat of the conditions, plus up to a fifth of jitter: at most 12 writes an hour, of the 15 that an idle
    /// node may make.
    pub heartbeat: Duration,
    /// Minimum time between two condition writes; intermediate states are skipped.
    pub gap: Duration,
    /// The same for changes of the message alone, since numbers in it change often.
    pub words: Duration,
    /// Backoff after a failed write.
    pub retry: Backoff,
}

impl Default for WriteRate {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(300),
            gap: Duration::from_secs(1),
            words: Duration::from_secs(30),
            retry: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
        }
    }
}

/// Writes the latest notice until `stop`, and nothing before the first one. `clock` provides the times of
/// conditions; taints that the API server refuses are reported through `events`.
pub async fn maintain_node(
    node: OwnNode,
    mut notices: watch::Receiver<Option<DesiredNodeStatus>>,
    events: Events,
    clock: Clock,
    pace: WriteRate,
    stop: CancellationToken,
) {
    let mut snapshots = node.snapshots();
    let mut keeper = NodeWriter::new(events, clock, pace);
    loop {
        let notice = notices.borrow_and_update().clone();
        let snapshot = snapshots.borrow_and_update().node.clone();
        let due = match (&snapshot, &notice) {
            (Some(view), Some(notice)) => keeper.due(view, notice),
            _ => DueWrite::Nothing,
        };
        let until = match due {
            DueWrite::Now(change, taint) => {
                let sent = tokio::select! {
                    () = stop.cancelled() => return,
                    // Cancel-safe: a lost write is sent again, since the field is still missing.
                    sent = node.change(&change) => sent.map(drop),
                };
                match keeper.sent(&change, taint, sent) {
                    Some(until) => until,
                    None => continue,
                }
            }
            DueWrite::At(when) => WriterWait::At(when),
            DueWrite::Nothing => WriterWait::Change,
        };
        tokio::select! {
            () = stop.cancelled() => return,
            // All of these are cancel-safe: an unprocessed change stays marked as unseen.
            () = seen(&mut snapshots, until.ends_wait()) => {}
            () = changed(&mut notices), if until.ends_wait() => {}
            () = until.passed() => {}
        }
    }
}

/// Waits for a change; forever if the sender is dropped.
async fn changed<T>(of: &mut watch::Receiver<T>) {
    if of.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Waits for a change of the Node, or, after a failure, until an unreachable server responds again.
async fn seen(snapshots: &mut watch::Receiver<NodeSnapshot>, any: bool) {
    if any {
        return changed(snapshots).await;
    }
    let away = snapshots
        .wait_for(|snapshot| snapshot.away.is_some())
        .await
        .is_ok();
    let back = away
        && snapshots
            .wait_for(|snapshot| snapshot.away.is_none())
            .await
            .is_ok();
    if !back {
        std::future::pending().await
    }
}

/// A removal later than this after the write does not count as a conflict with another writer.
const CONFLICT_WINDOW: Duration = Duration::from_secs(600);

enum WriterWait {
    Change,
    At(Instant),
    After(Duration),
}

impl WriterWait {
    /// Whether a change ends the wait. After a failure only the timer or the server's recovery does.
    const fn ends_wait(&self) -> bool {
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

enum DueWrite {
    /// A patch, and the declared taint that it adds or removes.
    Now(NodePatch, Option<String>),
    At(Instant),
    Nothing,
}

/// State of the writer.
struct NodeWriter {
    clock: Clock,
    pace: WriteRate,
    /// UID of the Node that the other fields refer to.
    uid: String,
    /// Whether leftovers of an earlier version were removed from this Node.
    swept: bool,
    /// Devices named in the last written conditions; none if that write failed.
    named: Option<Vec<String>>,
    /// When the conditions were last written.
    written: Option<Instant>,
    /// When the next heartbeat is due.
    confirm: Option<Instant>,
    failures: u32,
    /// The last patch other than conditions, when it was sent, and how often in a row.
    last: Option<(Value, Instant, u32)>,
    refused: RefusedTaints,
}

impl NodeWriter {
    const fn new(events: Events, clock: Clock, pace: WriteRate) -> Self {
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

    /// The next write, or when to check again.
    fn due(&mut self, view: &NodeView, notice: &DesiredNodeStatus) -> DueWrite {
        if view.uid != self.uid {
            self.uid.clone_from(&view.uid);
            (self.swept, self.written, self.confirm) = (false, None, None);
            self.named = None;
            self.refused.clear();
        }
        // The taint of a new Node is written first, so that no pod is scheduled before it.
        let fitness = notice.fitness.as_ref();
        let change = fitness
            .and_then(|fitness| patches::not_ready_taint(view, fitness))
            .or_else(|| metadata(view, notice, !self.swept))
            .or_else(|| patches::remediation_exclusion(view, notice.stand_back));
        if let Some(change) = change {
            return DueWrite::Now(change, None);
        }
        let waits = |taint: &str| self.refused.is_deferred(taint);
        if let Some((taint, change)) = taints::change(view, &notice.taints, waits) {
            return DueWrite::Now(change, Some(taint));
        }
        if let Some(change) = leftover_conditions(view, notice) {
            return DueWrite::Now(change, None);
        }
        self.swept = true;
        let due = match notice.conditions.is_empty() {
            true => DueWrite::Nothing,
            false => self.conditions(view, &notice.conditions),
        };
        match (due, self.refused.next_try()) {
            (DueWrite::At(when), Some(next)) => DueWrite::At(when.min(next)),
            (DueWrite::Nothing, Some(next)) => DueWrite::At(next),
            (due, _) => due,
        }
    }

    fn conditions(&mut self, view: &NodeView, wanted: &[DesiredCondition]) -> DueWrite {
        let now = Instant::now();
        let names: Vec<_> = wanted.iter().flat_map(|one| one.names.clone()).collect();
        let differs = match differs(view, wanted) {
            ConditionDiff::Message if self.named.as_ref() != Some(&names) => ConditionDiff::Fact,
            differs => differs,
        };
        let when = match (differs, self.written, self.confirm) {
            (ConditionDiff::Equal, _, Some(confirm)) => confirm,
            (ConditionDiff::Equal | ConditionDiff::Message, Some(written), _) => {
                written + self.pace.words
            }
            (ConditionDiff::Fact, Some(written), _) => written + self.pace.gap,
            _ => now,
        };
        match when > now {
            true => DueWrite::At(when),
            false => {
                self.named = Some(names);
                DueWrite::Now(conditions(view, wanted, self.clock.now()), None)
            }
        }
    }

    /// How long to wait after a write; none to continue immediately.
    fn sent(
        &mut self,
        change: &NodePatch,
        taint: Option<String>,
        sent: Result<(), ClusterError>,
    ) -> Option<WriterWait> {
        let error = match sent {
            Ok(()) => {
                self.failures = 0;
                if let Some(taint) = taint {
                    self.refused.record_write(&taint);
                }
                if matches!(change, NodePatch::Conditions(_)) {
                    let now = Instant::now();
                    let later = self.pace.heartbeat.mul_f64(jitter() / 5.0);
                    self.written = Some(now);
                    self.confirm = Some(now + self.pace.heartbeat + later);
                }
                return self.repeated(change).map(WriterWait::After);
            }
            Err(error) => error,
        };
        if let Some(taint) = taint.filter(|_| error.is_forbidden()) {
            self.refused.record_refusal(&taint, &error);
            return None;
        }
        self.named = None;
        let wait = self.pace.retry.wait(self.failures, jitter());
        // A conflict: another client wrote in between, which is common, and the watch will deliver the new version.
        // A second one in a row may be a policy that refuses the patch with the same code.
        let in_between = error.is_conflict() && self.failures == 0;
        match self.failures == u32::from(error.is_conflict()) {
            true => tracing::warn!(reason = %error.reason(), "{}", chain(&error)),
            false => tracing::debug!("{}", chain(&error)),
        }
        self.failures = self.failures.saturating_add(1);
        if in_between {
            return Some(WriterWait::At(Instant::now() + wait));
        }
        let wait = wait.max(error.retry_after().unwrap_or_default());
        Some(WriterWait::After(wait))
    }

    /// How long to wait after a write identical to the previous one: another client removes these fields, and the
    /// two writers must not loop at full speed.
    fn repeated(&mut self, change: &NodePatch) -> Option<Duration> {
        let said = match change {
            NodePatch::Conditions(_) => return None,
            NodePatch::Fields(fields) => fields.clone(),
            NodePatch::Operations(operations) => {
                let operations = operations.as_array().into_iter().flatten();
                operations
                    .filter(|it| it["op"] != "test")
                    .cloned()
                    .collect()
            }
        };
        let now = Instant::now();
        let times = match self.last.take() {
            Some((last, at, times)) if last == said && at + CONFLICT_WINDOW > now => times + 1,
            _ => 0,
        };
        self.last = Some((said, now, times));
        (times > 0).then(|| self.pace.retry.wait(times - 1, jitter()))
    }
}
