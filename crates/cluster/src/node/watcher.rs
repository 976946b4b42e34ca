//! The watch on the agent's Node.
//!
//! kube's watcher is not used: it restarts a closed watch without a pause, waits five minutes for a
//! silent server, and keeps the client it was created with even after the credentials change.

use std::{pin::pin, time::Duration};

use futures_util::StreamExt;
use kube::api::{ListParams, WatchEvent, WatchParams};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{NodeObject, OwnNode, nodes};
use crate::{ClusterError, ClusterErrorKind};
use machinist_base::{
    backoff::{Backoff, jitter},
    error_chain::chain,
};

/// Backoff while the server is unreachable.
const WATCH_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Maximum wait after a 401, since no event reports that a token or certificate was replaced.
const UNAUTHORIZED_MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Server-side watch timeout in seconds. The last quarter is random, so that agents that started
/// together do not reconnect together.
const WATCH_MAX_SECS: u32 = 280;

/// A healthy server sends a bookmark about once a minute even without changes; a watch that is
/// silent for longer than this is considered broken.
const WATCH_IDLE_TIMEOUT: Duration = Duration::from_secs(100);

/// Minimum time per watch attempt, for a server that closes every watch immediately.
const MIN_WATCH_INTERVAL: Duration = Duration::from_secs(1);

impl OwnNode {
    /// Watches until `stop`. Changes are published to [`OwnNode::snapshots`]; the last state is kept
    /// during an outage.
    pub async fn watch_node(self, stop: CancellationToken) {
        // Resource version to resume from; none to list first.
        let mut version = None;
        let mut failures = 0;
        loop {
            let began = Instant::now();
            let turned = tokio::select! {
                () = stop.cancelled() => return,
                // Cancel-safe: the next start lists again.
                turned = self.turn(&mut version) => turned,
            };
            let wait = match turned {
                Ok(()) => {
                    failures = 0;
                    MIN_WATCH_INTERVAL.saturating_sub(began.elapsed())
                }
                Err(error) => {
                    self.is_away(&error);
                    if failures > 0 {
                        // More than one connection was lost: the server behind this address may
                        // have been restored from a backup, so list again.
                        version = None;
                    }
                    let wait = pause(failures, error.is_unauthorised());
                    failures = failures.saturating_add(1);
                    wait.max(error.retry_after().unwrap_or_default())
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                // Cancel-safe: it only waits.
                () = sleep(wait) => {}
            }
        }
    }

    /// Lists if needed, then watches until the watch ends.
    async fn turn(&self, version: &mut Option<String>) -> Result<(), ClusterError> {
        let from = match version {
            Some(from) => from.clone(),
            None => self.list().await?,
        };
        *version = Some(from.clone());
        match self.watch(from, version).await {
            Err(error) if error.is_expired() => {
                *version = None;
                Ok(())
            }
            ended => ended,
        }
    }

    /// A consistent list, although one from the server's watch cache would be cheaper: a stale
    /// cache could show an earlier desired config and make the agent roll back a running update.
    async fn list(&self) -> Result<String, ClusterError> {
        let params = &ListParams::default().fields(&self.selector());
        let list = |client| async move { nodes(client).list(params).await };
        let found = self.cluster.request("list", self.object(), list).await?;
        match found.items.into_iter().next() {
            Some(node) => self.saw_anew(node),
            None => self.is_gone(),
        }
        Ok(found.metadata.resource_version.unwrap_or_default())
    }

    async fn watch(&self, from: String, version: &mut Option<String>) -> Result<(), ClusterError> {
        let seconds = WATCH_MAX_SECS - WATCH_MAX_SECS / 4;
        // At most a quarter of a small number.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let drawn = (f64::from(WATCH_MAX_SECS / 4) * jitter()) as u32;
        let params = WatchParams::default()
            .fields(&self.selector())
            .timeout(seconds + drawn);
        let (params, from) = (&params, &from);
        let watch = |client| async move { nodes(client).watch(params, from).await };
        let events = self.cluster.request("watch", self.object(), watch).await?;
        self.is_back();
        let mut events = pin!(events);
        while let Ok(Some(event)) = timeout(WATCH_IDLE_TIMEOUT, events.next()).await {
            let event = event.map_err(|error| self.broke(ClusterErrorKind::of(error)))?;
            *version = self.heard(event)?;
        }
        Ok(())
    }

    /// Records a watch event and returns the resource version to resume from.
    fn heard(&self, event: WatchEvent<NodeObject>) -> Result<Option<String>, ClusterError> {
        let version = match event {
            WatchEvent::Added(node) | WatchEvent::Modified(node) => {
                self.saw(node).resource_version.clone()
            }
            WatchEvent::Deleted(node) => {
                self.is_gone();
                node.metadata.resource_version.unwrap_or_default()
            }
            WatchEvent::Bookmark(bookmark) => bookmark.metadata.resource_version,
            WatchEvent::Error(status) => return Err(self.broke(ClusterErrorKind::Answered(status))),
        };
        Ok(Some(version).filter(|version| !version.is_empty()))
    }

    fn broke(&self, why: ClusterErrorKind) -> ClusterError {
        ClusterError {
            act: "watch",
            object: self.object(),
            why,
        }
    }

    fn selector(&self) -> String {
        format!("metadata.name={}", self.name)
    }

    /// Records a listed Node even if its resource version is lower, because the cluster may have
    /// been restored from a backup.
    fn saw_anew(&self, node: NodeObject) {
        self.sight.send_if_modified(|sight| {
            sight.node = None;
            false
        });
        self.saw(node);
    }

    fn is_away(&self, error: &ClusterError) {
        let news = self.sight.send_if_modified(|sight| {
            let answered = !matches!(
                error.why,
                ClusterErrorKind::Unreachable(_) | ClusterErrorKind::TimedOut(_)
            );
            let refused = answered.then(|| error.reason());
            let news = sight.away.is_none() || sight.refused != refused;
            sight.refused = refused;
            sight.away.get_or_insert_with(Instant::now);
            news
        });
        match news {
            true => tracing::warn!(reason = %error.reason(), "{}", chain(error)),
            false => tracing::debug!("{}", chain(error)),
        }
    }

    fn is_back(&self) {
        let mut away = None;
        self.sight.send_if_modified(|sight| {
            away = sight.away.take();
            sight.refused = None;
            away.is_some()
        });
        if let Some(since) = away {
            tracing::info!(
                "API server reachable again after {} s",
                since.elapsed().as_secs()
            );
        }
    }
}

/// The wait after this many earlier failures.
fn pause(failures: u32, unauthorised: bool) -> Duration {
    let wait = WATCH_BACKOFF.wait(failures, jitter());
    match unauthorised {
        true => wait.min(UNAUTHORIZED_MAX_BACKOFF),
        false => wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_known_asks_again_soon_however_long_that_lasts() {
        assert!(pause(20, true) <= UNAUTHORIZED_MAX_BACKOFF);
        assert!(pause(20, false) > UNAUTHORIZED_MAX_BACKOFF);
    }
}
