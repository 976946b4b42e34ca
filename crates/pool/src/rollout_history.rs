//! The last rollouts of a pool: totals, times of the phases, and the nodes that took longest or failed.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{DurationHistogram, GrantOutcome, RebootKind};
use machinist_kube_api::{MAX_REASON_BYTES, PoolView, keys::pool_annotation, truncate_at_char};

/// How many rollouts a pool keeps.
pub const MAX_ROLLOUTS: usize = 10;

/// How many nodes each rollout names.
pub const MAX_WORST_NODES: usize = 20;

/// How many skipped nodes each rollout names.
pub const MAX_SKIPPED_NODES: usize = 10;

/// Maximum size of the history as JSON.
pub const MAX_HISTORY_BYTES: usize = 32 * 1024;

/// How many phases are kept per rollout: more than an update has.
const MAX_PHASES: usize = 24;

/// The phase in which the agent reboots the machine, or its user space.
const REBOOT_PHASE: &str = "RebootPending";

/// Maximum length of the name of a phase or a code.
const MAX_WORD_BYTES: usize = 64;

/// The percentage of the pool's last successes that an expected update time covers.
const EXPECTED_PERCENT: u64 = 90;

/// How many successes are enough to expect the time of the next one.
const ENOUGH_SUCCESSES: u64 = 20;

/// How one node's update ended, with its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeUpdate {
    /// The node.
    pub node: String,
    /// How its grant ended.
    pub outcome: GrantOutcome,
    /// The reason code of an outcome other than `Done`.
    pub code: String,
    /// From the acknowledgement to the end.
    pub total: SignedDuration,
    /// The part of it during which disruption budgets or other programs blocked the update.
    pub blocked: SignedDuration,
    /// The time of each phase.
    pub phases: Vec<(String, SignedDuration)>,
}

/// A node that took long or failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorstNode {
    /// The node.
    pub node: String,
    /// Whether its update failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// The time from the acknowledgement to the end, in seconds.
    pub seconds: i64,
    /// The reason code, if there is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub code: String,
}

/// One rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutRecord {
    /// The config.
    pub target: String,
    /// When its first node was granted.
    pub started: Timestamp,
    /// When it ended; absent while it is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// `Completed`, `Superseded`, or the reason code with which it was stopped.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub result: String,
    /// How many nodes it was completed without, because an operator skipped them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: usize,
    /// The first of these nodes, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped_nodes: Vec<String>,
    /// The number of ended grants, by outcome.
    #[serde(default)]
    pub outcomes: BTreeMap<String, u32>,
    /// How many of the updates rebooted the machine, or its user space.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reboots: usize,
    /// Times of successful updates without blocked time.
    #[serde(default)]
    pub update_times: DurationHistogram,
    /// Times of each phase.
    #[serde(default)]
    pub phases: BTreeMap<String, DurationHistogram>,
    /// Failed nodes first, then those that took longest.
    #[serde(default)]
    pub worst: Vec<WorstNode>,
}

/// The last rollouts of a pool, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutHistory {
    /// The rollouts.
    pub rollouts: Vec<RolloutRecord>,
    /// Fields of a later version, kept unchanged.
    #[serde(flatten)]
    pub rest: BTreeMap<String, Value>,
}

impl RolloutHistory {
    /// Reads the history of a pool. One that cannot be parsed is empty: it only serves estimates and people, and must
    /// not hold up a rollout.
    pub fn of(pool: &PoolView) -> Self {
        let text = pool.annotation(pool_annotation::HISTORY);
        let text = text.filter(|text| text.len() <= MAX_HISTORY_BYTES);
        text.and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }

    /// Begins a rollout, unless the newest one has the same target and has not ended. One that was completed without
    /// skipped nodes continues for these.
    pub fn begin(&mut self, target: &str, now: Timestamp) {
        let newest = self.rollouts.first_mut();
        match newest {
            Some(newest) if newest.ended.is_none() && newest.target == target => return,
            Some(newest) if newest.target == target && newest.skipped > 0 => {
                newest.reopen();
                return;
            }
            Some(newest) if newest.ended.is_none() => newest.end("Superseded", now),
            _ => {}
        }
        self.rollouts.insert(
            0,
            RolloutRecord {
                target: target.to_owned(),
                started: now,
                ended: None,
                result: String::new(),
                skipped: 0,
                skipped_nodes: Vec::new(),
                outcomes: BTreeMap::new(),
                reboots: 0,
                update_times: DurationHistogram::default(),
                phases: BTreeMap::new(),
                worst: Vec::new(),
            },
        );
        self.rollouts.truncate(MAX_ROLLOUTS);
    }

