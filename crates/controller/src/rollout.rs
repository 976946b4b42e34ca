//! Carries out decisions about rollouts, in the order in which the model of `machinist_pool` does: reads until a decision
//! requests none, then one write of a pool and a new decision, and patches of Nodes when no write is left.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    budget_recovery::BudgetGates,
    eviction_blockers::EvictionBlockers,
    monitor::ControllerMonitor,
    node_patch_sender::NodePatchSender,
    pool_patch,
    requests::LeaderRequests,
    rollout_log::{log_write, new_grants},
    rollout_view::RolloutView,
};
use machinist_base::{clock::Clock, error_chain::chain};
use machinist_cluster::ClusterError;
use machinist_kube_api::{EventReason, PoolView, keys::pool_annotation};
use machinist_pool::{Action, Decision, PoolWrite, RebootKind, RolloutStart, decide};

/// How many reads and writes of pools follow each other before watch events are taken into account.
const MAX_STEPS_PER_TURN: usize = 64;

/// Inputs of a decision beside pools and Nodes.
#[derive(Debug)]
pub(crate) struct RolloutFacts<'f> {
    pub(crate) own_node: Option<&'f str>,
    pub(crate) other_grantor: Option<&'f str>,
    pub(crate) configs: BTreeSet<&'f str>,
    /// By pool; a reboot of the machine is assumed for the others.
    pub(crate) reboots: BTreeMap<String, RebootKind>,
    pub(crate) start: &'f RolloutStart,
}

/// The end of a turn.
#[derive(Debug)]
pub(crate) struct RolloutTurn {
    /// The last decision.
    pub(crate) decision: Decision,
    /// Whether more is to be done without waiting for an event.
    pub(crate) is_unfinished: bool,
    /// When blockers are read again because a node was passed over.
    pub(crate) blockers_due: Option<Instant>,
}

/// Carries out decisions.
#[derive(Debug)]
pub(crate) struct Rollout {
    clock: Clock,
    monitor: ControllerMonitor,
    sender: NodePatchSender,
}

impl Rollout {
    pub(crate) fn new(clock: Clock, monitor: ControllerMonitor) -> Self {
        Self {
            sender: NodePatchSender::new(clock.clone()),
            clock,
            monitor,
        }
    }

    /// Decides and carries out, until only patches of Nodes were left and are sent.
    pub(crate) async fn turn(
        &mut self,
        view: &mut RolloutView,
        facts: &RolloutFacts<'_>,
        blockers: &mut EvictionBlockers,
        requests: &LeaderRequests,
    ) -> Result<RolloutTurn, ClusterError> {
        for _ in 0..MAX_STEPS_PER_TURN {
            let decision = self.decision(view, facts, blockers, requests);
            if depends_on_blockers(&decision, view) && blockers.next_read() <= Instant::now() {
                blockers.read(requests, self.clock.now()).await?;
                continue;
            }
            let mut patches = Vec::new();
            let mut step = None;
            for action in &decision.actions {
                match action {
                    Action::PatchNode(patch) => patches.push(patch),
                    other => step = step.or(Some(other)),
                }
            }
            match step {
                Some(step) => self.carry_out(step, view, requests).await?,
                None => {
                    let is_unfinished =
                        self.sender.send(&patches, view, blockers, requests).await?;
                    return Ok(RolloutTurn {
                        is_unfinished,
                        blockers_due: is_any_blocked(&decision).then(|| blockers.next_read()),
                        decision,
                    });
                }
            }
        }
        Ok(RolloutTurn {
            decision: self.decision(view, facts, blockers, requests),
            is_unfinished: true,
            blockers_due: None,
        })
    }

    fn decision(
        &mut self,
        view: &RolloutView,
        facts: &RolloutFacts<'_>,
        blockers: &EvictionBlockers,
        requests: &LeaderRequests,
    ) -> Decision {
        let began = Instant::now();
        let now = self.clock.now();
        let gates = self.sender.recovery.gates(view, blockers, now);
        report_overdue(&gates, view, requests);
        let mut inputs = view.inputs(now);
        inputs.gates = &gates.closed;
        inputs.blockers = Some(blockers.by_node());
        inputs.own_node = facts.own_node;
        inputs.other_grantor = facts.other_grantor;
        inputs.configs = Some(facts.configs.clone());
        let reboots = facts.reboots.iter();
        inputs.reboots = reboots.map(|(pool, kind)| (pool.as_str(), *kind)).collect();
        inputs.start = facts.start.clone();
        inputs.taint_patches = self.sender.taints.left();
        let mut decision = decide(&inputs);
        let rechecks = gates.next_opening.into_iter().chain(decision.recheck);
        decision.recheck = rechecks.min();
        self.monitor.metrics.decided(began.elapsed());
        decision
    }

