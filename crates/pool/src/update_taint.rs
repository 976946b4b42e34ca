//! Decides which nodes have the taint `UpdateInProgress:PreferNoSchedule`: those that a rollout will still disrupt, so
//! that evicted pods go where they can stay.

use std::collections::HashSet;

use machinist_kube_api::NodeView;

use super::{
    Action, NodeChange,
    action::patch,
    hold::HoldStrength,
    node_summary::has_update_taint,
    pool_ledger::PoolLedger,
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
    let granted: HashSet<&str> = grants.map(|grant| grant.node.as_str()).collect();
    let members = ledgers.iter().flat_map(members_with_wish);
    let members = members.filter(|(node, has, wanted)| {
        has != wanted && (!wanted || !granted.contains(node.name.as_str()))
    });
    // A node that left all pools is not updated by any.
    let others = without_pool
        .iter()
        .map(|node| (*node, has_update_taint(node), false));
    let changes = members
        .chain(others)
        .filter(|(_, has, wanted)| has != wanted);
    let changes = changes.map(|(node, _, wanted)| (node.name.as_str(), node, wanted));
    let mut changes: Vec<_> = changes.collect();
    let by_name = |a: &(&str, &NodeView, bool), b: &(&str, &NodeView, bool)| a.0.cmp(b.0);
    // Only the first by name are sorted: a rollout begins with one change for every node.
    if changes.len() > inputs.taint_patches {
        recheck.at(later(inputs.now, jiff::SignedDuration::from_secs(1)));
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

/// The nodes of a pool whose taint is decided, whether they have it, and whether they are to have it. A pool that is frozen leaves taints alone.
fn members_with_wish<'a>(
    ledger: &'a PoolLedger<'_>,
) -> impl Iterator<Item = (&'a NodeView, bool, bool)> {
    let is_frozen = ledger.strength() == Some(HoldStrength::Freezes);
    let may_grant = ledger.may_place();
    let members = ledger.members.iter().filter(move |_| !is_frozen);
    members.map(move |member| {
        let is_to_update = !member.is_desired && !member.is_skipped;
        let wanted = may_grant && is_to_update && ledger.target.is_some();
        (member.node, member.has_taint, wanted)
    })
}
