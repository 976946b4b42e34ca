//! Decides when a drain stops waiting for a pod.
//!
//! The caller accumulates the time: seconds in which the drain could make progress because the API
//! server was reachable, summed over restarts. After a limit the pod is deleted with its own grace
//! period, and a pod whose containers have ended is not waited for. The API object is never
//! force-deleted while containers run, and no finalizer is removed.

use std::time::Duration;

use super::Pod;

/// How long to wait before blocked pods are deleted. None means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForceLimits {
    /// For pods that match a disruption budget.
    pub with_budget: Option<Duration>,
    /// For all other pods, which only a refusal or a slow termination blocks.
    pub without_budget: Option<Duration>,
}

/// The action for a pod that is still on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForceAction {
    /// None beyond the regular drain.
    Wait,
    /// Delete it, with its own grace period.
    Delete,
    /// It has ended and only its object remains: continue without it, and report that.
    LeaveBehind,
}

impl ForceLimits {
    /// One limit for every pod: the setting `drain.forceAfter`.
    pub fn after(limit: Option<Duration>) -> Self {
        Self {
            with_budget: limit,
            without_budget: limit,
        }
    }

    /// Limits of an UpgradeConfig: `PDBForceDrainTimeout` in minutes for pods with a budget, the
    /// operator's `nodeDrain.timeOut` in minutes for those without.
    pub fn managed_upgrade(force_minutes: Option<u32>, drain_minutes: Option<u32>) -> Self {
        let minutes = |minutes: u32| Duration::from_secs(60 * u64::from(minutes));
        Self {
            with_budget: force_minutes.map(minutes),
            without_budget: drain_minutes.map(minutes),
        }
    }

    fn limit(&self, budgeted: bool) -> Option<Duration> {
        match budgeted {
            true => self.with_budget,
            false => self.without_budget,
        }
    }

    /// Whether a pod's limit is reached.
    pub fn reached(&self, budgeted: bool, spent: Duration) -> bool {
        self.limit(budgeted).is_some_and(|limit| spent >= limit)
    }

    /// Time until the next limit is reached; none if there is none left.
    pub fn next(&self, spent: Duration) -> Option<Duration> {
        let limits = [self.with_budget, self.without_budget];
        let to_come = limits.into_iter().flatten().filter(|limit| *limit > spent);
        to_come.map(|limit| limit - spent).min()
    }

    /// The action for a pod after `spent` time. `ordered` means that an operator forces this drain
    /// now.
    pub fn act(&self, pod: &Pod, budgeted: bool, spent: Duration, ordered: bool) -> ForceAction {
        match () {
            () if !ordered && !self.reached(budgeted, spent) => ForceAction::Wait,
            () if pod.is_terminating() && pod.ended => ForceAction::LeaveBehind,
            () if pod.is_terminating() => ForceAction::Wait,
            () => ForceAction::Delete,
        }
    }
}
