//! Computes the status of a pool: OpenShift's counts and conditions, and the conditions of a rollout.

use std::collections::BTreeSet;

use jiff::{Timestamp, tz::TimeZone};
use serde_json::{Map, Value, json};

use crate::pool_patch::configuration;
use machinist_kube_api::{Condition, MAX_REASON_BYTES, MachineConfigPoolStatus, truncate_at_char};
use machinist_pool::{MachineCounts, PoolCondition, PoolMembers, conditions};

/// The condition that is true while no config can be rendered for a pool.
pub(crate) const RENDER_DEGRADED: &str = "RenderDegraded";

/// Whether a config could be rendered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RenderOutcome {
    pub(crate) is_degraded: bool,
    /// A stable code.
    pub(crate) reason: String,
    /// The MachineConfigs and fields that are refused.
    pub(crate) message: String,
}

/// The part of a status that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusScope {
    /// Everything that OpenShift's controllers write, and the conditions of rollouts.
    Whole,
    /// Only the conditions of rollouts: other controllers write the rest.
    RolloutConditions,
}

/// One condition as it is to be written.
struct WantedCondition<'c> {
    kind: &'c str,
    status: bool,
    reason: &'c str,
    message: &'c str,
}

/// Returns the merge patch that brings the status of a pool up to date; `None` if it is. Conditions of other writers are
/// kept, and those whose status does not change keep their transition time.
pub(crate) fn status_patch(
    members: &PoolMembers<'_>,
    rollout: &[PoolCondition],
    render: Option<&RenderOutcome>,
    scope: StatusScope,
    now: Timestamp,
) -> Option<Value> {
    let pool = members.pool;
    let is_whole = scope == StatusScope::Whole;
    let counts = MachineCounts::of(members);
    let computed = match is_whole {
        true => conditions(members, &counts),
        false => Vec::new(),
    };
    let mut wanted: Vec<WantedCondition<'_>> = computed
        .iter()
        .chain(rollout)
        .map(|it| WantedCondition {
            kind: it.kind,
            status: it.status,
            reason: it.reason,
            message: &it.message,
        })
        .collect();
    wanted.extend(render.filter(|_| is_whole).map(|it| WantedCondition {
        kind: RENDER_DEGRADED,
        status: it.is_degraded,
        reason: &it.reason,
        message: &it.message,
    }));
    let mut status = Map::new();
    if let Some(list) = merged_conditions(&pool.status.conditions, &wanted, now) {
        status.insert("conditions".to_owned(), list);
    }
    let known = &pool.status;
    if is_whole {
        status.extend(changed_counts(known, &counts));
    }
    let is_new_config =
        !pool.spec.configuration.name.is_empty() && pool.spec.configuration != known.configuration;
    if is_whole && counts.all_updated() && is_new_config {
        let found = &pool.spec.configuration;
        let sources = found.source.iter().map(|it| it.name.as_str());
        status.insert(
            "configuration".to_owned(),
            configuration(&found.name, sources),
        );
    }
    if is_whole && known.observed_generation != pool.generation {
        status.insert("observedGeneration".to_owned(), json!(pool.generation));
    }
    if status.is_empty() {
        return None;
    }
    Some(json!({
        "metadata": {"uid": pool.uid, "resourceVersion": pool.resource_version},
        "status": status,
    }))
}

/// The counts that differ from the known ones.
fn changed_counts(known: &MachineConfigPoolStatus, counts: &MachineCounts) -> Map<String, Value> {
    let numbers = [
        ("machineCount", known.machine_count, counts.machines),
        ("readyMachineCount", known.ready_machine_count, counts.ready),
        (
            "updatedMachineCount",
            known.updated_machine_count,
            counts.updated,
        ),
        (
            "unavailableMachineCount",
            known.unavailable_machine_count,
            counts.unavailable,
        ),
        (
            "degradedMachineCount",
            known.degraded_machine_count,
            counts.degraded,
        ),
    ];
    let changed = numbers
        .into_iter()
        .filter(|(_, known, count)| *known != Some(*count));
    changed
        .map(|(field, _, count)| (field.to_owned(), json!(count)))
        .collect()
}

/// The list of all conditions, those of other writers first; `None` if it does not change.
fn merged_conditions(
    known: &[Condition],
    wanted: &[WantedCondition<'_>],
    now: Timestamp,
) -> Option<Value> {
    let own: BTreeSet<&str> = wanted.iter().map(|it| it.kind).collect();
    let mut is_changed = false;
    let foreign = known.iter().filter(|it| !own.contains(it.kind.as_str()));
    let mut list: Vec<Value> = foreign
        .map(|it| {
            value(
                &it.kind,
                &it.status,
                &it.reason,
                &it.message,
                it.last_transition_time,
            )
        })
        .collect();
    for it in wanted {
        let status = if it.status { "True" } else { "False" };
        let message = truncate_at_char(it.message, MAX_REASON_BYTES);
        let before = known.iter().find(|known| known.kind == it.kind);
        let is_same = before.is_some_and(|before| {
            before.status == status && before.reason == it.reason && before.message == message
        });
        is_changed |= !is_same;
        let since = before
            .filter(|before| before.status == status)
            .and_then(|before| before.last_transition_time)
            .unwrap_or(now);
        list.push(value(it.kind, status, it.reason, message, Some(since)));
    }
    is_changed.then_some(Value::Array(list))
}

fn value(kind: &str, status: &str, reason: &str, message: &str, since: Option<Timestamp>) -> Value {
    json!({
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since.map(rfc3339),
    })
}

/// Formats a time as the API server does, in whole seconds.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    let time = time.to_zoned(TimeZone::UTC);
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests;
