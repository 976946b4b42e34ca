//! Builds the row of `oc get mcp` from what the nodes publish.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::{MachineCounts, NodePoolStatus, PoolMembers, conditions, machine_counts::target};
use machinist_kube_api::PoolView;

/// The columns, in their order.
pub const COLUMNS: [&str; 10] = [
    "NAME",
    "CONFIG",
    "UPDATED",
    "UPDATING",
    "DEGRADED",
    "MACHINECOUNT",
    "READYMACHINECOUNT",
    "UPDATEDMACHINECOUNT",
    "DEGRADEDMACHINECOUNT",
    "AGE",
];

/// The row of one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolRow {
    /// NAME.
    pub name: String,
    /// CONFIG: the previous config while the pool updates, and the target once it is updated.
    pub config: String,
    /// UPDATED; `None` if it is not published.
    pub updated: Option<bool>,
    /// UPDATING.
    pub updating: Option<bool>,
    /// DEGRADED.
    pub degraded: Option<bool>,
    /// MACHINECOUNT.
    pub machine_count: Option<u32>,
    /// READYMACHINECOUNT.
    pub ready_machine_count: Option<u32>,
    /// UPDATEDMACHINECOUNT.
    pub updated_machine_count: Option<u32>,
    /// Not a column of `oc get mcp`.
    pub unavailable_machine_count: Option<u32>,
    /// DEGRADEDMACHINECOUNT.
    pub degraded_machine_count: Option<u32>,
    /// The creation time, from which AGE is computed.
    pub created: Option<Timestamp>,
}

impl PoolRow {
    /// Builds the row from the pool's nodes.
    pub fn of(members: &PoolMembers<'_>) -> Self {
        let counts = MachineCounts::of(members);
        let conditions = conditions(members, &counts);
        let is = |kind| {
            let found = conditions.iter().find(|it| it.kind == kind);
            found.map(|it| it.status)
        };
        Self {
            name: members.pool.name.clone(),
            config: config(members, counts.all_updated()),
            updated: is("Updated"),
            updating: is("Updating"),
            degraded: is("Degraded"),
            machine_count: Some(counts.machines),
            ready_machine_count: Some(counts.ready),
            updated_machine_count: Some(counts.updated),
            unavailable_machine_count: Some(counts.unavailable),
            degraded_machine_count: Some(counts.degraded),
            created: members.pool.created,
        }
    }

    /// Builds the row from the pool's status; `None` if no controller has written one.
    pub fn from_status(pool: &PoolView) -> Option<Self> {
        let status = &pool.status;
        status.is_written().then(|| Self {
            name: pool.name.clone(),
            config: status.configuration.name.clone(),
            updated: status.is("Updated"),
            updating: status.is("Updating"),
            degraded: status.is("Degraded"),
            machine_count: status.machine_count,
            ready_machine_count: status.ready_machine_count,
            updated_machine_count: status.updated_machine_count,
            unavailable_machine_count: status.unavailable_machine_count,
            degraded_machine_count: status.degraded_machine_count,
            created: pool.created,
        })
    }

    /// Formats the cells as `oc get mcp` prints them at the time `now`.
    pub fn cells(&self, now: Timestamp) -> [String; 10] {
        let word = |is: Option<bool>| match is {
            Some(true) => "True".to_owned(),
            Some(false) => "False".to_owned(),
            None => String::new(),
        };
        let number = |count: Option<u32>| count.map_or_else(String::new, |count| count.to_string());
        [
            self.name.clone(),
            self.config.clone(),
            word(self.updated),
            word(self.updating),
            word(self.degraded),
            number(self.machine_count),
            number(self.ready_machine_count),
            number(self.updated_machine_count),
            number(self.degraded_machine_count),
            self.created
                .map_or_else(|| "<unknown>".to_owned(), |created| age(created, now)),
        ]
    }
}

/// Returns the pool's current or previous config: its target if all nodes are updated, else the config in its
/// status, else the most frequent current config among the nodes that are not updated.
fn config(members: &PoolMembers<'_>, all_updated: bool) -> String {
    let pool = members.pool;
    let target = target(pool);
    let stored = pool.status.configuration.name.as_str();
    match target {
        Some(target) if all_updated => return target.to_owned(),
        _ if !all_updated && !stored.is_empty() => return stored.to_owned(),
        _ => {}
    }
    let mut counted: BTreeMap<&str, usize> = BTreeMap::new();
    for node in &members.nodes {
        let counts = all_updated || !NodePoolStatus::of(node, target).updated;
        if let Some(current) = node.current_config().filter(|_| counts) {
            *counted.entry(current).or_default() += 1;
        }
    }
    // Picks the first by name among equals: the map is ordered, and `max_by_key` returns the last of the maximal
    // elements of the reversed iterator.
    let most = counted.into_iter().rev().max_by_key(|(_, count)| *count);
    most.map_or_else(String::new, |(name, _)| name.to_owned())
}

/// Formats rows as kubectl prints them, with three spaces between columns.
pub fn table(rows: &[PoolRow], now: Timestamp) -> String {
    let cells: Vec<_> = rows.iter().map(|row| row.cells(now)).collect();
    let head = COLUMNS.map(str::to_owned);
    let lines = || std::iter::once(&head).chain(&cells);
    let width = |column: usize| lines().map(|line| line[column].chars().count()).max();
    let widths: Vec<_> = (0..COLUMNS.len())
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut text = String::new();
    for line in lines() {
        let padded = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        text += padded.collect::<Vec<_>>().join("   ").trim_end();
        text.push('\n');
    }
    text
}

/// Formats a duration as kubectl prints ages: the shorter it is, the finer the units.
pub fn age(from: Timestamp, to: Timestamp) -> String {
    const MINUTE_SECS: i64 = 60;
    const HOUR_SECS: i64 = 60 * MINUTE_SECS;
    const DAY_SECS: i64 = 24 * HOUR_SECS;
    const YEAR_SECS: i64 = 365 * DAY_SECS;
    let seconds = to.duration_since(from).as_secs().max(0);
    let both = |large: i64, one: char, small: i64, two: char| match seconds % large / small {
        0 => format!("{}{one}", seconds / large),
        rest => format!("{}{one}{rest}{two}", seconds / large),
    };
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 => both(MINUTE_SECS, 'm', 1, 's'),
        600..10_800 => format!("{}m", seconds / MINUTE_SECS),
        10_800..28_800 => both(HOUR_SECS, 'h', MINUTE_SECS, 'm'),
        28_800..172_800 => format!("{}h", seconds / HOUR_SECS),
        172_800..691_200 => both(DAY_SECS, 'd', HOUR_SECS, 'h'),
        691_200..63_072_000 => format!("{}d", seconds / DAY_SECS),
        63_072_000..252_288_000 => both(YEAR_SECS, 'y', DAY_SECS, 'd'),
        _ => format!("{}y", seconds / YEAR_SECS),
    }
}
