//! Reviews the grants that a pool lists: which have ended, which were acknowledged, and which nodes failed.
//!
//! This is bookkeeping on marks that stay true; it never frees a grant because a node looks done.

use std::collections::HashMap;

use jiff::Timestamp;

use machinist_kube_api::{
    NodeUpdateState, NodeView,
    keys::{condition, protocol},
};

use super::{
    Action, Grant, GrantEnd, GrantOutcome, NodeChange, NodeFacts, NodeRead, PoolKind,
    action::patch,
    grant_progress::{GrantProgress, is_acknowledged},
    pool_ledger::PoolLedger,
    rollout_inputs::{Recheck, RolloutInputs, later},
};

/// The position of a node among all pools.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberPosition {
    pub(super) pool: usize,
    /// Its position among the pool's members.
    pub(super) member: usize,
}

/// A node and its pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexedNode<'a> {
    pub(super) node: &'a NodeView,
    /// `None` for nodes in no pool.
    pub(super) facts: Option<&'a NodeFacts>,
    /// `None` if it is in no pool.
    pub(super) position: Option<MemberPosition>,
}

impl IndexedNode<'_> {
    /// How far a grant on this node is.
    pub(super) fn progress(&self, grant: &Grant) -> GrantProgress {
        match self.facts {
            Some(facts) => GrantProgress::with_marks(grant, self.node, facts.marks(self.node)),
            None => GrantProgress::of(grant, Some(self.node)),
        }
    }
}

/// Nodes with grants, by name.
pub(super) type NodeIndex<'a> = HashMap<&'a str, IndexedNode<'a>>;

/// A change of a pool's rollout that a grant of another pool's record causes: control plane and arbiter share one.
#[derive(Clone, Debug)]
pub(super) enum RolloutEvent {
    /// A grant ended.
    Ended {
        pool: String,
        node: String,
        /// The end mark, and whether a failure was counted while the grant was open.
        end: GrantEnd,
        is_counted: bool,
    },
    /// A node failed within its grant.
    Failed { pool: String, target: String },
}

/// Reviews the grants of one pool.
pub(super) fn review(
    ledger: &mut PoolLedger<'_>,
    inputs: &RolloutInputs<'_>,
    nodes: &NodeIndex<'_>,
    recheck: &mut Recheck,
    actions: &mut Vec<Action>,
) -> Vec<RolloutEvent> {
    let mut events = Vec::new();
    for mut grant in std::mem::take(&mut ledger.grants.grants) {
        let indexed = nodes.get(grant.node.as_str());
        let node = indexed.map(|it| it.node);
        if ledger.is_released(&grant) {
            ledger.is_changed = true;
            ledger.freed.push((grant, None));
            continue;
        }
        match indexed.map_or(GrantProgress::Missing, |it| it.progress(&grant)) {
            GrantProgress::Ended(end) if needs_reset(&end, node) => {
                actions.extend(node.map(reset_desired));
            }
            GrantProgress::Ended(end) => {
                ledger.is_changed = true;
                events.push(RolloutEvent::Ended {
                    pool: grant.pool.clone(),
                    node: grant.node.clone(),
                    end: end.clone(),
                    is_counted: grant.failed,
                });
                ledger.freed.push((grant, Some(end)));
                continue;
            }
            GrantProgress::Missing if is_free_without_node(ledger, &grant, inputs, actions) => {
                ledger.is_changed = true;
                ledger.freed.push((grant, None));
                continue;
            }
            GrantProgress::Recreated if is_live(&grant, inputs, actions) => {
                let uid = node.map_or_else(String::new, |node| node.uid.clone());
                ledger.is_changed = true;
                grant.uid = uid;
                grant.time = inputs.now;
            }
            GrantProgress::Open { acknowledged, .. } => {
                ledger.is_changed |= acknowledged && !grant.acknowledged;
                grant.acknowledged = acknowledged;
                let failed = node.is_some_and(|node| has_failed(&grant, node, inputs, recheck));
                let began = node.is_some_and(|node| is_acknowledged(&grant, node));
                if began && failed && !grant.failed {
                    ledger.is_changed = true;
                    grant.failed = true;
                    events.push(RolloutEvent::Failed {
                        pool: grant.pool.clone(),
                        target: grant.target.clone(),
                    });
                }
            }
            GrantProgress::Unreadable(error) => {
                let text = machinist_base::error_chain::chain(&error);
                ledger
                    .warnings
                    .push(format!("grant {} keeps its slot: {text}", grant.id));
            }
            GrantProgress::Missing | GrantProgress::Recreated | GrantProgress::Occupied => {}
        }
        ledger.grants.grants.push(grant);
    }
    events
}

/// Whether a node that did not begin still has the target as its desired config. It would count as updating; its slot is
/// free when the controller has set the desired config back.
fn needs_reset(end: &GrantEnd, node: Option<&NodeView>) -> bool {
    let did_not_begin = matches!(
        end.outcome,
        GrantOutcome::Declined | GrantOutcome::Cancelled
    );
    let is_desired = node.is_some_and(|node| {
        node.desired_config() == Some(end.target.as_str())
            && node.current_config() != node.desired_config()
    });
    did_not_begin && is_desired
}

