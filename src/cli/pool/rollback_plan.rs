//! Decides what `machinist rollback --pool` changes: the config to return to, the nodes that change, and whether a
//! rollout must be started for it.

use std::collections::BTreeMap;

use anyhow::{anyhow, bail};
use jiff::Timestamp;
use serde::Serialize;

use super::{
    change::PoolWriteArgs, decision::decision, pause::resume_value, render::MAX_NAMED_NODES,
};
use crate::cli::fleet::PoolNotFound;
use machinist_base::text::{counted, join_limited};
use machinist_cluster::{Cluster, fleet_queries, pool_commands};
use machinist_kube_api::{NodeView, PoolView, keys::pool_annotation};
use machinist_pool::{Hold, HoldReason, PoolDecision, RolloutHistory, RolloutStart, split};

/// The flags of `rollback` that concern pools.
#[derive(Debug)]
pub(in crate::cli) struct PoolRollback<'a> {
    pub(in crate::cli) pool: &'a str,
    /// How many configs to go back, or the name of one.
    pub(in crate::cli) to: &'a str,
    pub(in crate::cli) yes: bool,
    pub(in crate::cli) unpause: bool,
    pub(in crate::cli) write: &'a PoolWriteArgs,
}

/// What a rollback would change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RollbackPlan {
    /// The config that the pool runs now; none if none has been rendered.
    pub(super) from: Option<String>,
    pub(super) to: String,
    /// The nodes that change their config.
    pub(super) nodes: Vec<String>,
    /// How many nodes the pool has.
    pub(super) machines: usize,
    pub(super) unpauses: bool,
    /// Whether a stopped or first rollout must be started for it.
    pub(super) resumes: bool,
    /// The codes for which the rollout waits after that.
    pub(super) waits: Vec<WaitReason>,
    /// Whether nothing is left to write.
    #[serde(skip)]
    pub(super) is_done: bool,
}

/// A reason why no node begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct WaitReason {
    pub(super) code: &'static str,
    pub(super) message: String,
}

/// Reads the pool and its nodes, and decides what a rollback changes.
pub(super) async fn plan(
    cluster: &Cluster,
    args: &PoolRollback<'_>,
    now: Timestamp,
) -> anyhow::Result<RollbackPlan> {
    let pools = fleet_queries::pools(cluster).await?;
    if !pools.iter().any(|pool| pool.name == args.pool) {
        return Err(PoolNotFound::new(args.pool, pools).into());
    }
    let nodes = fleet_queries::nodes(cluster).await?;
    let to = chosen(&pools, &nodes, args)?;
    if !pool_commands::has_config(cluster, &to).await? {
        bail!(
            "MachineConfig {to} does not exist; pool {} keeps its config",
            args.pool
        );
    }
    let pool = pools.iter().find(|pool| pool.name == args.pool);
    if let Some(pool) = pool.filter(|pool| pool.spec.paused && !args.unpause) {
        let reason = pool.annotation(pool_annotation::PAUSE_REASON);
        let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
        bail!(
            "pool {} is paused{reason}, so that no node would roll back; --unpause unpauses it with the rollback",
            pool.name
        );
    }
    let start = cluster.rollout_start().await?.unwrap_or_default();
    planned(&pools, &nodes, args, &to, &start, now)
}

/// The config to return to.
fn chosen(
    pools: &[PoolView],
    nodes: &[NodeView],
    args: &PoolRollback<'_>,
) -> anyhow::Result<String> {
    let known = pools.iter().find(|it| it.name == args.pool);
    let pin = known.and_then(|it| it.annotation(pool_annotation::PINNED_CONFIG));
    if let (Some(pin), Ok(_)) = (pin, args.to.parse::<usize>()) {
        bail!(
            "pool {} is already pinned to {pin}; for another config: --to CONFIG, for the newest one: machinist \
             resume --pool {}",
            args.pool,
            args.pool
        );
    }
    let earlier = earlier(pools, nodes, args.pool);
    let listed = || match earlier.is_empty() {
        true => "it has run no other config".to_owned(),
        false => format!(
            "it ran, latest first: {}",
            join_limited(earlier.iter(), MAX_NAMED_NODES)
        ),
    };
    let found = match args.to.parse::<usize>() {
        Ok(back) => back.checked_sub(1).and_then(|back| earlier.get(back)),
        Err(_) => earlier.iter().find(|config| *config == args.to),
    };
    if let Some(config) = found {
        return Ok(config.clone());
    }
    let pool = args.pool;
    if target_of(pools, pool).as_deref() == Some(args.to) {
        if pin == Some(args.to) {
            return Ok(args.to.to_owned());
        }
        bail!(
            "{} is the present config of pool {pool}; to hold newer ones back: machinist pause --pool {pool}; {}",
            args.to,
            listed()
        );
    }
    Err(match args.to.parse::<usize>() {
        Ok(back) => anyhow!(
            "pool {pool} cannot go back {}; {}",
            counted(back, "config"),
            listed()
        ),
        Err(_) => anyhow!("pool {pool} has never run config {}; {}", args.to, listed()),
    })
}

