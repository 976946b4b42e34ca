//! Decides what happens to all pools: the one function that an adapter calls.
//!
//! The decision depends on its inputs alone, and not on their order. It requests; the adapter carries out, and calls it
//! again with what it then knows. Every request carries the version that it was decided on, so that two leaders, a
//! lost response or an outdated cache lead to a refused request and never to one grant too many.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::{
    Action, Decision, PoolDecision, PoolMembers, RolloutEdge, RolloutStates, UnavailableCause,
    grant_placement::move_grants,
    grant_review::{IndexedNode, MemberPosition, NodeIndex, apply, review},
    granting::{GrantReport, grant_in_group},
    hold::HoldReason,
    limit_group::{LimitGroup, hold_of, limit_groups, writes},
    membership::split,
    node_summary::name_hash,
    pool_ledger::PoolLedger,
    rollout_conditions::rollout_conditions,
    rollout_holds::{PoolWindow, add_holds},
    rollout_inputs::{Recheck, RolloutInputs},
    update_taint::taint_patches,
};

/// Decides about all pools.
pub fn decide(inputs: &RolloutInputs<'_>) -> Decision {
    let split = split(inputs.pools, inputs.nodes);
    let mut recheck = Recheck::new(inputs.now);
    let mut actions = Vec::new();
    let groups = limit_groups(&split.pools);
    let mut ledgers = read_ledgers(&groups, &split.pools, inputs);
    let nodes = index(&ledgers, &split.without);
    let mut events = Vec::new();
    if inputs.other_grantor.is_none() {
        for ledger in &mut ledgers {
            let found = review(ledger, inputs, &nodes, &mut recheck, &mut actions);
            let name = ledger.pool.name.clone();
            events.extend(found.into_iter().map(|event| (name.clone(), event)));
        }
    }
    apply(&events, &mut ledgers, inputs.now);
    count_unavailable(&mut ledgers, &nodes);
    for group in &groups {
        share_holds(group, &mut ledgers);
    }
    let windows: Vec<PoolWindow> = ledgers
        .iter_mut()
        .map(|ledger| add_holds(ledger, inputs, &mut recheck))
        .collect();
    for at in 0..ledgers.len() {
        actions.extend(move_grants(at, &mut ledgers, inputs, &nodes, &mut recheck));
    }
    let mut reports: HashMap<usize, GrantReport> = HashMap::new();
    for group in &groups {
        let granted = grant_in_group(
            group,
            &mut ledgers,
            &windows,
            inputs,
            &mut recheck,
            &mut actions,
        );
        reports.extend(granted);
    }
    for ledger in &mut ledgers {
        complete(ledger, inputs);
    }
    actions.extend(taint_patches(
        &ledgers,
        &split.without,
        inputs,
        &mut recheck,
    ));
    if inputs.other_grantor.is_none() {
        actions.extend(groups.iter().flat_map(|group| writes(group, &ledgers)));
    }
    Decision {
        pools: decisions(&ledgers, &reports),
        actions: in_order(actions),
        recheck: recheck.earliest(),
    }
}

/// Reads every pool. The rollouts of a group are recorded on the pool that fences it.
fn read_ledgers<'a>(
    groups: &[LimitGroup],
    pools: &[PoolMembers<'a>],
    inputs: &'a RolloutInputs<'a>,
) -> Vec<PoolLedger<'a>> {
    let mut fences: Vec<_> = pools.iter().map(|members| members.pool).collect();
    for group in groups {
        for at in &group.pools {
            if let (Some(slot), Some(fence)) = (fences.get_mut(*at), pools.get(group.fence)) {
                *slot = fence.pool;
            }
        }
    }
    let with_fence = pools.iter().zip(fences);
    with_fence
        .map(|(members, fence)| {
            PoolLedger::new(members, &fence.name, &RolloutStates::of(fence), inputs)
        })
        .collect()
}

fn index<'a>(
    ledgers: &[PoolLedger<'a>],
    without: &[&'a machinist_kube_api::NodeView],
) -> NodeIndex<'a> {
    // Few nodes have grants. Reading the names of all takes longer than the rest.
    let grants = ledgers.iter().flat_map(|it| &it.grants.grants);
    let granted: BTreeSet<u64> = grants.map(|grant| name_hash(&grant.node)).collect();
    if granted.is_empty() {
        return NodeIndex::new();
    }
    let members = ledgers.iter().enumerate().flat_map(|(at, ledger)| {
        let members = ledger.members.iter().enumerate();
        let members = members.filter(|(_, it)| granted.contains(&it.facts.name_hash));
        members.map(move |(member, it)| IndexedNode {
            node: it.node,
            facts: Some(it.facts),
            position: Some(MemberPosition { pool: at, member }),
        })
    });
    let others = without.iter();
    let others = others.filter(|node| granted.contains(&name_hash(&node.name)));
    let others = others.map(|node| IndexedNode {
        node,
        facts: None,
        position: None,
    });
    let indexed = members.chain(others);
    indexed.map(|it| (it.node.name.as_str(), it)).collect()
}

