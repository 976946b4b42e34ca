//! Formats pools and their nodes as text. Texts from the cluster are untrusted, so terminal control characters are
//! removed.

use jiff::Timestamp;

use super::{
    controller_report::{ControllerReport, ControllerState},
    grants::NodeGrant,
    report::{HeldRollout, NodeRollout, PoolProgress, PoolRollout},
};
use crate::cli::{
    fleet::{
        self,
        annotations::{BlockedBy, brief},
    },
    output::wrapped,
};
use machinist_base::text::{counted, join_limited};
use machinist_plan::escape_line;
use machinist_pool::age;

/// How many nodes one line names.
pub(super) const MAX_NAMED_NODES: usize = 10;

/// Conditions that the list of pools names, the most important one first.
const SUMMARY_CONDITIONS: [&str; 2] = ["RenderDegraded", "NodeDegraded"];

/// The page of all pools: one line each.
pub(super) fn list(report: &PoolProgress, now: Timestamp) -> String {
    if report.pools.is_empty() {
        return "no MachineConfigPools found\n".to_owned();
    }
    let head = ["NAME", "TARGET", "UPDATED", "GRANTS", "STATE"].map(str::to_owned);
    let rows = report.pools.iter().map(|pool| {
        let grants = pool
            .nodes
            .iter()
            .filter(|node| node.grant.is_some())
            .count();
        [
            pool.name.clone(),
            pool.target.as_deref().map_or("-".to_owned(), brief),
            format!("{}/{}", pool.updated, pool.machines),
            (grants + pool.grants_without_node.len()).to_string(),
            summary(pool),
        ]
    });
    let mut text = table("", std::iter::once(head).chain(rows).collect());
    text += &controller_note(&report.controller, now);
    text + &fleet::warnings(&report.warnings)
}

/// What a pool does, in a few words.
fn summary(pool: &PoolRollout) -> String {
    let state = match &pool.held {
        Some(held) => held.code.clone(),
        None if pool.paused => "Paused".to_owned(),
        None if pool.updated == pool.machines => "Updated".to_owned(),
        None => "Updating".to_owned(),
    };
    let mut parts = vec![state];
    if pool.pinned {
        parts.push("pinned".to_owned());
    }
    let blocked = pool.nodes.iter();
    let blocked = blocked.filter(|node| !node.node.blocked_by.is_empty());
    match blocked.count() {
        0 => {}
        nodes => parts.push(format!("{} blocked", counted(nodes, "node"))),
    }
    let mut conditions = pool.conditions.iter();
    let mistake = conditions.find(|it| SUMMARY_CONDITIONS.contains(&it.kind.as_str()));
    parts.extend(mistake.map(|it| it.kind.clone()));
    parts.join(", ")
}

/// The page of one pool with its nodes.
pub(super) fn one(report: &PoolProgress, now: Timestamp) -> String {
    let mut text = String::new();
    for pool in &report.pools {
        let target = pool.target.as_deref().unwrap_or("no config yet");
        let head = format!(
            "{}: {} of {} on {target}",
            pool.name,
            pool.updated,
            counted(pool.machines, "node")
        );
        text += &wrapped("", "  ", &escape_line(&head));
        for (name, value) in rows(pool, &report.controller, now) {
            text += &wrapped(
                &format!("  {name:<10} "),
                &" ".repeat(13),
                &escape_line(&value),
            );
        }
        text += &nodes(pool, now);
    }
    text + &fleet::warnings(&report.warnings)
}

fn rows(
    pool: &PoolRollout,
    controller: &ControllerReport,
    now: Timestamp,
) -> Vec<(&'static str, String)> {
    let mut rows = vec![("controller", controller_text(controller, now))];
    let limit = pool.max_unavailable;
    let limit = limit.map_or("no valid value".to_owned(), |limit| limit.to_string());
    rows.push(("limit", limit));
    if pool.paused {
        let reason = pool.pause_reason.clone();
        rows.push((
            "paused",
            reason.unwrap_or_else(|| "without a reason".to_owned()),
        ));
    }
    if pool.pinned {
        let until = format!("until machinist resume --pool {}", pool.name);
        rows.push(("pinned", until));
    }
    rows.extend(pool.held.as_ref().map(|held| ("held", held_text(held))));
    let conditions = pool.conditions.iter();
    rows.extend(conditions.map(|it| {
        let text = match it.message.is_empty() {
            true => &it.reason,
            false => &it.message,
        };
        ("condition", format!("{}: {text}", it.kind))
    }));
    if !pool.next.is_empty() {
        rows.push(("next", join_limited(pool.next.iter(), MAX_NAMED_NODES)));
    }
    let missing = pool.grants_without_node.iter();
    rows.extend(missing.map(|grant| {
        let text = format!(
            "{} ({}), {}, {}",
            grant.node,
            grant.state.as_str(),
            grant.id,
            age(grant.time, now)
        );
        ("grant", text)
    }));
    rows
}

