//! The pools that share one limit, and the one whose resource version fences it.

use std::collections::BTreeMap;

use super::{
    Action, BadLimit, Hold, HoldReason, PoolKind, PoolMembers, PoolWrite, RolloutStates,
    UnavailableLimit, pool_ledger::PoolLedger, unavailable_limit::max_unavailable_in_quorum,
};
use machinist_kube_api::keys::label;

/// Pools that share one limit, as positions. Every pool is in one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitGroup {
    /// The pool that lists the group's grants.
    pub(super) fence: usize,
    /// All pools; the arbiter's last, because it waits for the others.
    pub(super) pools: Vec<usize>,
}

/// Groups pools: control plane and arbiter nodes are one quorum, every other pool has a limit of its own.
pub(super) fn limit_groups(pools: &[PoolMembers<'_>]) -> Vec<LimitGroup> {
    let is_quorum = |at: &usize| {
        let members = pools.get(*at);
        members.is_some_and(|it| PoolKind::of(it.pool) == PoolKind::ControlPlane)
    };
    let (mut quorum, others): (Vec<_>, Vec<_>) = (0..pools.len()).partition(is_quorum);
    quorum.sort_by_key(|at| {
        let name = pools.get(*at).map_or("", |it| it.pool.name.as_str());
        let rank = match name {
            label::ROLE_MASTER => 0,
            label::ROLE_CONTROL_PLANE => 1,
            label::ROLE_ARBITER => 3,
            _ => 2,
        };
        (rank, name)
    });
    let quorum = quorum.first().map(|fence| LimitGroup {
        fence: *fence,
        pools: quorum.clone(),
    });
    let others = others.into_iter().map(|at| LimitGroup {
        fence: at,
        pools: vec![at],
    });
    quorum.into_iter().chain(others).collect()
}

impl LimitGroup {
    /// Returns the group's limit; it is that of the pool that fences it.
    pub(super) fn limit(&self, ledgers: &[PoolLedger<'_>]) -> Result<UnavailableLimit, BadLimit> {
        let machines = |at: usize| ledgers.get(at).map_or(0, |it| it.members.len());
        let members = self.pools.iter().map(|at| machines(*at)).sum();
        match ledgers.get(self.fence) {
            Some(fence) => max_unavailable_in_quorum(fence.pool, machines(self.fence), members),
            None => Ok(UnavailableLimit {
                at_most: 1,
                warning: None,
            }),
        }
    }

    /// Returns the limit of one pool within the group: an arbiter pool has one of its own beside the quorum's.
    pub(super) fn pool_limit(
        &self,
        ledger: &PoolLedger<'_>,
        group: &UnavailableLimit,
        members: usize,
    ) -> Result<usize, BadLimit> {
        match self.pools.len() {
            1 => Ok(group.at_most),
            _ => max_unavailable_in_quorum(ledger.pool, ledger.members.len(), members)
                .map(|limit| limit.at_most.min(group.at_most)),
        }
    }
}

/// Returns the writes of a group: one of the pool that fences it, with the rollouts of all, and one of every other pool
/// that still lists grants of its own.
pub(super) fn writes(group: &LimitGroup, ledgers: &[PoolLedger<'_>]) -> Vec<Action> {
    let members: Vec<_> = group
        .pools
        .iter()
        .filter_map(|at| Some((*at, ledgers.get(*at)?)))
        .collect();
    if members.iter().any(|(_, ledger)| ledger.is_unreadable()) {
        return Vec::new();
    }
    let begins = || {
        members
            .iter()
            .filter_map(|(_, ledger)| ledger.begins.clone())
    };
    let ends = || members.iter().filter_map(|(_, ledger)| ledger.ends.clone());
    let is_rollout_changed = members.iter().any(|(_, ledger)| ledger.is_rollout_changed);
    let rollouts = || {
        let all = members
            .iter()
            .filter_map(|(_, ledger)| Some((ledger.pool.name.clone(), ledger.rollout.clone()?)));
        RolloutStates {
            rollouts: all.collect(),
            rest: BTreeMap::new(),
        }
    };
    let changed = members
        .iter()
        .filter(|(at, ledger)| ledger.is_changed || (*at == group.fence && is_rollout_changed));
    let writes = changed.map(|(at, ledger)| {
        let is_fence = *at == group.fence;
        Action::WritePool(Box::new(PoolWrite {
            pool: ledger.pool.name.clone(),
            uid: ledger.pool.uid.clone(),
            resource_version: ledger.pool.resource_version.clone(),
            grants: ledger.grants.clone(),
            rollouts: is_fence.then(rollouts),
            freed: ledger.freed.clone(),
            found: ledger.found.clone(),
            is_rebuild: ledger.is_rebuild,
            begins: begins().filter(|_| is_fence).collect(),
            ends: ends().filter(|_| is_fence).collect(),
        }))
    });
    writes.collect()
}

/// Returns the hold of a limit that cannot be applied.
pub(super) fn hold_of(error: &BadLimit) -> Hold {
    let reason = match error {
        BadLimit::Malformed { .. } => HoldReason::LimitInvalid,
        BadLimit::Quorum { .. } => HoldReason::LimitAboveQuorum,
    };
    Hold::new(reason, error.to_string())
}
