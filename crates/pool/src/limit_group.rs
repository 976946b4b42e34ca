//! The pools that share one limit, and the one whose resource version fences it.

use super::{
    BadLimit, Hold, HoldReason, PoolKind, UnavailableLimit, pool_ledger::PoolLedger,
    unavailable_limit::max_unavailable_in_quorum,
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
pub(super) fn limit_groups(ledgers: &[PoolLedger<'_>]) -> Vec<LimitGroup> {
    let is_quorum = |at: &usize| {
        let ledger = ledgers.get(*at);
        ledger.is_some_and(|it| PoolKind::of(it.pool) == PoolKind::ControlPlane)
    };
    let (mut quorum, others): (Vec<_>, Vec<_>) = (0..ledgers.len()).partition(is_quorum);
    quorum.sort_by_key(|at| {
        let name = ledgers.get(*at).map_or("", |it| it.pool.name.as_str());
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

/// Returns the hold of a limit that cannot be applied.
pub(super) fn hold_of(error: &BadLimit) -> Hold {
    let reason = match error {
        BadLimit::Malformed { .. } => HoldReason::LimitInvalid,
        BadLimit::Quorum { .. } => HoldReason::LimitAboveQuorum,
    };
    Hold::new(reason, error.to_string())
}
