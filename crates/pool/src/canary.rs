//! Decides how many canary nodes may be granted.

use jiff::Timestamp;

use machinist_base::text::join_limited;

use super::{
    Hold, HoldReason,
    hold::MAX_NAMED_NODES,
    pool_ledger::PoolLedger,
    rollout_inputs::{Recheck, later},
};

/// How many nodes the canary rule lets a rollout grant now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CanaryAllowance {
    /// The rule is fulfilled; only the limit counts.
    All,
    /// This many, beside those that are being updated.
    Some { count: usize, updating: Vec<String> },
    /// None until the time has passed for which canary nodes run the new config.
    Soaking(Timestamp),
}

impl CanaryAllowance {
    pub(super) fn permits(&self) -> bool {
        matches!(self, Self::All | Self::Some { count: 1.., .. })
    }

    /// Takes one grant from the allowance.
    pub(super) fn take(&mut self) {
        if let Self::Some { count, .. } = self {
            *count = count.saturating_sub(1);
        }
    }

    /// Why nothing is granted, if nothing is.
    pub(super) fn hold(&self) -> Option<Hold> {
        match self {
            Self::Soaking(until) => Some(Hold::new(
                HoldReason::CanarySoaking,
                format!("the canary nodes run the new config until {until}"),
            )),
            Self::Some { count: 0, updating } => {
                let nodes = match updating.is_empty() {
                    true => String::new(),
                    false => format!(": {}", join_limited(updating.iter(), MAX_NAMED_NODES)),
                };
                let message = format!("the canary nodes are updated first{nodes}");
                Some(Hold::new(HoldReason::CanaryInProgress, message))
            }
            Self::All | Self::Some { .. } => None,
        }
    }
}

/// Computes the allowance of a pool. Grants of its rollout may be recorded on any of the pools.
pub(super) fn canary_allowance(
    ledger: &PoolLedger<'_>,
    ledgers: &[PoolLedger<'_>],
    now: Timestamp,
    recheck: &mut Recheck,
) -> CanaryAllowance {
    let Some(rollout) = &ledger.rollout else {
        return CanaryAllowance::Some {
            count: 0,
            updating: Vec::new(),
        };
    };
    if ledger.settings.canary_nodes == 0 {
        return CanaryAllowance::All;
    }
    if let Some(passed) = rollout.canary_passed {
        let until = later(passed, ledger.settings.canary_soak);
        recheck.at(until);
        return match until <= now {
            true => CanaryAllowance::All,
            false => CanaryAllowance::Soaking(until),
        };
    }
    let grants = ledgers.iter().flat_map(|it| &it.grants.grants);
    let active = grants.filter(|grant| ledger.is_current(grant));
    let mut updating: Vec<String> = active.map(|grant| grant.node.clone()).collect();
    updating.sort_unstable();
    let left = ledger.settings.canary_nodes.saturating_sub(rollout.done);
    CanaryAllowance::Some {
        count: left.saturating_sub(updating.len()),
        updating,
    }
}
