//! Limits how many Nodes get or lose the taint of the update per second.

use std::time::Duration;

use tokio::time::Instant;

use machinist_pool::MAX_TAINT_PATCHES_PER_SECOND;

/// The number of patches in the current second.
#[derive(Debug)]
pub(crate) struct TaintBudget {
    since: Instant,
    used: usize,
}

impl TaintBudget {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            used: 0,
        }
    }

    /// How many Nodes may be patched now.
    pub(crate) fn left(&mut self) -> usize {
        if self.since.elapsed() >= Duration::from_secs(1) {
            self.since = Instant::now();
            self.used = 0;
        }
        MAX_TAINT_PATCHES_PER_SECOND.saturating_sub(self.used)
    }

    /// Records patches.
    pub(crate) fn take(&mut self, patches: usize) {
        self.used += patches;
    }
}
