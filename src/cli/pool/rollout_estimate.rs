//! Estimates the rollout of a pool: its waves, and the time of one node.

use anyhow::{anyhow, bail};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::phase_times::{PhaseTime, phase_times};
use super::report::{PoolObjects, PoolProgress, PoolRollout};
use machinist_kube_api::{PoolView, keys::pool_annotation};
use machinist_pool::{
    DurationHistogram, NODE_UPDATE_TIME, PoolSize, RebootKind, RolloutHistory, RolloutSettings,
    RolloutStates, cluster_update_time, max_unavailable, node_update_time, rollout_time,
};

/// Begins the note about a held rollout.
pub(super) const HELD_NOTE: &str = "the rollout is held now";

const START_NOT_READ: &str = "it is not known whether an UpgradeConfig names a time before which nothing begins: you may \
    not read it";

/// The document of `estimate`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RolloutEstimate {
    api_version: &'static str,
    kind: &'static str,
    pub(super) pool: String,
    pub(super) target: Option<String>,
    pub(super) machines: usize,
    /// How many nodes are not on the target.
    pub(super) pending: usize,
    /// How many nodes are updated at once.
    pub(super) at_most: usize,
    /// How many nodes are updated first.
    pub(super) canary_nodes: usize,
    canary_soak_seconds: i64,
    pub(super) node_seconds: i64,
    pub(super) basis: EstimateBasis,
    /// The phases of the recorded updates, longest first.
    pub(super) phases: Vec<PhaseTime>,
    pub(super) waves: Vec<RolloutWave>,
    pub(super) total_seconds: i64,
    /// The total with the median of all recorded updates; none without records.
    pub(super) typical_seconds: Option<i64>,
    /// The time of an OpenShift cluster update with such a pool, by the formula of its documentation.
    pub(super) cluster_seconds: i64,
    /// What may lengthen it.
    pub(super) notes: Vec<String>,
}

/// Where the time of one node comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EstimateBasis {
    /// `History` or `Formula`.
    pub(super) kind: &'static str,
    /// How many successful updates the pool has recorded.
    pub(super) successes: u64,
    pub(super) text: String,
}

/// Nodes that are updated at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RolloutWave {
    pub(super) nodes: usize,
    /// The nodes whose place in the order is known.
    pub(super) names: Vec<String>,
    pub(super) is_canary: bool,
    pub(super) starts_after_seconds: i64,
    pub(super) ends_after_seconds: i64,
}

/// Estimates the rollout of a pool; `reboot` is what the change of a node needs.
pub(super) fn estimate(
    objects: &PoolObjects,
    name: &str,
    reboot: RebootKind,
    now: Timestamp,
) -> anyhow::Result<RolloutEstimate> {
    let report = PoolProgress::of(objects, Some(name), now);
    let view = objects.pools.iter().find(|pool| pool.name == name);
    let (Some(view), Some(pool)) = (view, report.pools.first()) else {
        bail!("MachineConfigPool {name} not found");
    };
    let settings = RolloutSettings::of(view).map_err(|mistakes| {
        let all: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
        anyhow!("{}", all.join("; "))
    })?;
    let at_most = max_unavailable(view, pool.machines)?.at_most;
    let history = RolloutHistory::of(view);
    let node_time = node_update_time(&history, &settings, reboot);
    let canary = canary_nodes(objects, pool, &settings)?;
    let waves = waves(pool, at_most, canary, &settings, node_time);
    let end = |waves: &[RolloutWave]| waves.last().map_or(0, |wave| wave.ends_after_seconds);
    let recorded = recorded(&history);
    let typical = recorded.quantile(50).filter(|median| *median <= node_time);
    let typical = typical.map(|median| self::waves(pool, at_most, canary, &settings, median));
    let cluster = PoolSize {
        machines: pool.machines,
        at_most,
        node_time: NODE_UPDATE_TIME,
    };
    Ok(RolloutEstimate {
        api_version: "machinist.dev/v1",
        kind: "RolloutEstimate",
        pool: pool.name.clone(),
        target: pool.target.clone(),
        machines: pool.machines,
        pending: pool.machines - pool.updated,
        at_most,
        canary_nodes: canary,
        canary_soak_seconds: settings.canary_soak.as_secs(),
        node_seconds: node_time.as_secs(),
        basis: basis(&history, &recorded, reboot, node_time),
        phases: phase_times(&history),
        total_seconds: end(&waves),
        waves,
        typical_seconds: typical.map(|waves| end(&waves)),
        cluster_seconds: cluster_update_time(&[cluster]).as_secs(),
        notes: notes(view, pool, &settings, objects.start.is_some()),
    })
}

