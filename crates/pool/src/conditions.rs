//! Computes a pool's conditions from its nodes.

use super::{
    MachineCounts, NodePoolStatus, PoolMembers, hold::MAX_NAMED_NODES, machine_counts::target,
};
use machinist_base::text::{join_limited, part_of};
use machinist_kube_api::{
    MAX_REASON_BYTES, NodeUpdateState, NodeView, PoolView,
    keys::{annotation, pool_annotation},
    truncate_at_char,
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

/// Maximum length of the blockers in a message: one node may have many.
const MAX_BLOCKERS_BYTES: usize = 1024;

/// Conditions written by other controllers that also make the pool `Degraded`.
const FOREIGN_DEGRADED_CONDITIONS: [&str; 2] = ["RenderDegraded", "ImageBuildDegraded"];

/// Returns the conditions of a pool, in the order in which they are written.
pub fn conditions(members: &PoolMembers<'_>, counts: &MachineCounts) -> Vec<PoolCondition> {
    let pool = members.pool;
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
    let progress = progress(members, counts);
    let (reached, text) = (progress.reason, progress.message.as_str());
    vec![
        one("Updated", counts.all_updated(), reached, text),
        one("Updating", progress.is_updating, reached, text),
        one("NodeDegraded", degraded.is_some(), node_reason, nodes),
        one(
            "Degraded",
            degraded.is_some() || other.is_some(),
            reason,
            &message,
        ),
    ]
}

/// How far a pool is with its config.
struct PoolProgress {
    is_updating: bool,
    reason: &'static str,
    message: String,
}

fn progress(members: &PoolMembers<'_>, counts: &MachineCounts) -> PoolProgress {
    let target = members.pool.spec.configuration.name.as_str();
    let (whole, part) = match target {
        "" => ("its config", "these configs"),
        target => (target, target),
    };
    let stands = |reason, message| PoolProgress {
        is_updating: false,
        reason,
        message,
    };
    if counts.all_updated() {
        return stands("AllNodesUpdated", format!("every node is on {whole}"));
    }
    if members.pool.spec.paused {
        return stands("Paused", format!("the pool is paused; {part} is pending"));
    }
    if let Some(pin) = reached_pin(members) {
        let message = format!("every node is on the pinned {pin}; {part} is pending");
        return stands("Pinned", message);
    }
    let [updated, machines] = [counts.updated, counts.machines].map(|it| it as usize);
    let mut message = format!("{} on {part}", part_of(updated, machines, "node"));
    if let Some(blocked) = blocked(members) {
        message.push_str(&format!("; drain blocked: {blocked}"));
    }
    match skipped(members, counts) {
        Some(names) => stands("NodesSkipped", format!("{message}; skipped: {names}")),
        None => PoolProgress {
            is_updating: true,
            reason: "NodesUpdating",
            message,
        },
    }
}

/// The nodes whose drain is blocked, each with its blockers; `None` if there is none.
fn blocked(members: &PoolMembers<'_>) -> Option<String> {
    let nodes = members.nodes.iter().filter_map(|node| {
        let blockers = node.annotation(annotation::BLOCKED_BY)?;
        Some(format!("{} by {blockers}", node.name))
    });
    let mut nodes: Vec<String> = nodes.collect();
    nodes.sort_unstable();
    let named = join_limited(nodes.iter(), MAX_NAMED_NODES);
    (!nodes.is_empty()).then(|| truncate_at_char(&named, MAX_BLOCKERS_BYTES).to_owned())
}

/// The nodes that an operator skips, if all others are updated: then nothing updates.
fn skipped(members: &PoolMembers<'_>, counts: &MachineCounts) -> Option<String> {
    let target = target(members.pool)?;
    let is_left_out = |node: &&&NodeView| {
        let is_started =
            node.desired_config() == Some(target) || node.annotation(annotation::GRANT).is_some();
        node.annotation(annotation::SKIP_ROLLOUT) == Some(target) && !is_started
    };
    let left_out = members.nodes.iter().filter(is_left_out);
    let managed = left_out.filter(|node| NodePoolStatus::of(node, Some(target)).managed);
    let mut names: Vec<&str> = managed.map(|node| node.name.as_str()).collect();
    names.sort_unstable();
    let others = (counts.machines as usize).saturating_sub(names.len());
    let are_done = counts.updated as usize == others && counts.ready == counts.updated;
    (!names.is_empty() && are_done).then(|| join_limited(names.iter(), MAX_NAMED_NODES))
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
