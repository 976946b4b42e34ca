//! Derives what has happened in a rollout, for events on pools and for notifications.

use std::collections::BTreeMap;

use crate::rollout_view::RolloutView;
use machinist_base::{
    reason::Reason,
    text::{counted, join_limited},
};
use machinist_kube_api::{EventReason, NodeView, keys::protocol};
use machinist_pool::{
    Grant, GrantEnd, GrantOutcome, Hold, HoldReason, HoldStrength, MAX_SKIPPED_NODES, PoolGrants,
    PoolWrite, RolloutEdge,
};

/// What has happened. The names are those of the field `event` of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RolloutEventKind {
    RolloutStarted,
    RolloutHeld,
    RolloutStopped,
    RolloutCompleted,
    NodeStarted,
    NodeDrainBlocked,
    NodeRebooting,
    NodeDone,
    NodeFailed,
    NodeCancelled,
}

impl RolloutEventKind {
    /// The name in notifications.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::RolloutStarted => "RolloutStarted",
            Self::RolloutHeld => "RolloutHeld",
            Self::RolloutStopped => "RolloutStopped",
            Self::RolloutCompleted => "RolloutCompleted",
            Self::NodeStarted => "NodeStarted",
            Self::NodeDrainBlocked => "NodeDrainBlocked",
            Self::NodeRebooting => "NodeRebooting",
            Self::NodeDone => "NodeDone",
            Self::NodeFailed => "NodeFailed",
            Self::NodeCancelled => "NodeCancelled",
        }
    }

    /// The event on the pool; `None` if there is only a notification. Agents emit the others on their Nodes.
    pub(crate) const fn event_reason(self) -> Option<EventReason> {
        match self {
            Self::RolloutStarted => Some(EventReason::RolloutStarted),
            Self::RolloutHeld => Some(EventReason::RolloutHeld),
            Self::RolloutStopped => Some(EventReason::RolloutStopped),
            Self::RolloutCompleted => Some(EventReason::RolloutCompleted),
            Self::NodeFailed => Some(EventReason::NodeFailed),
            Self::NodeStarted
            | Self::NodeDrainBlocked
            | Self::NodeRebooting
            | Self::NodeDone
            | Self::NodeCancelled => None,
        }
    }
}

/// An event of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RolloutEvent {
    pub(crate) kind: RolloutEventKind,
    pub(crate) pool: String,
    pub(crate) node: Option<String>,
    /// The config.
    pub(crate) target: Option<String>,
    /// The code of a hold, of the end of a rollout or of a failure.
    pub(crate) reason: Option<String>,
    /// What has happened, without the name of the pool.
    pub(crate) message: String,
}

impl RolloutEvent {
    fn of_edge(kind: RolloutEventKind, edge: &RolloutEdge, message: String) -> Self {
        Self {
            kind,
            pool: edge.pool.clone(),
            node: None,
            target: Some(edge.target.clone()),
            reason: None,
            message,
        }
    }

    /// An event of a node with a grant.
    pub(crate) fn of_grant(kind: RolloutEventKind, grant: &Grant, message: String) -> Self {
        Self {
            kind,
            pool: grant.pool.clone(),
            node: Some(grant.node.clone()),
            target: Some(grant.target.clone()).filter(|it| !it.is_empty()),
            reason: None,
            message,
        }
    }

    fn because(mut self, reason: &str) -> Self {
        self.reason = Some(reason.to_owned()).filter(|it| !it.is_empty());
        self
    }
}

/// The event of a new hold. Those with which a rollout only waits for its nodes have none: they follow each other with
/// every node, and would use up the limit of events that an administrator must see.
pub(crate) fn of_hold(pool: &str, target: Option<&str>, hold: &Hold) -> Option<RolloutEvent> {
    let is_for_people = hold.reason.strength() > HoldStrength::Waits
        || hold.reason == HoldReason::SlotsHeldByFailures;
    is_for_people.then(|| RolloutEvent {
        kind: RolloutEventKind::RolloutHeld,
        pool: pool.to_owned(),
        node: None,
        target: target.map(str::to_owned),
        reason: Some(hold.reason.as_str().to_owned()),
        message: format!("{}: {}", hold.reason.as_str(), hold.message),
    })
}

/// The code of the failure that a Node reports; `None` if it reports none, such as while its machine does not come back
/// from a reboot.
fn failure_code(node: &NodeView) -> Option<&'static str> {
    let (code, _) = node.annotation(protocol::REASON)?.split_once(':')?;
    Reason::named(code).map(Reason::as_str)
}

