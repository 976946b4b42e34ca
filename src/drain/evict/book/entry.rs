//! One pod that must go.

use jiff::Timestamp;
use tokio::time::Instant;

use crate::drain::{Pod, Wait, What};

/// How far a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// To be asked for, not before this time.
    Due(Instant),
    /// A request is under way.
    Asking,
    /// Asked to end; what the server said then, or what the watch shows.
    Leaving(Instant),
    /// It has ended, its object is held, and the drain goes on without it.
    LeftBehind,
}

/// A pod that must go.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) pod: Pod,
    pub(super) state: State,
    /// What keeps it, and since when.
    pub(super) kept_by: Option<(What, Timestamp)>,
    /// Since when it is leaving.
    pub(super) leaving_since: Option<Timestamp>,
    /// When it was last seen to be there.
    pub(super) seen: Instant,
    pub(super) failures: u32,
    /// Deleting it was tried: the next attempt has its pause like any other.
    pub(super) delete_tried: bool,
}

impl Entry {
    pub(super) fn keep(&mut self, what: What, now: Timestamp) {
        let same = |old: &What| std::mem::discriminant(old) == std::mem::discriminant(&what);
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
            Some(What::Budget(..) | What::Never(..) | What::Several(_))
        )
    }

    /// What it waits for, if anything; `LeftBehind` shows what holds its object.
    pub(super) fn wait(&self, now: Timestamp, limit: Option<Timestamp>) -> Option<Wait> {
        let (what, since) = match (&self.kept_by, self.leaving_since) {
            (Some((what, since)), _) => (what.clone(), *since),
            (None, Some(since)) => (What::of_leaving(&self.pod, now), since),
            (None, None) => return None,
        };
        let end = self.pod.deleting;
        Some(Wait {
            pod: self.pod.id.clone(),
            what,
            since,
            expected_end: end,
            too_late_for: limit.filter(|limit| end.is_some_and(|end| end > *limit)),
        })
    }
}
