//! Lists objects of one kind and watches them, again and again.
//!
//! kube's watcher is not used: it restarts a closed watch without a pause, waits five minutes for a
//! silent server, and keeps the client it was created with even after the credentials change.

use std::{fmt::Debug, pin::pin, time::Duration};

use futures_util::StreamExt;
use kube::{
    Api, Resource,
    api::{ListParams, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    Cluster, ClusterError,
    watch_stream::{WatchChange, open_watch},
};
use machinist_base::backoff::{Backoff, jitter};

/// Backoff while the server is unreachable.
const WATCH_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Minimum time per watch attempt, for a server that closes every watch immediately.
const MIN_WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The kind, with the group and version at which it is served.
type Kind<W> = <<W as WatchHandler>::Object as Resource>::DynamicType;

/// The objects that are watched, and what their changes cause.
#[allow(
    async_fn_in_trait,
    reason = "its implementations are known, and their futures are Send"
)]
pub trait WatchHandler: Send + Sync {
    /// The type of the objects.
    type Object: Resource<DynamicType: Send + Sync>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static;

    /// What a list keeps of each object.
    type View: From<Self::Object> + Send;

    /// How many objects a list reads at once; `None` if all. Each page is reduced to views before the next one is read.
    fn page_items() -> Option<u32> {
        None
    }

    /// Whether a watch continues where the last one ended; otherwise each one begins with a list.
    fn resumes_watch() -> bool {
        true
    }

    /// The API server.
    fn cluster(&self) -> &Cluster;

    /// The objects in messages.
    fn object(&self) -> String;

    /// The field selector of the objects; empty if all are watched.
    fn selector(&self) -> String;

    /// Waits until the objects are needed, and returns their kind.
    async fn kind(&mut self) -> Result<Kind<Self>, ClusterError>;

    /// All objects, from a list.
    async fn listed(&mut self, objects: Vec<Self::View>) -> Result<(), ClusterError>;

    /// The server has accepted the watch.
    fn opened(&mut self);

    /// The watch reports a change.
    fn changed(&mut self, change: WatchChange<Self::Object>);

    /// Waits until there is work besides the changes. Must be cancel-safe.
    async fn work_due(&mut self) {
        std::future::pending().await
    }

    /// Does that work. A failure ends the watch.
    async fn run_due_work(&mut self) -> Result<(), ClusterError> {
        Ok(())
    }

    /// Reports a failure, `first` after a success, and returns the wait after it, which is `wait`
    /// if there is no reason for another one.
    fn failed(&mut self, error: &ClusterError, first: bool, wait: Duration) -> Duration;
}

/// Lists and watches until `stop`.
pub async fn run<W: WatchHandler>(mut handler: W, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        // Cancel-safe: the next start lists again, and completes unfinished writes.
        () = repeat(&mut handler) => {}
    }
}

async fn repeat<W: WatchHandler>(handler: &mut W) {
    // Resource version to resume from; none to list first.
    let mut version = None;
    let mut failures = 0;
    loop {
        let kind = handler.kind().await;
        let began = Instant::now();
        let turned = match kind {
            Ok(kind) => turn(handler, &kind, &mut version).await,
            Err(error) => Err(error),
        };
        let wait = match turned {
            Ok(()) => {
                failures = 0;
                MIN_WATCH_INTERVAL.saturating_sub(began.elapsed())
            }
            Err(error) => {
                if failures > 0 {
                    // More than one connection was lost: the server behind this address may have
                    // been restored from a backup, so list again.
                    version = None;
                }
                let wait = WATCH_BACKOFF.wait(failures, jitter());
                let wait = handler.failed(&error, failures == 0, wait);
                failures = failures.saturating_add(1);
                wait.max(error.retry_after().unwrap_or_default())
            }
        };
        sleep(wait).await;
    }
}

/// Lists if needed, then watches until the watch ends.
async fn turn<W: WatchHandler>(
    handler: &mut W,
    kind: &Kind<W>,
    version: &mut Option<String>,
) -> Result<(), ClusterError> {
    let from = match version {
        Some(from) => from.clone(),
        None => list(handler, kind).await?,
    };
    *version = Some(from.clone());
    let ended = watch(handler, kind, &from, version).await;
    let has_expired = ended.as_ref().is_err_and(ClusterError::is_expired);
    if has_expired || !W::resumes_watch() {
        *version = None;
    }
    match has_expired {
        true => Ok(()),
        false => ended,
    }
}

/// A consistent list, although one from the server's watch cache would be cheaper: a stale cache
/// could show an earlier desired config and make the agent roll back a running update.
async fn list<W: WatchHandler>(handler: &mut W, kind: &Kind<W>) -> Result<String, ClusterError> {
    let mut params = ListParams {
        field_selector: field_selector(handler),
        limit: W::page_items(),
        ..ListParams::default()
    };
    let mut objects = Vec::new();
    loop {
        let page = &params;
        let list =
            |client| async move { Api::<W::Object>::all_with(client, kind).list(page).await };
        let request = handler.cluster().request("list", handler.object(), list);
        let found = request.await?;
        objects.extend(found.items.into_iter().map(W::View::from));
        match found.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => {
                handler.listed(objects).await?;
                return Ok(found.metadata.resource_version.unwrap_or_default());
            }
        }
    }
}

fn field_selector<W: WatchHandler>(handler: &W) -> Option<String> {
    Some(handler.selector()).filter(|selector| !selector.is_empty())
}

async fn watch<W: WatchHandler>(
    handler: &mut W,
    kind: &Kind<W>,
    from: &str,
    version: &mut Option<String>,
) -> Result<(), ClusterError> {
    let params = WatchParams {
        field_selector: field_selector(handler),
        ..WatchParams::default()
    };
    let opened = open_watch::<W::Object>(handler.cluster(), kind, handler.object(), params, from);
    let mut changes = pin!(opened.await?);
    handler.opened();
    loop {
        tokio::select! {
            // Cancel-safe: an event that has not arrived whole stays in the stream.
            change = changes.next() => {
                let Some(change) = change else {
                    return Ok(());
                };
                let (change, after) = change?;
                handler.changed(change);
                *version = Some(after).filter(|after| !after.is_empty());
            }
            // Cancel-safe by its contract.
            () = handler.work_due() => handler.run_due_work().await?,
        }
    }
}
