//! Counts the nodes of a pool by their state.

use super::{NodePoolStatus, PoolMembers};
use machinist_kube_api::PoolView;

/// The number of nodes in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineCounts {
    /// Managed nodes of the pool.
    pub machines: u32,
    /// Those that are updated and ready.
    pub ready: u32,
    /// Those on the pool's config.
    pub updated: u32,
    /// Those that are not ready, or whose update is in progress.
    pub unavailable: u32,
    /// Those that are degraded.
    pub degraded: u32,
}

impl MachineCounts {
    /// Counts the nodes of a pool.
    pub fn of(members: &PoolMembers<'_>) -> Self {
        let target = target(members.pool);
        let standings = members
            .nodes
            .iter()
            .map(|node| NodePoolStatus::of(node, target));
        let mut counts = Self::default();
        for standing in standings.filter(|standing| standing.managed) {
            counts.machines += 1;
            counts.updated += u32::from(standing.updated);
            counts.ready += u32::from(standing.updated && standing.ready);
            counts.unavailable += u32::from(standing.unavailable);
            counts.degraded += u32::from(standing.degraded);
        }
        counts
    }

    /// Returns whether no node of the pool has an update left to do.
    pub fn all_updated(&self) -> bool {
        self.updated == self.machines && self.ready == self.machines && self.unavailable == 0
    }
}

pub(super) fn target(pool: &PoolView) -> Option<&str> {
    let name = pool.spec.configuration.name.as_str();
    (!name.is_empty()).then_some(name)
}
