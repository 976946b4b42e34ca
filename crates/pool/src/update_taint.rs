//! Decides which nodes have the taint `UpdateInProgress:PreferNoSchedule`: those that a rollout will still disrupt, so
//! that evicted pods go where they can stay.

use std::collections::HashSet;

use machinist_kube_api::{NodeView, keys::taint};

use super::{
    Action, NodeChange,
    action::patch,
    grant_placement::TAINT_EFFECT,
    hold::HoldStrength,
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
    let members = members.filter(|(node, wanted)| !wanted || !granted.contains(&*node.name));
    // A node that left all pools is not updated by any.
    let others = without_pool.iter().map(|node| (*node, false));
    let changes = members.chain(others).filter_map(|(node, wanted)| {
        let has = node.has_taint(taint::UPDATE_IN_PROGRESS, TAINT_EFFECT);
        let change = match wanted {
            true => NodeChange::AddTaint,
            false => NodeChange::RemoveTaint,
        };
        (has != wanted).then_some((node, change))
    });
    let mut changes: Vec<_> = changes.collect();
    changes.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    if changes.len() > inputs.taint_patches {
        recheck.at(later(inputs.now, jiff::SignedDuration::from_secs(1)));
        changes.truncate(inputs.taint_patches);
    }
    changes
        .into_iter()
        .map(|(node, change)| patch(node, change))
        .collect()
}

/// The nodes of a pool whose taint is decided, with the decision. A pool that is frozen leaves taints alone.
fn members_with_wish<'a>(ledger: &'a PoolLedger<'_>) -> impl Iterator<Item = (&'a NodeView, bool)> {
    let is_frozen = ledger.strength() == Some(HoldStrength::Freezes);
    let may_grant = ledger.may_place();
    let members = ledger.members.iter().filter(move |_| !is_frozen);
    members.map(move |member| {
        let is_pending = !member.is_on_target && member.node.desired_config() != ledger.target;
        (
            member.node,
            may_grant && is_pending && ledger.target.is_some(),
        )
    })
}

/// Returns whether a node has the taint, for its removal when machinist is uninstalled or a pool is deleted.
pub fn has_update_taint(node: &NodeView) -> bool {
    node.has_taint(taint::UPDATE_IN_PROGRESS, TAINT_EFFECT)
}
