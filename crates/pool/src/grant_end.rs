//! End marks of grants: how the update that a grant permitted ended, and how long it took.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::grant::{Grant, GrantsError, MAX_NODE_GRANT_BYTES, parse, to_json};
use machinist_kube_api::{NodeView, keys::annotation};

/// How many end marks a Node keeps. A node has one grant per limit, so that even after several changes of its pool the
/// mark of a grant that a pool still lists is there.
pub const MAX_GRANT_ENDS: usize = 8;

/// The phase in which the agent evicts pods.
pub const DRAIN_PHASE: &str = "Draining";

/// How a grant ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum GrantOutcome {
    /// The node is on the target and uncordoned.
    Done,
    /// The update failed, and the node takes pods again.
    Failed,
    /// The update failed; the node has its earlier config and takes pods again.
    RolledBack,
    /// The update was cancelled before it changed anything.
    Cancelled,
    /// The agent did not begin; the reason is its code.
    Declined,
    /// The controller withdrew a grant that the agent had not acknowledged.
    Withdrawn,
    /// An outcome of a later version. The grant has ended.
    Unknown(String),
}

impl GrantOutcome {
    /// Whether the outcome counts for the rule that stops a rollout.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed | Self::RolledBack)
    }
}

impl From<String> for GrantOutcome {
    fn from(text: String) -> Self {
        match text.as_str() {
            "Done" => Self::Done,
            "Failed" => Self::Failed,
            "RolledBack" => Self::RolledBack,
            "Cancelled" => Self::Cancelled,
            "Declined" => Self::Declined,
            "Withdrawn" => Self::Withdrawn,
            _ => Self::Unknown(text),
        }
    }
}

impl From<GrantOutcome> for String {
    fn from(outcome: GrantOutcome) -> Self {
        match outcome {
            GrantOutcome::Done => "Done".to_owned(),
            GrantOutcome::Failed => "Failed".to_owned(),
            GrantOutcome::RolledBack => "RolledBack".to_owned(),
            GrantOutcome::Cancelled => "Cancelled".to_owned(),
            GrantOutcome::Declined => "Declined".to_owned(),
            GrantOutcome::Withdrawn => "Withdrawn".to_owned(),
            GrantOutcome::Unknown(text) => text,
        }
    }
}

/// The end mark of one grant on its Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantEnd {
    /// The grant's ID.
    pub id: String,
    /// How it ended.
    pub outcome: GrantOutcome,
    /// The reason code of an outcome other than `Done`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The grant's target.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// When it ended.
    pub time: Timestamp,
    /// How long the update took, if it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<UpdateTimes>,
    /// Fields of a later version, kept unchanged.
    #[serde(flatten)]
    pub rest: BTreeMap<String, Value>,
}

/// How long the parts of an update took, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateTimes {
    /// Each phase, by its name; phases that ran again are summed.
    pub phases: BTreeMap<String, u64>,
    /// The part of the drain during which pods blocked it.
    #[serde(default)]
    pub blocked: u64,
}

impl GrantEnd {
    /// Whether pods may have been evicted: an update without a drain has ended, or one that did not begin, otherwise.
    pub fn may_have_drained(&self) -> bool {
        match (&self.times, &self.outcome) {
            (Some(times), _) => times.phases.contains_key(DRAIN_PHASE),
            (None, GrantOutcome::Failed | GrantOutcome::RolledBack | GrantOutcome::Cancelled) => {
                true
            }
            (None, _) => false,
        }
    }
}

impl Grant {
    /// Returns the end mark of this grant.
    pub fn end(&self, outcome: GrantOutcome, reason: &str, time: Timestamp) -> GrantEnd {
        GrantEnd {
            id: self.id.clone(),
            outcome,
            reason: reason.to_owned(),
            target: self.target.clone(),
            time,
            times: None,
            rest: BTreeMap::new(),
        }
    }
}

/// Parses the end marks of a Node, oldest first. A list that cannot be parsed is an error, because it may hide the end
/// of a grant.
pub fn grant_ends(node: &NodeView) -> Result<Vec<GrantEnd>, GrantsError> {
    let object = || format!("Node {}", node.name);
    match node.annotation(annotation::GRANT_ENDS) {
        None => Ok(Vec::new()),
        Some(text) => parse(text, annotation::GRANT_ENDS, object, MAX_NODE_GRANT_BYTES),
    }
}

/// Formats the end marks of a Node after one more grant has ended. If they are too long, the times of the oldest are
/// dropped first, then the oldest marks.
pub fn with_end(ends: &[GrantEnd], end: GrantEnd) -> String {
    let others = ends.iter().filter(|it| it.id != end.id);
    let mut marks: VecDeque<_> = others.cloned().collect();
    marks.push_back(end);
    while marks.len() > MAX_GRANT_ENDS {
        marks.pop_front();
    }
    loop {
        let text = to_json(&marks);
        if text.len() <= MAX_NODE_GRANT_BYTES {
            return text;
        }
        if let Some(mark) = marks.iter_mut().find(|it| it.times.is_some()) {
            mark.times = None;
        } else if marks.len() > 1 {
            marks.pop_front();
        } else {
            return text;
        }
    }
}
