//! The node on which the reconciler runs, and the progress of its drain.

use std::sync::Arc;

use jiff::Timestamp;

use crate::node_port::{Blocker, DrainProgress, NodeError, NodePort};
use machinist_base::error_chain::chain;

/// The node, and the progress of the current drain.
#[derive(Default)]
pub(super) struct NodeDrain {
    /// `None` if the machine is not a node, and in every process except the agent.
    port: Option<Arc<dyn NodePort>>,
    progress: DrainProgress,
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

    /// Records the progress of a drain, and returns the seconds spent on it.
    pub(super) fn record_progress(&mut self, progress: &DrainProgress) -> u64 {
        self.progress.clone_from(progress);
        self.progress.spent.as_secs()
    }

    pub(super) fn end_drain(&mut self) {
        self.progress = DrainProgress::default();
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