/// The events of a write of a pool's record, in their order; `known` are the grants before it, and `view` has the Nodes.
pub(crate) fn of_write(
    write: &PoolWrite,
    known: Option<&str>,
    view: &RolloutView,
) -> Vec<RolloutEvent> {
    let known = PoolGrants::parse(&write.pool, known).ok().flatten();
    let known = known.map(|it| it.grants).unwrap_or_default();
    let known: BTreeMap<&str, &Grant> = known.iter().map(|it| (it.id.as_str(), it)).collect();
    let was = |grant: &Grant, state: fn(&Grant) -> bool| {
        known.get(grant.id.as_str()).is_some_and(|it| state(it))
    };
    let was_acknowledged = |grant: &Grant| was(grant, |it| it.acknowledged);
    let was_failed = |grant: &Grant| was(grant, |it| it.failed);
    let mut found = Vec::new();
    for grant in write.grants.grants.iter().filter(|it| it.acknowledged) {
        if !was_acknowledged(grant) {
            found.push(node_started(grant));
        }
    }
    for (grant, end) in &write.freed {
        let Some(end) = end else { continue };
        let ended = node_ended(grant, end, was_failed(grant));
        // The whole update was faster than the controller has looked.
        let is_unseen = !was_acknowledged(grant) && !was_failed(grant);
        if is_unseen && ended.is_some() && end.outcome != GrantOutcome::Cancelled {
            found.push(node_started(grant));
        }
        found.extend(ended);
    }
    for grant in write.grants.grants.iter().filter(|it| it.failed) {
        if !was_failed(grant) {
            let node = view.node(&grant.node).filter(|it| it.uid == grant.uid);
            found.push(node_failed(grant, node.and_then(failure_code)));
        }
    }
    // The event of the next rollout's beginning follows one that was superseded.
    let ends = write.ends.iter().filter(|it| it.result != "Superseded");
    found.extend(ends.map(rollout_ended));
    found.extend(write.begins.iter().map(|edge| {
        let message = format!("the rollout of {} has begun", edge.target);
        RolloutEvent::of_edge(RolloutEventKind::RolloutStarted, edge, message)
    }));
    found
}

fn node_started(grant: &Grant) -> RolloutEvent {
    let (node, target) = (&grant.node, &grant.target);
    let message = format!("node {node} has begun its update to {target}");
    RolloutEvent::of_grant(RolloutEventKind::NodeStarted, grant, message)
}

/// The event of a node that failed and keeps its slot.
fn node_failed(grant: &Grant, code: Option<&str>) -> RolloutEvent {
    let (node, target) = (&grant.node, &grant.target);
    let why = code.map(|code| format!(": {code}")).unwrap_or_default();
    let message = format!("node {node} failed on {target} and keeps its slot{why}");
    let kind = RolloutEventKind::NodeFailed;
    RolloutEvent::of_grant(kind, grant, message).because(code.unwrap_or_default())
}

/// The event of an end mark; `None` if nothing has happened on the node, or if it was reported before.
fn node_ended(grant: &Grant, end: &GrantEnd, was_reported: bool) -> Option<RolloutEvent> {
    let (node, target) = (&grant.node, &end.target);
    let outcome = String::from(end.outcome.clone());
    let (kind, reason, message) = match &end.outcome {
        GrantOutcome::Done => {
            let message = format!("node {node} is on {target}");
            (RolloutEventKind::NodeDone, "", message)
        }
        GrantOutcome::Cancelled => {
            let message = format!("node {node} has cancelled its update to {target}");
            let reason = end.reason.as_str();
            (RolloutEventKind::NodeCancelled, reason, message)
        }
        failure if failure.is_failure() && !was_reported => {
            let (reason, code) = match end.reason.as_str() {
                "" => (outcome.as_str(), outcome.clone()),
                code => (code, format!("{outcome}, {code}")),
            };
            let message = format!("node {node} failed on {target}: {code}");
            (RolloutEventKind::NodeFailed, reason, message)
        }
        _ => return None,
    };
    let mut event = RolloutEvent::of_grant(kind, grant, message).because(reason);
    event.target = Some(end.target.clone()).filter(|it| !it.is_empty());
    Some(event)
}

/// The nodes that a completed rollout has updated, with the verb.
fn completed_by(skipped: &[String]) -> String {
    if skipped.is_empty() {
        return "all nodes are".to_owned();
    }
    let names = join_limited(skipped.iter(), MAX_SKIPPED_NODES);
    let nodes = counted(skipped.len(), "skipped node");
    format!("all nodes but {nodes} ({names}) are")
}

fn rollout_ended(edge: &RolloutEdge) -> RolloutEvent {
    let target = &edge.target;
    match edge.result.as_str() {
        "Completed" => {
            let message = format!("{} on {target}", completed_by(&edge.skipped));
            RolloutEvent::of_edge(RolloutEventKind::RolloutCompleted, edge, message)
        }
        code => {
            let message = format!("the rollout of {target} was stopped: {code}");
            RolloutEvent::of_edge(RolloutEventKind::RolloutStopped, edge, message).because(code)
        }
    }
}

#[cfg(test)]
mod tests;
