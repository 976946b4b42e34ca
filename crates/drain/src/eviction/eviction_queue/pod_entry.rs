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
    Asking,
    /// Terminating since this time, according to the server's response or the watch.
    Leaving(Instant),
    /// It has ended, its object remains, and the drain continues without it.
    LeftBehind,
}

/// A pod that must leave.
#[derive(Clone, Debug)]
pub(super) struct PodEntry {
    pub(super) pod: Pod,
    pub(super) state: EvictionState,
    /// What blocks it, and since when.
    pub(super) kept_by: Option<(WaitReason, Timestamp)>,
    /// Since when it is terminating.
    pub(super) leaving_since: Option<Timestamp>,
    /// When it was last observed.
    pub(super) seen: Instant,
    pub(super) failures: u32,
    /// Its deletion was tried, so the next attempt has a backoff.
    pub(super) delete_tried: bool,
}

impl PodEntry {
    pub(super) fn keep(&mut self, what: WaitReason, now: Timestamp) {
        let same = |old: &WaitReason| std::mem::discriminant(old) == std::mem::discriminant(&what);
        let since = match &self.kept_by {
            Some((old, since)) if same(old) => *since,
            _ => now,
        };
        self.kept_by = Some((what, since));
    }

    pub(super) fn is_kept_by_budget(&self) -> bool {
        let what = self.kept_by.as_ref().map(|(what, _)| what);
        matches!(
            what,
            Some(WaitReason::Budget(..) | WaitReason::Never(..) | WaitReason::Several(_))
        )
    }

    /// What it waits for, if anything; for `LeftBehind`, what keeps its object.
    pub(super) fn wait(&self, now: Timestamp, limit: Option<Timestamp>) -> Option<PodWait> {
        let (what, since) = match (&self.kept_by, self.leaving_since) {
            (Some((what, since)), _) => (what.clone(), *since),
            (None, Some(since)) => (WaitReason::of_leaving(&self.pod, now), since),
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
