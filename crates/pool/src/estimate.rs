//! Estimates how long updates take.

use jiff::SignedDuration;

use super::{RebootKind, RolloutHistory, RolloutSettings};

/// How long OpenShift's documentation expects the part of a cluster update to take that precedes the nodes.
const CLUSTER_PART_TIME: SignedDuration = SignedDuration::from_mins(60);

/// How long a node takes at least, according to the same documentation.
pub const NODE_UPDATE_TIME: SignedDuration = SignedDuration::from_mins(5);

/// How long the reboot of a machine takes if nothing is known: more than 15 minutes are usual for physical machines,
/// one or two for virtual ones, and a node that is not finished when its window closes costs more than one that waits.
const REBOOT_TIME: SignedDuration = SignedDuration::from_mins(15);

/// How long a restart of user space takes.
const SOFT_REBOOT_TIME: SignedDuration = SignedDuration::from_mins(2);

/// Returns how long one node's update takes: the time within which nine of ten of the pool's last successes with such a
/// reboot, or without one, ended; if there are none, five minutes plus the reboot that the plan needs.
pub fn node_update_time(
    history: &RolloutHistory,
    settings: &RolloutSettings,
    reboot: RebootKind,
) -> SignedDuration {
    let reboot_time = || match reboot {
        RebootKind::None => SignedDuration::ZERO,
        RebootKind::Soft => SOFT_REBOOT_TIME,
        RebootKind::Full => settings.reboot_time.unwrap_or(REBOOT_TIME),
    };
    history
        .expected_update_time(reboot)
        .unwrap_or_else(|| NODE_UPDATE_TIME.saturating_add(reboot_time()))
}

/// The size of a pool for an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// Its nodes.
    pub machines: usize,
    /// How many of them are updated at once.
    pub at_most: usize,
    /// How long one node takes.
    pub node_time: SignedDuration,
}

/// Returns how long the nodes of pools that are updated side by side take.
pub fn rollout_time(pools: &[PoolSize]) -> SignedDuration {
    let times = pools.iter().map(|pool| {
        let rounds = pool.machines.div_ceil(pool.at_most.max(1));
        let rounds = i64::try_from(rounds).unwrap_or(i64::MAX);
        let seconds = pool.node_time.as_secs().saturating_mul(rounds);
        SignedDuration::from_secs(seconds)
    });
    times.max().unwrap_or(SignedDuration::ZERO)
}

/// Returns how long an update of a whole OpenShift cluster takes, by the formula of its documentation.
pub fn cluster_update_time(pools: &[PoolSize]) -> SignedDuration {
    CLUSTER_PART_TIME.saturating_add(rollout_time(pools))
}
