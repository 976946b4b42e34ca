//! The state of a pool's current rollout, which survives the controller.
//!
//! It is written together with the grants of the limit, so that it is fenced by the same resource version: the rollout of
//! an arbiter pool is recorded on the pool of the control plane.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use machinist_kube_api::{PoolView, keys::pool_annotation};

/// Maximum size of the state as JSON.
pub const MAX_ROLLOUT_BYTES: usize = 32 * 1024;

/// Maximum number of nodes that are remembered as having stepped aside. Those beyond it keep their grant while they are
/// blocked.
pub const MAX_STEPPED_ASIDE_NODES: usize = 100;

/// The rollout of one config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutState {
    /// The config.
    pub target: String,
    /// When the controller first saw it as the pool's target.
    pub since: Timestamp,
    /// When the first node was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// How many grants ended with the node on the target.
    #[serde(default)]
    pub done: usize,
    /// How many nodes failed on the target. A new target or `resume` clears it.
    #[serde(default)]
    pub failures: usize,
    /// When enough canary nodes were on the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary_passed: Option<Timestamp>,
    /// The reason code with which it was stopped; a new target or `resume` clears it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// The value of the `resume` annotation that took effect last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
    /// When that value took effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Timestamp>,
    /// When the window opened in which a node was started although the window is too short for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_window: Option<Timestamp>,
    /// The nodes that have stepped aside, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stepped_aside: Vec<String>,
    /// When all nodes were on the target, or left out, and no grant was left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<Timestamp>,
    /// How many nodes it was completed without, because an operator skipped them.
    #[serde(default, skip_serializing_if = "super::rollout_history::is_zero")]
    pub left_out: usize,
    /// Fields of a later version, kept unchanged.
    #[serde(flatten)]
    pub rest: BTreeMap<String, Value>,
}

/// The record of all rollouts that share a limit, on the pool that fences it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutStates {
    /// The rollouts by the name of their pool.
    pub rollouts: BTreeMap<String, RolloutState>,
    /// Fields of a later version, kept unchanged.
    #[serde(flatten)]
    pub rest: BTreeMap<String, Value>,
}

/// A state that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "annotation {} of MachineConfigPool {pool} cannot be parsed",
    pool_annotation::ROLLOUT
)]
pub struct RolloutStateError {
    /// The pool.
    pub pool: String,
    /// The position and the expected value; none if the text is too long.
    #[source]
    pub cause: Option<serde_json::Error>,
}

impl RolloutStates {
    /// Parses the rollouts that are recorded on a pool; empty if machinist has not rolled out anything.
    pub fn of(pool: &PoolView) -> Result<Self, RolloutStateError> {
        let error = |cause| RolloutStateError {
            pool: pool.name.clone(),
            cause,
        };
        match pool.annotation(pool_annotation::ROLLOUT) {
            None => Ok(Self::default()),
            Some(text) if text.len() > MAX_ROLLOUT_BYTES => Err(error(None)),
            Some(text) => serde_json::from_str(text).map_err(|cause| error(Some(cause))),
        }
    }

    /// Formats the rollouts for the annotation.
    pub fn to_annotation(&self) -> String {
        // Plain data with string keys cannot fail to serialize.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl RolloutState {
    /// Begins the rollout of `target`.
    pub fn new(target: &str, now: Timestamp) -> Self {
        Self {
            target: target.to_owned(),
            since: now,
            started: None,
            done: 0,
            failures: 0,
            canary_passed: None,
            stopped: None,
            resume: None,
            resumed: None,
            short_window: None,
            stepped_aside: Vec::new(),
            completed: None,
            left_out: 0,
            rest: BTreeMap::new(),
        }
    }

    /// Returns the state for `target` and the value `resume` of the annotation: unchanged, or a new rollout, or the
    /// same one with its failures cleared. `None` if the pool has neither a rollout nor a request to start one.
    #[must_use]
    pub fn updated(
        state: Option<&Self>,
        target: &str,
        resume: Option<&str>,
        now: Timestamp,
    ) -> Option<Self> {
        let known = state.and_then(|it| it.resume.as_deref());
        let requested = resume.filter(|value| Some(*value) != known);
        let mut next = match (state, requested) {
            (None, None) => return None,
            (Some(state), _) if state.target == target => state.clone(),
            (state, _) => Self {
                resume: known.map(str::to_owned),
                resumed: state.and_then(|it| it.resumed),
                rest: state.map(|it| it.rest.clone()).unwrap_or_default(),
                ..Self::new(target, now)
            },
        };
        if let Some(value) = requested {
            next.resume = Some(value.to_owned());
            next.resumed = Some(now);
            next.since = now;
            next.failures = 0;
            next.stopped = None;
            next.stepped_aside.clear();
        }
        Some(next)
    }

    /// Records that a node stepped aside.
    pub fn record_stepped_aside(&mut self, node: &str) {
        let full = self.stepped_aside.len() >= MAX_STEPPED_ASIDE_NODES;
        if !full && !self.has_stepped_aside(node) {
            self.stepped_aside.push(node.to_owned());
        }
    }

    /// Whether a node has stepped aside in this rollout.
    pub fn has_stepped_aside(&self, node: &str) -> bool {
        self.stepped_aside.iter().any(|it| it == node)
    }
}
