//! Formats nodes and pools as text. Texts from the cluster are untrusted, so terminal control
//! characters are removed.

use jiff::Timestamp;

use super::{
    annotations::{BlockedBy, brief},
    node::{CordonPart, NodeReport},
    pools::{NodePart, PoolReport, PoolsReport},
};
use crate::cli::output::wrapped;
use machinist_base::text::LINE_COLUMNS;
use machinist_kube_api::Progress;
use machinist_plan::escape_line;
use machinist_pool::{PoolRow, age, table};

/// The text for one node.
pub(super) fn node(report: &NodeReport, now: Timestamp) -> String {
    let ready = match report.ready {
        Some(true) => "ready",
        Some(false) => "not ready",
        None => "no agent has reported",
    };
    let pool = report.pool.as_ref();
    let pool = pool.map_or("in no pool".to_owned(), |pool| {
        let paused = if pool.paused { ", paused" } else { "" };
        format!("pool {}{paused}", pool.name)
    });
    let mut text = format!("{}  {ready}  {pool}\n", escape_line(&report.node));
    for (name, value) in rows(report, now) {
        text += &row(name, &value);
    }
    text += &steps(report, now);
    if !report.devices.is_empty() {
        text += "\ndevices\n";
        for device in &report.devices {
            let (free, all) = (&device.allocatable, &device.capacity);
            let line = format!("{}  {free} of {all} allocatable", device.resource);
            text += &wrapped("  ", "    ", &escape_line(&line));
        }
    }
    text += &events(report, now);
    text + &warnings(&report.warnings)
}

/// A name followed by its value; further lines of the value are aligned below its first line.
fn row(name: &str, value: &str) -> String {
    wrapped(
        &format!("  {name:<8} "),
        &" ".repeat(11),
        &escape_line(value),
    )
}

fn rows(report: &NodeReport, now: Timestamp) -> Vec<(&'static str, String)> {
    let config = &report.config;
    let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let since = report
        .since
        .map(|since| format!(", for {}", age(since, now)));
    let mut rows = vec![
        (
            "state",
            format!("{}{}", dash(&report.state), since.unwrap_or_default()),
        ),
        ("config", dash(&config.current)),
    ];
    if config.desired != config.current {
        rows.push(("wanted", dash(&config.desired)));
    }
    let target = report.pool.as_ref().and_then(|pool| pool.target.clone());
    if let Some(target) = target.filter(|target| config.desired.as_ref() != Some(target)) {
        rows.push(("pool's", target));
    }
    rows.extend(report.reason.clone().map(|reason| ("reason", reason)));
    if let Some(step) = &report.step {
        rows.push(("step", format!("{}: {}", step.name, step.message)));
    }
    rows.extend(cordon(report.cordon).map(|text| ("cordon", text.to_owned())));
    let blocked = report.blocked_by.iter();
    rows.extend(blocked.map(|one| ("blocked", shown(one))));
    if report.ready == Some(false) || !report.blocked_by.is_empty() {
        rows.extend(report.ready_message.clone().map(|text| ("gates", text)));
    }
    if let Some(silent) = silence_duration(report, now) {
        rows.push(("agent", format!("not reported for {silent}")));
    }
    rows
}

/// How long an agent that reported in the past has been silent.
pub(super) fn silence_duration(report: &NodeReport, now: Timestamp) -> Option<String> {
    let heard = report.last_heartbeat_time.filter(|_| report.stale)?;
    Some(age(heard, now))
}

fn cordon(cordon: CordonPart) -> Option<&'static str> {
    match (cordon.by, cordon.kept) {
        (None, false) => None,
        (None, true) => Some("none; the next one is kept (machinist.dev/keep-cordoned)"),
        (Some("machinist"), false) => Some("by machinist, for the update"),
        (Some("machinist"), true) => Some("by machinist, kept after the update"),
        (Some(_), _) => Some("by another client; not lifted by machinist"),
    }
}

fn shown(one: &BlockedBy) -> String {
    match one.reason {
        Some(reason) => format!("{} ({reason})", one.name),
        None => one.name.clone(),
    }
}

