//! Computes a pool's conditions from its nodes.

use super::{MachineCounts, NodePoolStatus, PoolMembers};
use machinist_kube_api::{
    MAX_REASON_BYTES, NodeUpdateState, NodeView, PoolView, keys::pool_annotation, truncate_at_char,
};

/// One condition of a pool. The caller keeps its transition time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolCondition {
    /// `Updated`, `Updating`, `NodeDegraded` or `Degraded`.
    pub kind: &'static str,
    /// Whether it holds.
    pub status: bool,
    /// A stable code.
    pub reason: &'static str,
    /// One sentence; empty if the reason code is enough.
    pub message: String,
}

/// Conditions written by other controllers that also make the pool `Degraded`.
const FOREIGN_DEGRADED_CONDITIONS: [&str; 2] = ["RenderDegraded", "ImageBuildDegraded"];

/// Returns the conditions of a pool, in the order in which they are written.
pub fn conditions(members: &PoolMembers<'_>, counts: &MachineCounts) -> Vec<PoolCondition> {
    let pool = members.pool;
    let updated = counts.all_updated();
    let (target, paused) = (pool.spec.configuration.name.as_str(), pool.spec.paused);
    let (whole, part) = match target {
        "" => ("every node is on its config".to_owned(), "these configs"),
        target => (format!("every node is on {target}"), target),
    };
    let pin = reached_pin(members);
    let waiting = match (paused, pin) {
        (true, _) => format!("the pool is paused; {part} is pending"),
        (false, Some(pin)) => format!("every node is on the pinned {pin}; {part} is pending"),
        (false, None) => format!(
            "{} of {} nodes are on {part}",
            counts.updated, counts.machines
        ),
    };
    let one = |kind, status, reason, message: &str| PoolCondition {
        kind,
        status,
        reason,
        message: message.to_owned(),
    };
    let degraded = named(members);
    let other = FOREIGN_DEGRADED_CONDITIONS
        .into_iter()
        .find(|kind| pool.status.is(kind) == Some(true));
    let (reason, message) = match (&degraded, other) {
        (Some(_), _) => ("NodeDegraded", String::new()),
        (None, Some(kind)) => (kind, condition_text(pool, kind)),
        (None, None) => ("AsExpected", String::new()),
    };
    let (node_reason, nodes) = match &degraded {
        Some(named) => ("NodesDegraded", named.as_str()),
        None => ("AsExpected", ""),
    };
    let not_yet = match (paused, pin) {
        (true, _) => "Paused",
        (false, Some(_)) => "Pinned",
        (false, None) => "NodesUpdating",
    };
    let progress = if updated { "AllNodesUpdated" } else { not_yet };
    let text = if updated { &whole } else { &waiting };
    vec![
        one("Updated", updated, progress, text),
        one(
            "Updating",
            !updated && !paused && pin.is_none(),
            progress,
            text,
        ),
        one("NodeDegraded", degraded.is_some(), node_reason, nodes),
        one(
            "Degraded",
            degraded.is_some() || other.is_some(),
            reason,
            &message,
        ),
    ]
}

/// The config that the pool is pinned to, if every node runs it: newer ones wait, and nothing updates.
fn reached_pin<'a>(members: &PoolMembers<'a>) -> Option<&'a str> {
    let pin = members.pool.annotation(pool_annotation::PINNED_CONFIG)?;
    let is_there = |node: &&NodeView| {
        node.current_config() == Some(pin)
            && node.desired_config() == Some(pin)
            && node.state() == Some(NodeUpdateState::Done)
    };
    members.nodes.iter().all(is_there).then_some(pin)
}

fn condition_text(pool: &PoolView, kind: &str) -> String {
    let found = pool.status.conditions.iter().find(|it| it.kind == kind);
    found.map_or_else(String::new, |it| it.message.clone())
}

/// Lists each managed node that is degraded once, with its reason; `None` if there is none.
fn named(members: &PoolMembers<'_>) -> Option<String> {
    let mut failed: Vec<_> = members
        .nodes
        .iter()
        .filter(|node| {
            let standing = NodePoolStatus::of(node, None);
            standing.managed && standing.degraded
        })
        .collect();
    failed.sort_by(|a, b| a.name.cmp(&b.name));
    let each = failed.iter().map(|node| {
        let reason = node.annotation(machinist_kube_api::keys::protocol::REASON);
        format!("{}: {}", node.name, reason.unwrap_or("no reason given"))
    });
    let each = each.collect::<Vec<_>>().join("; ");
    (!each.is_empty()).then(|| truncate_at_char(&each, MAX_REASON_BYTES).to_owned())
}
