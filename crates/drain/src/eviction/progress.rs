//! Progress of a drain.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;

use super::PodId;
use crate::{PodNote, PodWait, PriorityTier};

/// Progress of a drain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvictionProgress {
    /// Whether the pods have been listed; the numbers are zero until then.
    pub begun: bool,
    /// Time that counts for the limit after which pods are deleted, including earlier runs. The
    /// caller stores it once a minute.
    pub spent: Duration,
    /// Since when the API server has been unreachable.
    pub away_since: Option<Timestamp>,
    /// The tier that is being evicted.
    pub tier: PriorityTier,
    /// Number of pods that must leave and are not terminating yet, including refused ones.
    pub to_go: usize,
    /// Number of terminating pods.
    pub leaving: usize,
    /// Number of deleted pods.
    pub gone: usize,
    /// The blockers, ordered by namespace and name. Budgets that can never allow an eviction
    /// are listed before the first eviction.
    pub waits: Vec<PodWait>,
    /// Notes about pods that stay or lose something.
    pub notes: Arc<Vec<(PodId, PodNote)>>,
    /// Notes about the evicted pods that no controller recreates.
    pub lost: Arc<Vec<(PodId, PodNote)>>,
    /// Pods that were deleted instead of evicted, because the drain was forced.
    pub forced: Vec<PodId>,
    /// Those of them that a budget had blocked.
    pub overridden: Arc<Vec<PodId>>,
    /// Pods that have ended and whose objects remain because of finalizers.
    pub left_behind: Vec<PodId>,
    /// The operator's reason for forcing the drain, if it was forced.
    pub ordered: Option<String>,
}

impl EvictionProgress {
    /// The waits that an operator should look at, without those that only take time.
    pub fn blockers(&self) -> impl Iterator<Item = &PodWait> {
        self.waits.iter().filter(|wait| wait.blocks())
    }
}

/// A successful drain: no pod that must leave is on the node.
#[derive(Clone, Debug, PartialEq)]
pub struct DrainSummary {
    /// The final progress.
    pub progress: EvictionProgress,
}