/// The steps of the update that have started.
fn steps(report: &NodeReport, now: Timestamp) -> String {
    let begun: Vec<_> = report
        .conditions
        .iter()
        .filter(|it| it.status != Progress::False)
        .collect();
    let updated = begun.iter().any(|it| it.kind == "Updated");
    if begun.is_empty() || updated {
        return String::new();
    }
    let mut text = String::from("\nsteps\n");
    for step in begun {
        let word = match step.status {
            Progress::True => "done",
            _ => "in progress",
        };
        let line = format!("  {:<24}  {word:<9}  {}", step.kind, age(step.since, now));
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn events(report: &NodeReport, now: Timestamp) -> String {
    if report.events.is_empty() {
        return String::new();
    }
    let mut text = String::from("\nevents\n");
    for event in &report.events {
        let last = event.last.map(|last| age(last, now)).unwrap_or_default();
        let times = match event.count {
            0 | 1 => String::new(),
            count => format!(" ({count} times)"),
        };
        let line = format!("{}: {}{times}", event.reason, event.note);
        text += &wrapped(
            &format!("  {last:<7}  "),
            &" ".repeat(11),
            &escape_line(&line),
        );
    }
    text
}

/// Problems that an administrator should fix, and objects that could not be read.
pub(in crate::cli) fn warnings(warnings: &[String]) -> String {
    let each = warnings
        .iter()
        .map(|warning| wrapped("  ", "    ", &escape_line(warning)));
    let text: String = each.collect();
    match text.is_empty() {
        true => text,
        false => format!("\nwarnings\n{text}"),
    }
}

/// The text for pools: the rows as in `oc get mcp`, then each pool's nodes.
pub(super) fn pools(report: &PoolsReport, now: Timestamp) -> String {
    let rows: Vec<_> = report
        .pools
        .iter()
        .map(|pool| pool.observed.clone())
        .collect();
    let mut text = match rows.is_empty() {
        true => "no MachineConfigPools found\n".to_owned(),
        false => printable_lines(&table(&rows, now)),
    };
    for pool in &report.pools {
        text += &one(pool, now);
    }
    if !report.without_pool.is_empty() {
        let names = report.without_pool.join(", ");
        text += &wrapped("\nin no pool: ", "  ", &escape_line(&names));
    }
    text + &warnings(&report.warnings)
}

fn printable_lines(text: &str) -> String {
    text.lines().map(|line| escape_line(line) + "\n").collect()
}

fn one(pool: &PoolReport, now: Timestamp) -> String {
    let count = |of: Option<u32>| of.unwrap_or_default();
    let away = count(pool.observed.unavailable_machine_count);
    let limit = pool
        .max_unavailable
        .map_or("no valid limit".to_owned(), |limit| {
            format!("maximum {limit}")
        });
    let paused = if pool.paused { ", paused" } else { "" };
    let head = format!("{}: {away} unavailable, {limit}{paused}", pool.name);
    let mut text = wrapped("\n", "  ", &escape_line(&head));
    if let Some(differs) = pool
        .reported
        .as_ref()
        .and_then(|reported| differs(&pool.observed, reported))
    {
        text += &wrapped("  ", "    ", &escape_line(&differs));
    }
    let cells: Vec<_> = pool.nodes.iter().map(|node| cells(node, now)).collect();
    let width = |column: usize| {
        let all = cells.iter().map(|cells| cells[column].chars().count());
        all.max().unwrap_or_default()
    };
    let widths = [width(0), width(1), width(2), width(3)];
    for (node, cells) in pool.nodes.iter().zip(&cells) {
        text += &line(node, cells, &widths);
    }
    text
}

/// The differences in the pool's published status; none if there are none. The config of a pool
/// during an update is the one that the controller last saw, so it is not compared.
fn differs(observed: &PoolRow, reported: &PoolRow) -> Option<String> {
    let now = Timestamp::UNIX_EPOCH;
    let (ours, theirs) = (observed.cells(now), reported.cells(now));
    let columns = machinist_pool::COLUMNS.iter().zip(ours.iter().zip(&theirs));
    let other: Vec<_> = columns
        .skip(2)
        .filter(|(_, (ours, theirs))| ours != theirs)
        .map(|(name, (_, theirs))| match theirs.as_str() {
            "" => format!("{name} nothing"),
            theirs => format!("{name} {theirs}"),
        })
        .collect();
    (!other.is_empty()).then(|| format!("differs in its status: {}", other.join(", ")))
}

fn cells(node: &NodePart, now: Timestamp) -> [String; 4] {
    let state = node.state.as_deref().unwrap_or("-");
    let mut state = state.to_owned();
    match (node.managed, node.cordoned_by) {
        (false, _) => state += ", not managed",
        (_, Some("other")) => state += ", cordoned",
        (_, None) if !node.ready => state += ", not ready",
        _ => {}
    }
    let short = |config: &Option<String>| config.as_deref().map_or("-".to_owned(), brief);
    let (current, desired) = (short(&node.current), short(&node.desired));
    let config = match node.current == node.desired {
        true => current,
        false => format!("{current} → {desired}"),
    };
    let since = node.since.map(|since| age(since, now)).unwrap_or_default();
    [node.name.clone(), state, config, since]
}

/// One line; the blockers follow on the next lines if it would be too long.
fn line(node: &NodePart, cells: &[String; 4], widths: &[usize; 4]) -> String {
    let padded = cells.iter().zip(widths);
    let padded = padded.map(|(cell, &width)| format!("{:<width$}", escape_line(cell)));
    let head = format!("  {}", padded.collect::<Vec<_>>().join("  "));
    let blocked = node.blocked_by.iter().map(shown).collect::<Vec<_>>();
    let mut more = blocked.join(", ");
    if let Some(reason) = node.reason.as_ref().filter(|_| node.degraded) {
        more = reason.clone();
    }
    let more = escape_line(&more);
    match more.is_empty() {
        true => format!("{}\n", head.trim_end()),
        false if head.chars().count() + 2 + more.chars().count() <= LINE_COLUMNS => {
            format!("{head}  {more}\n")
        }
        false => format!(
            "{}\n{}",
            head.trim_end(),
            wrapped("      ", "      ", &more)
        ),
    }
}
