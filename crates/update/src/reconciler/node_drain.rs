//! The node on which the reconciler runs, and the progress of its drain.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::node_port::{Blocker, DrainProgress, NodeError, NodePort};
use machinist_base::error_chain::chain;

/// The node, and the progress of the current drain.
#[derive(Default)]
pub(super) struct NodeDrain {
    /// `None` if the machine is not a node, and in every process except the agent.
    port: Option<Arc<dyn NodePort>>,
    progress: DrainProgress,
    /// Time during which pods blocked the drain, including earlier runs.
    blocked: Duration,
    /// Until when it has been counted; `None` while nothing blocks the drain.
    blocked_until: Option<Instant>,
}

impl NodeDrain {
    pub(super) fn connect(&mut self, port: Arc<dyn NodePort>) {
        self.port = Some(port);
    }

    /// Returns whether this process drains the machine as a node.
    pub(super) const fn is_connected(&self) -> bool {
        self.port.is_some()
    }

    pub(super) fn port(&self) -> Option<Arc<dyn NodePort>> {
        self.port.clone()
    }

    /// Returns what blocks the update in the cluster.
    pub(super) fn blockers(&self) -> &[Blocker] {
        &self.progress.blockers
    }

    /// Begins or continues a drain that pods have blocked for this long in earlier runs.
    pub(super) const fn begin_drain(&mut self, blocked: Duration) {
        self.blocked = blocked;
        self.blocked_until = None;
    }

    /// Records the progress of a drain.
    pub(super) fn record_progress(&mut self, progress: &DrainProgress, now: Instant) {
        if let Some(until) = self.blocked_until {
            self.blocked += now.saturating_duration_since(until);
        }
        self.blocked_until = (!progress.blockers.is_empty()).then_some(now);
        self.progress.clone_from(progress);
    }

    /// Returns the time spent on the drain.
    pub(super) const fn spent(&self) -> Duration {
        self.progress.spent
    }

    /// Returns the part of it during which pods blocked the drain.
    pub(super) const fn blocked(&self) -> Duration {
        self.blocked
    }

    pub(super) fn end_drain(&mut self) {
        self.progress = DrainProgress::default();
        self.blocked_until = None;
    }

    /// Makes a failed request the only blocker. It keeps the start time of the blocker before it.
    pub(super) fn block_on_error(&mut self, error: &NodeError) {
        let since = self.progress.blockers.first();
        let since = since.map_or_else(Timestamp::now, |blocker| blocker.since);
        self.progress.blockers = vec![Blocker {
            kind: "Node".to_owned(),
            namespace: String::new(),
            name: error.node.clone(),
            reason: error.reason,
            message: chain(error),
            since,
        }];
    }

    /// Replaces the blockers, and returns whether they differ. A known blocker keeps its start time.
    pub(super) fn set_blockers(&mut self, mut blockers: Vec<Blocker>) -> bool {
        let before = std::mem::take(&mut self.progress.blockers);
        for blocker in &mut blockers {
            let same = |other: &&Blocker| {
                (&other.kind, &other.namespace, &other.name)
                    == (&blocker.kind, &blocker.namespace, &blocker.name)
            };
            if let Some(known) = before.iter().find(same) {
                blocker.since = known.since;
            }
        }
        let differ = before != blockers;
        self.progress.blockers = blockers;
        differ
    }

    /// Removes all blockers, and returns whether there were any.
    pub(super) fn clear_blockers(&mut self) -> bool {
        !std::mem::take(&mut self.progress.blockers).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use machinist_base::reason::Reason;

    use super::*;

    fn blocker(name: &str, since: i64) -> Blocker {
        Blocker {
            kind: "Pod".to_owned(),
            namespace: "default".to_owned(),
            name: name.to_owned(),
            reason: Reason::Io,
            message: String::new(),
            since: Timestamp::from_second(since).unwrap(),
        }
    }

    #[test]
    fn time_without_blockers_is_not_blocked() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let blocked = DrainProgress {
            blockers: vec![blocker("a", 1)],
            ..DrainProgress::default()
        };
        let free = DrainProgress::default();
        let mut node = NodeDrain::default();
        node.begin_drain(Duration::from_secs(60));
        for (seconds, progress) in [(5, &free), (9, &blocked), (12, &blocked), (20, &free)] {
            node.record_progress(progress, at(seconds));
        }
        node.record_progress(&free, at(50));
        assert_eq!(node.blocked(), Duration::from_secs(60 + 11));
        // The time until the next start of the agent is unknown, and does not count.
        node.record_progress(&blocked, at(60));
        node.end_drain();
        node.begin_drain(node.blocked());
        node.record_progress(&blocked, at(90));
        assert_eq!(node.blocked(), Duration::from_secs(60 + 11));
    }

    #[test]
    fn a_known_blocker_keeps_its_start_time() {
        let mut node = NodeDrain::default();
        assert!(node.set_blockers(vec![blocker("a", 1)]));
        assert!(!node.set_blockers(vec![blocker("a", 2)]));
        assert!(node.set_blockers(vec![blocker("a", 3), blocker("b", 3)]));
        let since = node.blockers().iter().map(|it| it.since.as_second());
        assert_eq!(since.collect::<Vec<_>>(), [1, 3]);
        assert!(node.clear_blockers());
        assert!(!node.clear_blockers());
    }
}
