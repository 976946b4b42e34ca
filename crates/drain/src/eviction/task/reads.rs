//! Running reads from the API server.

use std::collections::BTreeSet;

use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};

use crate::{
    DisruptionBudget, EvictionCallError,
    eviction::{
        PodWatchStream,
        preflight::{FailedCall, NodePodsReview},
    },
};

/// The result of a read from the API server.
pub(super) enum ReadOutcome {
    /// A survey of the node, and when it was started.
    Survey(Instant, Box<Result<NodePodsReview, FailedCall>>),
    /// The budgets of a namespace.
    Budgets(String, Result<Vec<DisruptionBudget>, EvictionCallError>),
    /// A new watch.
    Watch(Result<PodWatchStream, EvictionCallError>),
}

/// The running reads.
#[derive(Default)]
pub(super) struct ApiReads {
    running: JoinSet<ReadOutcome>,
    /// Namespaces whose budgets are being read.
    budget_namespaces: BTreeSet<String>,
}

impl ApiReads {
    pub(super) fn spawn(&mut self, read: impl Future<Output = ReadOutcome> + Send + 'static) {
        self.running.spawn(read);
    }

    /// The next result; a set returns one only to a caller that waits for it.
    pub(super) async fn join_next(&mut self) -> Option<Result<ReadOutcome, JoinError>> {
        self.running.join_next().await
    }

    /// Marks the budgets of a namespace as being read; false if they already are.
    pub(super) fn claim_budgets(&mut self, namespace: &str) -> bool {
        self.budget_namespaces.insert(namespace.to_owned())
    }

    pub(super) fn release_budgets(&mut self, namespace: &str) {
        self.budget_namespaces.remove(namespace);
    }
}
