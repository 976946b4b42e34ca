//! How far a drain is.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;

use super::PodId;
use crate::drain::{Note, Tier, Wait};

/// How far a drain is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Whether the pods have been listed; until then the numbers are zero.
    pub begun: bool,
    /// What counts for the limit past which pods are deleted, earlier runs included. To be kept once a
    /// minute.
    pub spent: Duration,
    /// Since when the API server does not answer.
    pub away_since: Option<Timestamp>,
    /// Which pods are leaving now.
    pub tier: Tier,
    /// Pods that must go and have not been asked to, or were refused.
    pub to_go: usize,
    /// Pods that were asked to end.
    pub leaving: usize,
    /// Pods that are gone.
    pub gone: usize,
    /// What is waited for, by namespace and name. Budgets that can never allow an eviction are here
    /// before the first pod is asked to go.
    pub waits: Vec<Wait>,
    /// What is to be said of pods that stay, or that lose something.
    pub notes: Arc<Vec<(PodId, Note)>>,
    /// What was said of the pods that were asked to end and that nobody makes anew.
    pub lost: Arc<Vec<(PodId, Note)>>,
    /// Pods that were deleted and not evicted, as the drain was forced.
    pub forced: Vec<PodId>,
    /// Those of them that a budget had kept until then.
    pub overridden: Arc<Vec<PodId>>,
    /// Pods that have ended and whose objects are still there, held by finalizers.
    pub left_behind: Vec<PodId>,
    /// Why it is forced, where a person wants that.
    pub ordered: Option<String>,
}

impl Progress {
    /// What somebody should look at: what is waited for, without what only takes its time.
    pub fn blockers(&self) -> impl Iterator<Item = &Wait> {
        self.waits.iter().filter(|wait| wait.blocks())
    }
}

/// A drain that has ended well: no pod that must go is on the node.
#[derive(Clone, Debug, PartialEq)]
pub struct Drained {
    /// How it stood at the end.
    pub progress: Progress,
}