/// Determines which members count against their limits, after grants were freed.
fn count_unavailable(ledgers: &mut [PoolLedger<'_>], nodes: &NodeIndex<'_>) {
    let grants = ledgers.iter().flat_map(|it| &it.grants.grants);
    let granted = grants.filter_map(|grant| nodes.get(grant.node.as_str())?.position);
    let granted: Vec<_> = granted.collect();
    for at in granted {
        let ledger = ledgers.get_mut(at.pool);
        if let Some(member) = ledger.and_then(|it| it.members.get_mut(at.member)) {
            member.cause = Some(UnavailableCause::Granted);
        }
    }
}

/// A record that cannot be read or is not kept holds all pools that share its limit, as does a limit that cannot be
/// applied.
fn share_holds(group: &LimitGroup, ledgers: &mut [PoolLedger<'_>]) {
    let members = group.pools.iter().filter_map(|at| ledgers.get(*at));
    let mut shared: Vec<_> = members
        .flat_map(|ledger| &ledger.holds)
        .filter(|hold| hold.reason == HoldReason::GrantsUnreadable)
        .cloned()
        .collect();
    match group.limit(ledgers) {
        Ok(limit) => {
            if let Some(fence) = ledgers.get_mut(group.fence) {
                fence.warnings.extend(limit.warning);
            }
        }
        Err(error) => shared.push(hold_of(&error)),
    }
    let is_not_kept = ledgers
        .get(group.fence)
        .is_some_and(|it| it.read.is_not_kept);
    for at in &group.pools {
        if let Some(ledger) = ledgers.get_mut(*at) {
            ledger.read.is_not_kept |= is_not_kept;
            for hold in &shared {
                ledger.hold(hold.reason, hold.message.clone());
            }
        }
    }
}

/// Records that all nodes of a pool are on the target, but for those that an operator skips, and no grant is left.
fn complete(ledger: &mut PoolLedger<'_>, inputs: &RolloutInputs<'_>) {
    let is_pending = ledger.left() > 0 || ledger.members.is_empty();
    let left_out = ledger.left_out();
    let target = ledger.target;
    let mut grants = ledger.grants.grants.iter();
    let has_grant = grants.any(|grant| grant.pool == ledger.pool.name);
    let Some(rollout) = &mut ledger.rollout else {
        return;
    };
    let is_current = target == Some(rollout.target.as_str());
    if is_pending || has_grant || !is_current || rollout.completed.is_some() {
        return;
    }
    rollout.completed = Some(inputs.now);
    rollout.left_out = left_out.len();
    let started = rollout.started.is_some().then(|| rollout.target.clone());
    if let Some(target) = started {
        let skipped = left_out.into_iter().map(str::to_owned).collect();
        ledger.ends = Some(RolloutEdge {
            skipped,
            ..ledger.edge(target, "Completed")
        });
    }
    ledger.is_rollout_changed |= !ledger.pool.spec.paused;
}

fn decisions(
    ledgers: &[PoolLedger<'_>],
    reports: &HashMap<usize, GrantReport>,
) -> Vec<PoolDecision> {
    // Pools of one limit record their grants on one of them.
    let grants = ledgers.iter().flat_map(|it| &it.grants.grants);
    let running = grants.filter(|grant| !grant.failed);
    let updating: HashSet<&str> = running.map(|grant| grant.pool.as_str()).collect();
    let each = ledgers.iter().enumerate().map(|(at, ledger)| {
        let report = reports.get(&at);
        let mut holds = ledger.holds.clone();
        holds.sort();
        let mut warnings = ledger.warnings.clone();
        warnings.sort();
        PoolDecision {
            pool: ledger.pool.name.clone(),
            target: ledger.target.map(str::to_owned),
            holds,
            conditions: rollout_conditions(
                ledger,
                updating.contains(ledger.pool.name.as_str()),
                report.is_some_and(|it| it.is_window_too_short),
            ),
            warnings,
            pending: ledger.pending(),
            next: report.map(|it| it.next.clone()).unwrap_or_default(),
            is_any_blocked: report.is_some_and(|it| it.is_any_blocked),
        }
    });
    each.collect()
}

/// Orders requests so that the same inputs in another order give the same decision.
fn in_order(mut actions: Vec<Action>) -> Vec<Action> {
    // The response of a write is a live read.
    let written: HashSet<String> = actions
        .iter()
        .filter_map(|action| match action {
            Action::WritePool(write) => Some(write.pool.clone()),
            _ => None,
        })
        .collect();
    actions.retain(|action| !matches!(action, Action::ReadPool(pool) if written.contains(pool)));
    actions.sort_by(|a, b| a.order().cmp(&b.order()));
    // Every patch of a Node tests its version, so that only the first one would succeed.
    actions.dedup_by(|next, first| match (&*next, &*first) {
        (Action::PatchNode(next), Action::PatchNode(first)) => next.node == first.node,
        (next, first) => next == first,
    });
    actions
}