/// The configs to return to: the last one that all nodes were on, then those of the history, newest first, then those
/// that nodes are still on. The present target is none of them.
fn earlier(pools: &[PoolView], nodes: &[NodeView], name: &str) -> Vec<String> {
    let split = split(pools, nodes);
    let Some(members) = split.pools.iter().find(|it| it.pool.name == name) else {
        return Vec::new();
    };
    let history = RolloutHistory::of(members.pool);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for config in members
        .nodes
        .iter()
        .filter_map(|node| node.current_config())
    {
        *counts.entry(config).or_default() += 1;
    }
    let mut present: Vec<_> = counts.into_iter().collect();
    present.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let rollouts = history.rollouts.iter().map(|it| it.target.as_str());
    let completed = members.pool.status.configuration.name.as_str();
    let all = std::iter::once(completed)
        .chain(rollouts.filter(|config| history.has_run(config)))
        .chain(present.into_iter().map(|(config, _)| config));
    let target = target_of(pools, name);
    let mut earlier: Vec<String> = Vec::new();
    for config in all.filter(|config| !config.is_empty()) {
        let is_target = target.as_deref() == Some(config);
        if !is_target && !earlier.iter().any(|known| known == config) {
            earlier.push(config.to_owned());
        }
    }
    earlier
}

/// The config that a pool's nodes are to run, with its pin.
pub(super) fn target_of(pools: &[PoolView], name: &str) -> Option<String> {
    let pool = pools.iter().find(|pool| pool.name == name)?;
    let rendered = Some(pool.spec.configuration.name.as_str()).filter(|it| !it.is_empty());
    let pinned = pool.annotation(pool_annotation::PINNED_CONFIG);
    pinned.or(rendered).map(str::to_owned)
}

/// What the controller would decide about the pinned pool.
fn planned(
    pools: &[PoolView],
    nodes: &[NodeView],
    args: &PoolRollback<'_>,
    to: &str,
    start: &RolloutStart,
    now: Timestamp,
) -> anyhow::Result<RollbackPlan> {
    let mut pinned = pools.to_vec();
    let set = |pools: &mut Vec<PoolView>, name: &str, value: &str| {
        for pool in pools.iter_mut().filter(|pool| pool.name == args.pool) {
            pool.annotations.insert(name.to_owned(), value.to_owned());
            pool.spec.paused = false;
        }
    };
    set(&mut pinned, pool_annotation::PINNED_CONFIG, to);
    let mut holds = decided(&pinned, nodes, args.pool, start, now)?.holds;
    let resumes = holds.iter().any(|hold| needs_resume(hold.reason));
    if resumes {
        set(&mut pinned, pool_annotation::RESUME, &resume_value(now));
        holds = decided(&pinned, nodes, args.pool, start, now)?.holds;
    }
    let split = split(&pinned, nodes);
    let members = split.pools.iter().find(|it| it.pool.name == args.pool);
    let members = members.map(|it| it.nodes.as_slice()).unwrap_or_default();
    let is_on_it =
        |node: &&NodeView| node.current_config() == Some(to) && node.desired_config() == Some(to);
    let changed = members.iter().filter(|node| !is_on_it(node));
    let before = pools.iter().find(|pool| pool.name == args.pool);
    let pin = before.and_then(|pool| pool.annotation(pool_annotation::PINNED_CONFIG));
    Ok(RollbackPlan {
        from: target_of(pools, args.pool),
        to: to.to_owned(),
        nodes: changed.map(|node| node.name.clone()).collect(),
        machines: members.len(),
        unpauses: before.is_some_and(|pool| pool.spec.paused),
        resumes,
        waits: holds.into_iter().map(WaitReason::from).collect(),
        is_done: pin == Some(to) && !resumes && !before.is_some_and(|pool| pool.spec.paused),
    })
}

impl From<Hold> for WaitReason {
    fn from(hold: Hold) -> Self {
        Self {
            code: hold.reason.as_str(),
            message: hold.message,
        }
    }
}

/// What the controller would decide about a pool.
pub(super) fn decided(
    pools: &[PoolView],
    nodes: &[NodeView],
    name: &str,
    start: &RolloutStart,
    now: Timestamp,
) -> anyhow::Result<PoolDecision> {
    let decision = decision(pools, nodes, start, now);
    let mut pools = decision.pools.into_iter();
    let found = pools.find(|it| it.pool == name);
    found.ok_or_else(|| anyhow!("no decision about pool {name}"))
}

/// Whether only a new value of `machinist.dev/resume` ends this hold.
fn needs_resume(reason: HoldReason) -> bool {
    matches!(
        reason,
        HoldReason::FirstRollout
            | HoldReason::StoppedAfterFailures
            | HoldReason::CanaryFailed
            | HoldReason::StartDeadlineMissed
    )
}
