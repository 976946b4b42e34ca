//! When waiting is over.
//!
//! Time is accumulated by whoever drains: seconds in which the drain could have gone on, with the API
//! server there, added up over restarts. What happens past a limit is gentle: the pod is deleted with
//! the grace period that it asks for itself, and a pod that no longer runs is not waited for. The API
//! object is never taken from under running containers, and no finalizer is removed.

use std::time::Duration;

use super::Pod;

/// How long is waited before pods are deleted past what keeps them. None is for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// For pods that a budget counts.
    pub with_budget: Option<Duration>,
    /// For all others: nothing but a refusal or a slow end keeps them.
    pub without_budget: Option<Duration>,
}

/// What is to be done about a pod that has not gone yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing but what is done anyway.
    Wait,
    /// Delete it, with its own grace period.
    Delete,
    /// It has ended, and only its object is held: go on without it, and say so.
    LeaveBehind,
}

impl Limits {
    /// One limit for every pod: the setting `drain.forceAfter`.
    pub fn after(limit: Option<Duration>) -> Self {
        Self {
            with_budget: limit,
            without_budget: limit,
        }
    }

    /// As an UpgradeConfig has it: `PDBForceDrainTimeout` in minutes for pods with a budget, the
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

    /// Whether a pod is past its limit. At the limit it is.
    pub fn reached(&self, budgeted: bool, spent: Duration) -> bool {
        self.limit(budgeted).is_some_and(|limit| spent >= limit)
    }

    /// How much longer must be spent until the next limit is reached; none when none will be.
    pub fn next(&self, spent: Duration) -> Option<Duration> {
        let limits = [self.with_budget, self.without_budget];
        let to_come = limits.into_iter().flatten().filter(|limit| *limit > spent);
        to_come.map(|limit| limit - spent).min()
    }

    /// What is to be done about a pod, `spent` into the drain. `ordered` is a person's word that this
    /// one drain be forced now.
    pub fn act(&self, pod: &Pod, budgeted: bool, spent: Duration, ordered: bool) -> Act {
        match () {
            () if !ordered && !self.reached(budgeted, spent) => Act::Wait,
            () if pod.is_leaving() && pod.ended => Act::LeaveBehind,
            () if pod.is_leaving() => Act::Wait,
            () => Act::Delete,
        }
    }
}