/// The times of all recorded successful updates.
fn recorded(history: &RolloutHistory) -> DurationHistogram {
    let mut times = DurationHistogram::default();
    for rollout in &history.rollouts {
        times.merge(&rollout.update_times);
    }
    times
}

fn basis(
    history: &RolloutHistory,
    recorded: &DurationHistogram,
    reboot: RebootKind,
    node_time: SignedDuration,
) -> EstimateBasis {
    let successes = recorded.count();
    let alike = match reboot {
        RebootKind::None => "without a reboot",
        RebootKind::Soft | RebootKind::Full => "with a reboot",
    };
    if history.expected_update_time(reboot).is_some() {
        return EstimateBasis {
            kind: "History",
            successes,
            text: format!(
                "nine of ten of the pool's last successful updates {alike} took no longer ({successes} recorded in all)"
            ),
        };
    }
    let none = match successes {
        0 => "no update of this pool is recorded".to_owned(),
        _ => format!("no update of this pool {alike} is recorded"),
    };
    EstimateBasis {
        kind: "Formula",
        successes,
        text: match node_time.saturating_sub(NODE_UPDATE_TIME).as_secs() {
            0 => format!("{none}; the change needs no reboot"),
            reboot => format!(
                "{none}: {} and {} for a reboot",
                duration(NODE_UPDATE_TIME.as_secs()),
                duration(reboot)
            ),
        },
    }
}

/// How many nodes must still update before all others.
fn canary_nodes(
    objects: &PoolObjects,
    pool: &PoolRollout,
    settings: &RolloutSettings,
) -> anyhow::Result<usize> {
    let pending = pool.machines - pool.updated;
    let mut rollout = None;
    // The rollout of an arbiter pool is recorded on the pool of the control plane.
    for recorded_on in &objects.pools {
        let states = RolloutStates::of(recorded_on)?;
        let found = states.rollouts.get(&pool.name).cloned();
        rollout = rollout.or(found.filter(|it| Some(&it.target) == pool.target.as_ref()));
    }
    Ok(match rollout {
        Some(rollout) if rollout.canary_passed.is_some() => 0,
        Some(rollout) => settings.canary_nodes.saturating_sub(rollout.done),
        None => settings.canary_nodes,
    }
    .min(pending))
}

/// The waves: canary nodes first, then the others, as many at once as the limit allows.
fn waves(
    pool: &PoolRollout,
    at_most: usize,
    canary: usize,
    settings: &RolloutSettings,
    node_time: SignedDuration,
) -> Vec<RolloutWave> {
    let granted = pool.nodes.iter().filter(|node| node.grant.is_some());
    let granted = granted.filter(|node| !node.node.updated);
    let granted = granted.map(|node| node.node.name.clone());
    let mut names = granted.chain(pool.next.iter().cloned());
    let pending = pool.machines - pool.updated;
    let mut waves = Vec::new();
    let mut start = 0;
    for (machines, is_canary) in [(canary, true), (pending - canary, false)] {
        let mut left = machines;
        while left > 0 {
            let nodes = left.min(at_most.max(1));
            let size = PoolSize {
                machines: nodes,
                at_most,
                node_time,
            };
            let end = start + rollout_time(&[size]).as_secs();
            waves.push(RolloutWave {
                nodes,
                names: names.by_ref().take(nodes).collect(),
                is_canary,
                starts_after_seconds: start,
                ends_after_seconds: end,
            });
            left -= nodes;
            start = end;
        }
        if is_canary && machines > 0 {
            start += settings.canary_soak.as_secs();
        }
    }
    waves
}

/// What the estimate does not contain.
fn notes(
    view: &PoolView,
    pool: &PoolRollout,
    settings: &RolloutSettings,
    is_start_known: bool,
) -> Vec<String> {
    let mut notes = Vec::new();
    if !is_start_known {
        notes.push(START_NOT_READ.to_owned());
    }
    if !settings.windows.windows.is_empty() {
        let annotation = pool_annotation::WINDOWS;
        notes.push(format!(
            "nodes start only in the maintenance windows of the pool ({annotation}); the time between them comes on top"
        ));
    }
    if let Some(held) = &pool.held {
        notes.push(format!("{HELD_NOTE}: {}: {}", held.code, held.message));
    }
    notes.extend(view.mistakes());
    notes
}

/// A number of seconds such as `1h 20m`.
pub(super) fn duration(seconds: i64) -> String {
    let units = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
    let mut left = seconds.max(0);
    let mut parts = Vec::new();
    for (unit, size) in units {
        if left / size > 0 {
            parts.push(format!("{}{unit}", left / size));
        }
        left %= size;
    }
    match parts.is_empty() {
        true => "0s".to_owned(),
        false => parts.join(" "),
    }
}
