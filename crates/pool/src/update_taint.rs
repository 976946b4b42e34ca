//! Decides which nodes have the taint `UpdateInProgress:PreferNoSchedule`: those that a rollout will still disrupt, so
//! that evicted pods go where they can stay.

use std::collections::HashMap;

use machinist_kube_api::NodeView;

use super::{
    Action, NodeChange,
    action::patch,
    hold::HoldStrength,
    node_summary::{has_update_taint, name_hash},
    pool_ledger::PoolLedger,
    pool_member::PoolMember,
    rollout_inputs::{Recheck, RolloutInputs, later},
};

/// How many Nodes may get or lose the taint per second.
pub const MAX_TAINT_PATCHES_PER_SECOND: usize = 50;

/// Returns the patches of taints, as many as the inputs allow.
pub(super) fn taint_patches(
    ledgers: &[PoolLedger<'_>],
    without_pool: &[&NodeView],
    inputs: &RolloutInputs<'_>,
    recheck: &mut Recheck,
) -> Vec<Action> {
    if inputs.other_grantor.is_some() {
        return Vec::new();
    }
    // A node that is to be granted gets its patch with the grant.
    let grants = ledgers.iter().flat_map(|it| &it.grants.grants);
    let granted: HashMap<u64, &str> = grants
        .map(|grant| (name_hash(&grant.node), grant.node.as_str()))
        .collect();
    // The hash of each name is known; to compute it again takes longer than the rest.
    let is_granted = |member: &PoolMember<'_>| {
        granted.get(&member.facts.name_hash) == Some(&member.node.name.as_str())
    };
    let members = ledgers.iter().flat_map(members_with_wish);
    let members = members
        .filter(|(member, wanted)| member.has_taint != *wanted && (!wanted || !is_granted(member)));
    let members = members.map(|(member, wanted)| (member.node, wanted));
    // A node that left all pools is not updated by any.
    let others = without_pool.iter().filter(|node| has_update_taint(node));
    let changes = members.chain(others.map(|node| (*node, false)));
    let mut changes = changes.map(|(node, wanted)| (node.name.as_str(), node, wanted));
    let next_second = later(inputs.now, jiff::SignedDuration::from_secs(1));
    if inputs.taint_patches == 0 {
        if changes.next().is_some() {
            recheck.at(next_second);
        }
        return Vec::new();
    }
    let mut changes: Vec<_> = changes.collect();
    let by_name = |a: &(&str, &NodeView, bool), b: &(&str, &NodeView, bool)| a.0.cmp(b.0);
    // Only the first by name are sorted: a rollout begins with one change for every node.
    if changes.len() > inputs.taint_patches {
        recheck.at(next_second);
        changes.select_nth_unstable_by(inputs.taint_patches, by_name);
        changes.truncate(inputs.taint_patches);
    }
    changes.sort_unstable_by(by_name);
    let patches = changes.into_iter().map(|(_, node, wanted)| {
        let change = match wanted {
            true => NodeChange::AddTaint,
            false => NodeChange::RemoveTaint,
        };
        patch(node, change)
    });
    patches.collect()
}

/// The nodes of a pool whose taint is decided, and whether they are to have it. A pool that is frozen leaves taints alone.
fn members_with_wish<'l, 'a>(
    ledger: &'l PoolLedger<'a>,
) -> impl Iterator<Item = (&'l PoolMember<'a>, bool)> {
    let is_frozen = ledger.strength() == Some(HoldStrength::Freezes);
    let may_grant = ledger.may_place();
    let members = ledger.members.iter().filter(move |_| !is_frozen);
    members.map(move |member| {
        let is_to_update = !member.is_desired && !member.is_skipped;
        let wanted = may_grant && is_to_update && ledger.target.is_some();
        (member, wanted)
    })
}