fn held_text(held: &HeldRollout) -> String {
    format!("{}: {}", held.code, held.message)
}

/// What is known about the controller, in one sentence.
pub(super) fn controller_text(controller: &ControllerReport, now: Timestamp) -> String {
    let holder = controller.holder.as_deref().unwrap_or_default();
    let renewed = controller.renewed.map(|renewed| age(renewed, now));
    let renewed = renewed.unwrap_or_else(|| "an unknown time".to_owned());
    match controller.state {
        ControllerState::Active => format!("{holder}, renewed its Lease {renewed} ago"),
        ControllerState::Silent => {
            format!("{holder} has not renewed its Lease for {renewed}: no controller acts")
        }
        ControllerState::Absent => "none holds the Lease: no controller acts".to_owned(),
        ControllerState::Unknown => "unknown: the Lease could not be read".to_owned(),
    }
}

fn controller_note(controller: &ControllerReport, now: Timestamp) -> String {
    match controller.state {
        ControllerState::Active => String::new(),
        _ => {
            let text = format!("controller: {}", controller_text(controller, now));
            wrapped("\n", "  ", &escape_line(&text))
        }
    }
}

fn nodes(pool: &PoolRollout, now: Timestamp) -> String {
    if pool.nodes.is_empty() {
        return "\nThe pool selects no nodes.\n".to_owned();
    }
    let head = ["NODE", "STATE", "CONFIG", "GRANT", "SINCE", "PHASE"].map(str::to_owned);
    let rows = pool.nodes.iter().map(|node| cells(node, now));
    "\n".to_owned() + &table("", std::iter::once(head).chain(rows).collect())
}

fn cells(node: &NodeRollout, now: Timestamp) -> [String; 6] {
    let part = &node.node;
    let mut state = part.state.clone().unwrap_or_else(|| "-".to_owned());
    match part.cordoned_by {
        Some("other") => state += ", cordoned",
        None if !part.ready => state += ", not ready",
        _ => {}
    }
    if node.skipped {
        state += ", skipped";
    }
    [
        part.name.clone(),
        state,
        configs(node),
        node.grant
            .as_ref()
            .map_or_else(|| "-".to_owned(), |grant| grant_text(grant, now)),
        part.since
            .map_or_else(|| "-".to_owned(), |since| age(since, now)),
        phase(node),
    ]
}

/// The current config, and the desired one if it differs.
pub(super) fn configs(node: &NodeRollout) -> String {
    let short = |config: &Option<String>| config.as_deref().map_or("-".to_owned(), brief);
    let (current, desired) = (short(&node.node.current), short(&node.node.desired));
    match node.node.current == node.node.desired {
        true => current,
        false => format!("{current} → {desired}"),
    }
}

/// The state and the age of a grant.
pub(super) fn grant_text(grant: &NodeGrant, now: Timestamp) -> String {
    format!("{}, {}", grant.state.as_str(), age(grant.time, now))
}

/// What the node does or waits for.
fn phase(node: &NodeRollout) -> String {
    let blocked = node.node.blocked_by.iter().map(blocker);
    let blocked: Vec<_> = blocked.collect();
    let reason = node.node.reason.clone();
    match (&node.phase, blocked.is_empty()) {
        (Some(phase), false) => format!("{phase}: {}", blocked.join(", ")),
        (None, false) => blocked.join(", "),
        (Some(phase), true) => phase.clone(),
        (None, true) => reason.unwrap_or_else(|| "-".to_owned()),
    }
}

/// A blocker with its code.
pub(super) fn blocker(one: &BlockedBy) -> String {
    match one.reason {
        Some(reason) => format!("{} ({reason})", one.name),
        None => one.name.clone(),
    }
}

/// Rows in columns, as kubectl prints them.
pub(super) fn table<const N: usize>(indent: &str, rows: Vec<[String; N]>) -> String {
    let escaped: Vec<[String; N]> = rows
        .into_iter()
        .map(|row| row.map(|cell| escape_line(&cell)))
        .collect();
    let width = |column: usize| {
        let cells = escaped.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let lines = escaped.iter().map(|row| {
        let cells = row.iter().zip(&widths);
        let padded = cells.map(|(cell, width)| format!("{cell:<width$}"));
        let line = padded.collect::<Vec<_>>().join("   ");
        format!("{indent}{}\n", line.trim_end())
    });
    lines.collect()
}