    /// Carries out one read, or the write of one pool.
    async fn carry_out(
        &self,
        action: &Action,
        view: &mut RolloutView,
        requests: &LeaderRequests,
    ) -> Result<(), ClusterError> {
        match action {
            Action::ListNodes => view.listed_nodes(requests.nodes().await?),
            Action::ReadPool(name) => view.read_pool(name, requests.pool(name).await?),
            Action::ReadNode(name) => view.read_node(name, requests.node(name).await?),
            Action::WritePool(write) => self.write_pool(write, view, requests).await?,
            Action::PatchNode(_) => {}
        }
        Ok(())
    }

    async fn write_pool(
        &self,
        write: &PoolWrite,
        view: &mut RolloutView,
        requests: &LeaderRequests,
    ) -> Result<(), ClusterError> {
        let now = self.clock.now();
        let Some(pool) = view.pool(&write.pool) else {
            return Ok(());
        };
        let operations = pool_patch::record_patch(pool, write, now);
        let known = pool.annotations.get(pool_annotation::GRANTS).cloned();
        match requests.patch_pool(&write.pool, &operations).await {
            Ok(pool) => {
                let returned = pool.annotations.get(pool_annotation::GRANTS);
                let is_kept = write.grants.is_kept(returned.map(String::as_str));
                log_write(write, known.as_deref(), is_kept);
                if is_kept {
                    self.monitor.metrics.wrote(write);
                    requests.events().wrote(write, known.as_deref(), view);
                }
                view.wrote_pool(pool, write.is_rebuild, (!is_kept).then_some(now));
                self.write_other_histories(write, view, requests, now).await;
                Ok(())
            }
            Err(error) if error.is_conflict() || error.is_not_found() => {
                tracing::debug!("{}", chain(&error));
                let live = requests.pool(&write.pool).await?;
                let is_same = |it: &PoolView| it.resource_version == write.resource_version;
                let is_unchanged = live.as_ref().is_some_and(is_same);
                view.read_pool(&write.pool, live);
                // The version is not why it was refused: the object itself is invalid.
                if is_unchanged { Err(error) } else { Ok(()) }
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the history of other pools that the write concerns. It only serves estimates, rollbacks and people, so that
    /// a failure is not repeated.
    async fn write_other_histories(
        &self,
        write: &PoolWrite,
        view: &mut RolloutView,
        requests: &LeaderRequests,
        now: Timestamp,
    ) {
        for name in pool_patch::other_pools(write) {
            let pool = view.pool(name);
            let patch = pool.and_then(|pool| pool_patch::history_patch(pool, write, now));
            let Some(operations) = patch else {
                continue;
            };
            match requests.patch_pool(name, &operations).await {
                Ok(pool) => view.put_pool(name, Some(pool)),
                Err(error) => tracing::warn!("{}", chain(&error)),
            }
        }
    }
}

/// Reports budgets that have not recovered in time.
fn report_overdue(gates: &BudgetGates, view: &RolloutView, requests: &LeaderRequests) {
    for (pool, message) in &gates.overdue {
        tracing::warn!(pool, "{message}; the rollout goes on");
        if let Some(pool) = view.pool(pool) {
            let events = requests.events();
            events.emit(pool, EventReason::BudgetNotRecovered, message.clone());
        }
    }
}

/// Whether other blockers could change the decision: it grants updates, or passes a node over.
fn depends_on_blockers(decision: &Decision, view: &RolloutView) -> bool {
    let grants = |action: &Action| match action {
        Action::WritePool(write) => {
            let pool = view.pool(&write.pool);
            let known = pool.and_then(|pool| pool.annotations.get(pool_annotation::GRANTS));
            new_grants(write, known.map(String::as_str))
                .next()
                .is_some()
        }
        _ => false,
    };
    decision.actions.iter().any(grants) || is_any_blocked(decision)
}

fn is_any_blocked(decision: &Decision) -> bool {
    decision.pools.iter().any(|pool| pool.is_any_blocked)
}
