//! One pod that must leave.

use jiff::Timestamp;
use tokio::time::Instant;

use crate::{Pod, PodWait, WaitReason};

/// Progress of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionState {
    /// To be requested, not before this time.
    Due(Instant),
    /// A request is running.
    Requested,
    /// Terminating since this time, according to the server's response or the watch.
    Terminating(Instant),
    /// It has ended, its object remains, and the drain continues without it.
    LeftBehind,
}

/// A pod that must leave.
#[derive(Clone, Debug)]
pub(super) struct PodEntry {
    pub(super) pod: Pod,
    pub(super) state: EvictionState,
    /// What blocks it, and since when.
    pub(super) blocker: Option<(WaitReason, Timestamp)>,
    /// Since when it is terminating.
    pub(super) terminating_since: Option<Timestamp>,
    /// When it was last observed.
    pub(super) observed_at: Instant,
    pub(super) failures: u32,
    /// Its deletion was tried, so the next attempt has a backoff.
    pub(super) delete_tried: bool,
}

impl PodEntry {
    pub(super) fn record_blocker(&mut self, what: WaitReason, now: Timestamp) {
        let same = |old: &WaitReason| std::mem::discriminant(old) == std::mem::discriminant(&what);
        let since = match &self.blocker {
            Some((old, since)) if same(old) => *since,
            _ => now,
        };
        self.blocker = Some((what, since));
    }

    pub(super) fn is_blocked_by_budget(&self) -> bool {
        let what = self.blocker.as_ref().map(|(what, _)| what);
        matches!(
            what,
            Some(WaitReason::Budget(..) | WaitReason::Never(..) | WaitReason::Several(_))
        )
    }

    /// What it waits for, if anything; for `LeftBehind`, what keeps its object.
    pub(super) fn wait(&self, now: Timestamp, limit: Option<Timestamp>) -> Option<PodWait> {
        let (what, since) = match (&self.blocker, self.terminating_since) {
            (Some((what, since)), _) => (what.clone(), *since),
            (None, Some(since)) => (WaitReason::of_terminating(&self.pod, now), since),
            (None, None) => return None,
        };
        let end = self.pod.deleting;
        Some(PodWait {
            pod: self.pod.id.clone(),
            what,
            since,
            expected_end: end,
            too_late_for: limit.filter(|limit| end.is_some_and(|end| end > *limit)),
        })
    }
}
