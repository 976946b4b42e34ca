//! Builds the patches of pools: the record of grants with the history, and the rendered config.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use machinist_cluster::json_patch::{JsonPatch, annotation_path};
use machinist_kube_api::{
    PoolView,
    keys::{self, pool_annotation},
};
use machinist_pool::{Grant, GrantEnd, NodeUpdate, PoolWrite, RolloutHistory};

/// Builds the patch for a write of a pool's record; `pool` is the version that was decided on.
pub(crate) fn record_patch(pool: &PoolView, write: &PoolWrite, now: Timestamp) -> Value {
    let mut patch = annotations_patch(pool, &write.uid, &write.resource_version);
    let grants = write.grants.to_annotation();
    patch.set(annotation_path(pool_annotation::GRANTS), grants);
    if let Some(rollouts) = &write.rollouts {
        let text = rollouts.to_annotation();
        patch.set(annotation_path(pool_annotation::ROLLOUT), text);
    }
    if let Some(history) = updated_history(pool, write, now) {
        set_history(&mut patch, &history);
    }
    patch.into_value()
}

/// Builds the patch of the history of another pool, whose rollout or grants the write concerns as well: that of an
/// arbiter pool, whose record is on the control plane's, or the pool of a node that has changed pools.
pub(crate) fn history_patch(pool: &PoolView, write: &PoolWrite, now: Timestamp) -> Option<Value> {
    let history = updated_history(pool, write, now)?;
    let mut patch = annotations_patch(pool, &pool.uid, &pool.resource_version);
    set_history(&mut patch, &history);
    Some(patch.into_value())
}

/// The other pools whose history a write concerns.
pub(crate) fn other_pools(write: &PoolWrite) -> BTreeSet<&str> {
    let edges = write.begins.iter().chain(&write.ends);
    let freed = write.freed.iter().filter(|(_, end)| end.is_some());
    let mut pools: BTreeSet<&str> = edges.map(|edge| edge.pool.as_str()).collect();
    pools.extend(freed.map(|(grant, _)| grant.pool.as_str()));
    pools.remove(write.pool.as_str());
    pools
}

/// Builds the patch that makes a rendered config the target of its pool.
pub(crate) fn configuration_patch(pool: &PoolView, config: &str, sources: &[String]) -> Value {
    let mut patch = JsonPatch::of_version(&pool.uid, &pool.resource_version);
    let sources = sources.iter().map(String::as_str);
    patch.set("/spec/configuration", configuration(config, sources));
    patch.into_value()
}

/// The config of a pool, as a reference with its sources.
pub(crate) fn configuration<'s>(config: &str, sources: impl Iterator<Item = &'s str>) -> Value {
    let reference = |name: &str| {
        json!({
            "apiVersion": format!("{}/v1", keys::GROUP),
            "kind": "MachineConfig",
            "name": name,
        })
    };
    let mut value = reference(config);
    let sources: Vec<Value> = sources.map(reference).collect();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("source".to_owned(), Value::Array(sources));
    }
    value
}

fn annotations_patch(pool: &PoolView, uid: &str, resource_version: &str) -> JsonPatch {
    let mut patch = JsonPatch::of_version(uid, resource_version);
    if !pool.has_annotations {
        let no_annotations = json!({});
        patch.set("/metadata/annotations", no_annotations);
    }
    patch
}

fn set_history(patch: &mut JsonPatch, history: &RolloutHistory) {
    let text = history.to_annotation();
    patch.set(annotation_path(pool_annotation::HISTORY), text);
}

/// The history of a pool after a write; `None` if it does not change.
fn updated_history(pool: &PoolView, write: &PoolWrite, now: Timestamp) -> Option<RolloutHistory> {
    let known = RolloutHistory::of(pool);
    let mut history = known.clone();
    for (grant, end) in &write.freed {
        if let Some(end) = end.as_ref().filter(|_| grant.pool == pool.name) {
            history.record(&end.target, &node_update(grant, end));
        }
    }
    for edge in write.ends.iter().filter(|it| it.pool == pool.name) {
        history.end(&edge.target, &edge.result, &edge.skipped, now);
    }
    for edge in write.begins.iter().filter(|it| it.pool == pool.name) {
        history.begin(&edge.target, now);
    }
    (history != known).then_some(history)
}

/// The update that a grant permitted. Its time begins with the grant, because the Node does not record when it was
/// acknowledged. Phases are unknown if the update did not begin, or if an older agent carried it out.
fn node_update(grant: &Grant, end: &GrantEnd) -> NodeUpdate {
    let total = end.time.duration_since(grant.time);
    let times = end.times.clone().unwrap_or_default();
    let phases = times.phases.into_iter();
    NodeUpdate {
        node: grant.node.clone(),
        outcome: end.outcome.clone(),
        code: end.reason.clone(),
        total: total.max(SignedDuration::ZERO),
        blocked: seconds(times.blocked),
        phases: phases.map(|(name, time)| (name, seconds(time))).collect(),
    }
}

fn seconds(count: u64) -> SignedDuration {
    SignedDuration::from_secs(i64::try_from(count).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