    /// Ends the newest rollout if it has this target; `skipped` are the nodes that it left out, by name.
    pub fn end(&mut self, target: &str, result: &str, skipped: &[String], now: Timestamp) {
        let newest = self.rollouts.first_mut();
        if let Some(newest) = newest.filter(|it| it.ended.is_none() && it.target == target) {
            newest.end(result, now);
            newest.skipped = skipped.len();
            let named = skipped.iter().take(MAX_SKIPPED_NODES);
            newest.skipped_nodes = named.cloned().collect();
        }
    }

    /// Adds the update of one node to the newest rollout with this target.
    pub fn record(&mut self, target: &str, update: &NodeUpdate) {
        let found = self.rollouts.iter_mut().find(|it| it.target == target);
        if let Some(found) = found {
            found.record(update);
        }
    }

    /// Returns the time within which nine of ten of the pool's last successful updates ended, without blocked time;
    /// `None` if there were none. Only rollouts with reboots show how long an update with a reboot takes, and only those
    /// without how long others take. Older rollouts are used until there are enough successes.
    pub fn expected_update_time(&self, reboot: RebootKind) -> Option<SignedDuration> {
        let mut times = DurationHistogram::default();
        let is_alike =
            |rollout: &&RolloutRecord| (rollout.reboots > 0) == (reboot != RebootKind::None);
        for rollout in self.rollouts.iter().filter(is_alike) {
            times.merge(&rollout.update_times);
            if times.count() >= ENOUGH_SUCCESSES {
                break;
            }
        }
        times.quantile(EXPECTED_PERCENT)
    }

    /// Whether the pool has run a config: then it may return to it.
    pub fn has_run(&self, config: &str) -> bool {
        let done: String = GrantOutcome::Done.into();
        let mut rollouts = self.rollouts.iter();
        rollouts.any(|it| it.target == config && it.outcomes.contains_key(&done))
    }

    /// Formats the history for the annotation. If it is too long, the worst nodes of old rollouts are dropped first,
    /// then their phases, then the rollouts.
    pub fn to_annotation(&self) -> String {
        let mut kept = self.clone();
        loop {
            let text = serde_json::to_string(&kept).unwrap_or_default();
            if text.len() <= MAX_HISTORY_BYTES || !kept.shrink() {
                return text;
            }
        }
    }

    /// Drops the least important part; `false` if nothing is left to drop.
    fn shrink(&mut self) -> bool {
        let oldest = self.rollouts.iter_mut().rev();
        if let Some(record) = oldest.into_iter().find(|it| !it.worst.is_empty()) {
            record.worst.clear();
        } else if let Some(record) = self
            .rollouts
            .iter_mut()
            .rev()
            .find(|it| !it.phases.is_empty())
        {
            record.phases.clear();
            record.skipped_nodes.clear();
        } else if self.rollouts.pop().is_none() {
            let had_rest = !self.rest.is_empty();
            self.rest.clear();
            return had_rest;
        }
        true
    }
}

impl RolloutRecord {
    fn reopen(&mut self) {
        self.ended = None;
        self.result.clear();
        self.skipped = 0;
        self.skipped_nodes.clear();
    }

    fn end(&mut self, result: &str, now: Timestamp) {
        self.ended = Some(now);
        self.result = word(result);
    }

    fn record(&mut self, update: &NodeUpdate) {
        let outcome: String = update.outcome.clone().into();
        *self.outcomes.entry(word(&outcome)).or_default() += 1;
        if update.outcome == GrantOutcome::Done {
            let active = update.total.saturating_sub(update.blocked);
            self.update_times.record(active.max(SignedDuration::ZERO));
        }
        self.reboots += usize::from(update.phases.iter().any(|(phase, _)| phase == REBOOT_PHASE));
        for (phase, time) in &update.phases {
            let phase = word(phase);
            if self.phases.len() < MAX_PHASES || self.phases.contains_key(&phase) {
                self.phases.entry(phase).or_default().record(*time);
            }
        }
        self.worst.retain(|it| it.node != update.node);
        self.worst.push(WorstNode {
            node: update.node.clone(),
            failed: update.outcome.is_failure(),
            seconds: update.total.as_secs(),
            code: word(&update.code),
        });
        self.worst
            .sort_by(|a, b| (b.failed, b.seconds, &a.node).cmp(&(a.failed, a.seconds, &b.node)));
        self.worst.truncate(MAX_WORST_NODES);
    }
}

/// Whether a count is not written. Serde calls it with a reference.
pub(super) const fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn word(text: &str) -> String {
    const { assert!(MAX_WORD_BYTES < MAX_REASON_BYTES) };
    truncate_at_char(text, MAX_WORD_BYTES).to_owned()
}
