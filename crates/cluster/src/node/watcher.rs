//! The watch on the agent's Node.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{NodeObject, OwnNode};
use crate::{
    Cluster, ClusterError, ClusterErrorKind,
    watch_loop::{self, WatchHandler},
    watch_stream::WatchChange,
};
use machinist_base::error_chain::chain;

/// Maximum wait after a 401, since no event reports that a token or certificate was replaced.
const UNAUTHORIZED_MAX_BACKOFF: Duration = Duration::from_secs(10);

impl OwnNode {
    /// Watches until `stop`. Changes are published to [`OwnNode::snapshots`]; the last state is kept
    /// during an outage.
    pub async fn watch_node(self, stop: CancellationToken) {
        watch_loop::run(self, stop).await;
    }

    /// Records a listed Node even if its resource version is lower, because the cluster may have
    /// been restored from a backup.
    fn record_listed(&self, node: NodeObject) {
        self.snapshot.send_if_modified(|snapshot| {
            snapshot.node = None;
            false
        });
        self.record_object(node);
    }

    fn record_unreachable(&self, error: &ClusterError) {
        let news = self.snapshot.send_if_modified(|snapshot| {
            let answered = !matches!(
                error.why,
                ClusterErrorKind::Unreachable(_) | ClusterErrorKind::TimedOut(_)
            );
            let refused = answered.then(|| error.reason());
            let news = snapshot.away.is_none() || snapshot.refused != refused;
            snapshot.refused = refused;
            snapshot.away.get_or_insert_with(Instant::now);
            news
        });
        match news {
            true => tracing::warn!(reason = %error.reason(), "{}", chain(error)),
            false => tracing::debug!("{}", chain(error)),
        }
    }
}

impl WatchHandler for OwnNode {
    type Object = NodeObject;
    type View = NodeObject;

    fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn object(&self) -> String {
        self.object()
    }

    fn selector(&self) -> String {
        format!("metadata.name={}", self.name)
    }

    async fn kind(&mut self) -> Result<(), ClusterError> {
        Ok(())
    }

    async fn listed(&mut self, objects: Vec<NodeObject>) -> Result<(), ClusterError> {
        match objects.into_iter().next() {
            Some(node) => self.record_listed(node),
            None => self.is_gone(),
        }
        Ok(())
    }

    fn opened(&mut self) {
        let mut away = None;
        self.snapshot.send_if_modified(|snapshot| {
            away = snapshot.away.take();
            snapshot.refused = None;
            away.is_some()
        });
        if let Some(since) = away {
            tracing::info!(
                "API server reachable again after {} s",
                since.elapsed().as_secs()
            );
        }
    }

    fn changed(&mut self, change: WatchChange<NodeObject>) {
        match change {
            WatchChange::Applied(node) => drop(self.record_object(node)),
            WatchChange::Deleted(_) => self.is_gone(),
            WatchChange::Bookmark => {}
        }
    }

    fn failed(&mut self, error: &ClusterError, _: bool, wait: Duration) -> Duration {
        self.record_unreachable(error);
        pause(wait, error.is_unauthorised())
    }
}

/// The wait after a failure.
fn pause(wait: Duration, unauthorised: bool) -> Duration {
    match unauthorised {
        true => wait.min(UNAUTHORIZED_MAX_BACKOFF),
        false => wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unauthorized_requests_retry_with_a_short_maximum_backoff() {
        let wait = Duration::from_secs(60);
        assert!(pause(wait, true) <= UNAUTHORIZED_MAX_BACKOFF);
        assert!(pause(wait, false) > UNAUTHORIZED_MAX_BACKOFF);
    }
}
