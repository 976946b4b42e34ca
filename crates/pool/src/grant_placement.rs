//! Moves grants that a pool lists: places them on Nodes, withdraws them, gives them a new target, asks agents to cancel.

use std::collections::HashSet;

use jiff::SignedDuration;

use machinist_kube_api::{NodeUpdateState, NodeView, keys::annotation};

use super::{
    Action, Grant, GrantKind, GrantOutcome, NodeChange,
    action::patch,
    canary::canary_allowance,
    grant_end::{grant_ends, with_end},
    grant_progress::GrantProgress,
    grant_review::{IndexedNode, NodeIndex, is_failing_on},
    node_summary::has_update_taint,
    pool_ledger::PoolLedger,
    rollout_inputs::{Recheck, RolloutInputs, later},
};

/// How long an agent may take to acknowledge a grant.
pub(super) const ACKNOWLEDGE_TIME: SignedDuration = SignedDuration::from_mins(10);

/// What happens to a grant next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrantStep {
    Nothing,
    Place,
    Withdraw,
    Retarget,
    RequestCancel,
}

/// Returns the requests for the grants in the record of the pool at `at`.
pub(super) fn move_grants(
    at: usize,
    ledgers: &mut [PoolLedger<'_>],
    inputs: &RolloutInputs<'_>,
    nodes: &NodeIndex<'_>,
    recheck: &mut Recheck,
) -> Vec<Action> {
    let mut actions = Vec::new();
    let count = ledgers.get(at).map_or(0, |it| it.grants.grants.len());
    let mut retargeted = HashSet::new();
    for index in 0..count {
        let grant = ledgers.get(at).and_then(|it| it.grants.grants.get(index));
        let Some(grant) = grant.cloned() else {
            continue;
        };
        let Some(indexed) = nodes.get(grant.node.as_str()) else {
            continue;
        };
        // A node that changed its pool follows the target of its new one within its old grant.
        let home = indexed.position.map_or(at, |it| it.pool);
        let step = match ledgers.get(home) {
            Some(home) => step(&grant, indexed, home, ledgers, inputs, recheck),
            None => GrantStep::Nothing,
        };
        match step {
            GrantStep::Nothing => {}
            GrantStep::Place => actions.extend(place(&grant, indexed.node)),
            GrantStep::Withdraw => actions.extend(withdraw(&grant, indexed.node, inputs)),
            GrantStep::RequestCancel => actions.push(patch(
                indexed.node,
                NodeChange::RequestCancel {
                    target: grant.target.clone(),
                },
            )),
            GrantStep::Retarget => {
                retarget(at, index, home, ledgers);
                retargeted.insert(grant.id);
            }
        }
    }
    let Some(ledger) = ledgers.get(at) else {
        return actions;
    };
    confirm(ledger, actions)
}

/// Holds back placements that the pool, as it was read, does not prove: they follow the write or a live read.
fn confirm(ledger: &PoolLedger<'_>, mut actions: Vec<Action>) -> Vec<Action> {
    let is_proven = ledger.read.is_confirmed && !ledger.is_changed;
    let all = actions.len();
    if !is_proven {
        actions.retain(|action| {
            !matches!(action, Action::PatchNode(patch)
                if matches!(patch.change, NodeChange::PlaceGrant { .. }))
        });
    }
    if actions.len() < all && !ledger.is_changed {
        actions.push(Action::ReadPool(ledger.pool.name.clone()));
    }
    actions
}

fn step(
    grant: &Grant,
    indexed: &IndexedNode<'_>,
    home: &PoolLedger<'_>,
    ledgers: &[PoolLedger<'_>],
    inputs: &RolloutInputs<'_>,
    recheck: &mut Recheck,
) -> GrantStep {
    let node = indexed.node;
    let GrantProgress::Open {
        placed,
        acknowledged,
    } = indexed.progress(grant)
    else {
        return GrantStep::Nothing;
    };
    let is_config = grant.kind == GrantKind::Config;
    let may_place = home.may_place() && indexed.position.is_some();
    let is_outdated = is_config && home.target != Some(grant.target.as_str());
    let is_skipped =
        home.target.is_some() && node.annotation(annotation::SKIP_ROLLOUT) == home.target;
    if acknowledged {
        return match () {
            () if is_outdated
                && may_place
                && !is_skipped
                && is_failing_on(node, &grant.target)
                && canary_allowance(home, ledgers, inputs.now, recheck).permits() =>
            {
                GrantStep::Retarget
            }
            () if !placed && is_config && may_place => GrantStep::Place,
            () if may_place && steps_aside(grant, node, home, inputs, recheck) => {
                GrantStep::RequestCancel
            }
            () => GrantStep::Nothing,
        };
    }
    let due = later(grant.time, ACKNOWLEDGE_TIME);
    recheck.at(due);
    let is_moot = is_config && is_done(node, &grant.target);
    let has_left = is_config && indexed.position.is_none();
    let expired = due <= inputs.now;
    match grant.kind {
        GrantKind::Unknown(_) => GrantStep::Nothing,
        _ if inputs.other_grantor.is_some() => GrantStep::Nothing,
        _ if expired || is_moot || has_left || (is_config && is_skipped) => GrantStep::Withdraw,
        _ if is_outdated && home.may_place() => GrantStep::Withdraw,
        GrantKind::Config if !placed && may_place => GrantStep::Place,
        _ => GrantStep::Nothing,
    }
}

fn is_done(node: &NodeView, target: &str) -> bool {
    node.current_config() == Some(target)
        && node.desired_config() == Some(target)
        && node.state() == Some(NodeUpdateState::Done)
}

/// Whether the node is to make room for another one, because pods have blocked its drain for as long as the pool allows:
/// once per rollout, and only before anything changed, which the agent decides.
fn steps_aside(
    grant: &Grant,
    node: &NodeView,
    home: &PoolLedger<'_>,
    inputs: &RolloutInputs<'_>,
    recheck: &mut Recheck,
) -> bool {
    let (Some(after), Some(rollout)) = (home.settings.step_aside_after, &home.rollout) else {
        return false;
    };
    let refused = node.annotation(annotation::CANCEL_REFUSED);
    let refused = refused.and_then(|text| text.split_once(": "));
    let is_asked =
        node.cancel().is_some() || refused.is_some_and(|(config, _)| config == grant.target);
    let is_full = rollout.stepped_aside.len() >= super::rollout_state::MAX_STEPPED_ASIDE_NODES;
    if node.annotation(annotation::BLOCKED_BY).is_none()
        || is_asked
        || is_full
        || rollout.has_stepped_aside(&grant.node)
        || is_failing_on(node, &grant.target)
    {
        return false;
    }
    let due = later(grant.time, after);
    recheck.at(due);
    due <= inputs.now
}

fn retarget(at: usize, index: usize, home: usize, ledgers: &mut [PoolLedger<'_>]) {
    let Some(home) = ledgers.get(home) else {
        return;
    };
    let Some(target) = home.target else { return };
    let target = target.to_owned();
    let pool = home.pool.name.clone();
    let rollback = home.is_rollback();
    let Some(ledger) = ledgers.get_mut(at) else {
        return;
    };
    if let Some(grant) = ledger.grants.grants.get_mut(index) {
        grant.target = target;
        grant.pool = pool;
        grant.failed = false;
        grant.rollback = rollback;
        ledger.is_changed = true;
    }
}

fn place(grant: &Grant, node: &NodeView) -> Option<Action> {
    let change = NodeChange::PlaceGrant {
        grant: grant.to_annotation(),
        desired: grant.target.clone(),
        removes_taint: has_update_taint(node),
    };
    Some(patch(node, change))
}

fn withdraw(grant: &Grant, node: &NodeView, inputs: &RolloutInputs<'_>) -> Option<Action> {
    let ends = grant_ends(node).ok()?;
    let placed = Grant::of_node(node).ok()?;
    let end = grant.end(GrantOutcome::Withdrawn, "NotAcknowledged", inputs.now);
    let is_placed = placed.is_some_and(|it| it.id == grant.id);
    // A Node that was created again may have lost the grant and kept its target.
    let is_desired = node.desired_config() == Some(grant.target.as_str());
    let change = NodeChange::WithdrawGrant {
        id: grant.id.clone(),
        ends: with_end(&ends, end),
        is_placed,
        resets_desired: is_placed || is_desired,
        desired: node.current_config().map(str::to_owned),
    };
    Some(patch(node, change))
}