fn reset_desired(node: &NodeView) -> Action {
    let desired = node.current_config().map(str::to_owned);
    patch(node, NodeChange::ResetDesired { desired })
}

/// Whether the Node of a grant was read after the grant. If not, its UID may be the one before the grant's, and the grant
/// would be given back to a Node that is gone.
fn is_live(grant: &Grant, inputs: &RolloutInputs<'_>, actions: &mut Vec<Action>) -> bool {
    let is_live = inputs.node_reads.get(grant.node.as_str()) == Some(&NodeRead::Exists);
    if !is_live {
        request_read(grant, actions);
    }
    is_live
}

fn request_read(grant: &Grant, actions: &mut Vec<Action>) {
    let read = Action::ReadNode(grant.node.clone());
    if !actions.contains(&read) {
        actions.push(read);
    }
}

/// Whether a grant is free although its Node was not read. The machine of a deleted Node may still be a member of the
/// quorum and in the middle of its update; a worker that is not in the cluster disrupts nothing.
fn is_free_without_node(
    ledger: &mut PoolLedger<'_>,
    grant: &Grant,
    inputs: &RolloutInputs<'_>,
    actions: &mut Vec<Action>,
) -> bool {
    if inputs.node_reads.get(grant.node.as_str()) != Some(&NodeRead::Absent) {
        request_read(grant, actions);
        return false;
    }
    if PoolKind::of(ledger.pool) != PoolKind::ControlPlane {
        return true;
    }
    ledger.warnings.push(format!(
        "node {} was deleted while it was granted; its slot of the quorum is held until it is back or grant {} is \
         released",
        grant.node, grant.id
    ));
    false
}

/// Whether a node has failed on the target of its grant. A drain that pods block is no failure.
pub(super) fn has_failed(
    grant: &Grant,
    node: &NodeView,
    inputs: &RolloutInputs<'_>,
    recheck: &mut Recheck,
) -> bool {
    is_failing_on(node, &grant.target) || is_reboot_overdue(node, inputs, recheck)
}

/// Whether a node reports a failed update to `target`, also one that was rolled back.
pub(super) fn is_failing_on(node: &NodeView, target: &str) -> bool {
    let state = node.state();
    let degraded = matches!(
        state,
        Some(NodeUpdateState::Degraded | NodeUpdateState::Unreconcilable)
    );
    degraded && node.desired_config() == Some(target) && node.current_config() != Some(target)
}

/// Whether a machine that reboots for an update has not been ready for longer than the limit.
fn is_reboot_overdue(node: &NodeView, inputs: &RolloutInputs<'_>, recheck: &mut Recheck) -> bool {
    let reboots = node.annotation(protocol::POST_CONFIG_ACTION) == Some("Rebooting");
    let ready = node.condition(condition::KUBELET_READY);
    let Some(since) = ready.filter(|it| it.status != "True" && reboots) else {
        return false;
    };
    let Some(since) = since.last_transition_time else {
        return false;
    };
    let due = later(since, inputs.reboot_time_limit);
    recheck.at(due);
    due <= inputs.now
}

/// Applies events to the rollouts of the pools that they concern.
///
/// A grant that is recorded on another object than the rollout, because its node changed its pool, is left out: the two
/// could not be written at once, and would be counted again if one of the writes is refused.
pub(super) fn apply(
    events: &[(String, RolloutEvent)],
    ledgers: &mut [PoolLedger<'_>],
    now: Timestamp,
) {
    for (recorded_on, event) in events {
        let pool = match event {
            RolloutEvent::Ended { pool, .. } | RolloutEvent::Failed { pool, .. } => pool,
        };
        let ledger = ledgers
            .iter_mut()
            .find(|it| it.pool.name == *pool && it.fence == recorded_on);
        let Some(ledger) = ledger else {
            continue;
        };
        let Some(rollout) = &mut ledger.rollout else {
            continue;
        };
        let before = rollout.clone();
        match event {
            RolloutEvent::Failed { target, .. } if *target == rollout.target => {
                rollout.failures += 1;
            }
            RolloutEvent::Ended {
                node,
                end,
                is_counted,
                ..
            } if end.target == rollout.target => {
                let is_new_failure = end.outcome.is_failure() && !is_counted;
                rollout.failures += usize::from(is_new_failure);
                rollout.done += usize::from(end.outcome == GrantOutcome::Done);
                if end.outcome == GrantOutcome::Cancelled {
                    rollout.record_stepped_aside(node);
                }
            }
            _ => {}
        }
        if rollout.done >= ledger.settings.canary_nodes && rollout.canary_passed.is_none() {
            rollout.canary_passed = Some(now);
        }
        ledger.is_rollout_changed |= *rollout != before;
    }
}
