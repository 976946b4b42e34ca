//! Watches the ResourceSlices and triggers their reconciliation.

use std::{pin::pin, time::Duration};

use futures_util::StreamExt;
use kube::{
    Api,
    api::{DynamicObject, ListParams, WatchEvent, WatchParams},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{CHANGE_DEBOUNCE, SliceReconciler, named, resource, selector};
use crate::{ClusterError, ClusterErrorKind, resource_claims};
use machinist_base::{
    backoff::{Backoff, jitter},
    error_chain::chain,
    rate_limit::{RateLimiter, sleep_until_opt},
};

/// Backoff after a failed request.
const WATCH_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// If the kind does not exist, it is looked up again after this time, because the cluster may be
/// upgraded.
const KIND_RECHECK_INTERVAL: Duration = Duration::from_secs(600);
/// Server-side watch timeout in seconds; the last quarter is random.
const WATCH_MAX_SECS: u32 = 280;
/// A healthy server sends a bookmark about once a minute; a watch silent for longer than this is
/// considered broken.
const WATCH_IDLE_TIMEOUT: Duration = Duration::from_secs(100);
/// Minimum time per watch attempt, for a server that closes every watch immediately.
const MIN_WATCH_INTERVAL: Duration = Duration::from_secs(1);

impl SliceReconciler {
    /// Reconciles the slices until `stop`. No request is sent before a desired pool is known.
    pub async fn reconcile_slices(mut self, stop: CancellationToken) {
        tokio::select! {
            // Cancel-safe: the next agent completes unfinished writes.
            () = stop.cancelled() => {}
            () = self.turn_for_ever() => {}
        }
    }

    async fn turn_for_ever(&mut self) {
        let mut failures = 0;
        loop {
            if self.wish.wait_for(Option::is_some).await.is_err() {
                return std::future::pending().await;
            }
            let began = Instant::now();
            let wait = match self.turn().await {
                Ok(()) => {
                    failures = 0;
                    MIN_WATCH_INTERVAL.saturating_sub(began.elapsed())
                }
                Err(error) => {
                    self.complain(&error, failures == 0);
                    let wait = WATCH_BACKOFF.wait(failures, jitter());
                    failures = failures.saturating_add(1);
                    match self.absent {
                        true => KIND_RECHECK_INTERVAL,
                        false => wait.max(error.retry_after().unwrap_or_default()),
                    }
                }
            };
            sleep(wait).await;
        }
    }

    /// Lists, writes, and watches until the watch ends.
    async fn turn(&mut self) -> Result<(), ClusterError> {
        if self.api.is_none() {
            let version = resource_claims::version(&self.cluster).await;
            self.absent = version.as_ref().is_err_and(ClusterError::is_not_found);
            let (version, spelling) = version?;
            self.api = Some((resource(version), spelling));
        }
        let version = self.list().await?;
        self.settle().await?;
        self.watch(&version).await
    }

    async fn list(&mut self) -> Result<String, ClusterError> {
        let Some((api, _)) = self.api.clone() else {
            return Ok(String::new());
        };
        let (api, node) = (&api, self.node.name().to_owned());
        let params = &ListParams::default().fields(&selector(&node));
        let list = |client| async move {
            let objects: Api<DynamicObject> = Api::all_with(client, api);
            objects.list(params).await
        };
        let found = self.cluster.request("list", named(&node), list).await;
        if found.as_ref().is_err_and(ClusterError::is_not_found) {
            // The server no longer has this API version, so discover it again.
            self.api = None;
        }
        let found = found?;
        let names: Vec<_> = found
            .items
            .iter()
            .map(|one| one.metadata.name.clone())
            .collect();
        self.known
            .retain(|name, _| names.contains(&Some(name.clone())));
        found.items.iter().for_each(|one| self.note(one));
        Ok(found.metadata.resource_version.unwrap_or_default())
    }

    async fn watch(&mut self, from: &str) -> Result<(), ClusterError> {
        let Some((api, _)) = self.api.clone() else {
            return Ok(());
        };
        let seconds = WATCH_MAX_SECS - WATCH_MAX_SECS / 4;
        // At most a quarter of a small number.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let drawn = (f64::from(WATCH_MAX_SECS / 4) * jitter()) as u32;
        let (api, node) = (&api, self.node.name().to_owned());
        let params = &WatchParams::default()
            .fields(&selector(&node))
            .timeout(seconds + drawn);
        let watch = |client| async move {
            let objects: Api<DynamicObject> = Api::all_with(client, api);
            objects.watch(params, from).await
        };
        let events = self.cluster.request("watch", named(&node), watch).await?;
        let mut events = pin!(events);
        let mut sights = self.node.snapshots();
        sights.mark_changed();
        let mut due: Option<Instant> = None;
        let soon = |due: &mut Option<Instant>, changes: &RateLimiter| {
            due.get_or_insert_with(|| changes.ready().max(Instant::now() + CHANGE_DEBOUNCE));
        };
        let mut heard_at = Instant::now();
        loop {
            tokio::select! {
                event = timeout_at(heard_at + WATCH_IDLE_TIMEOUT, events.next()) => match event {
                    Ok(Some(event)) => {
                        heard_at = Instant::now();
                        let event = event.map_err(|error| broke(&node, ClusterErrorKind::of(error)))?;
                        if !self.heard(&node, event)? {
                            return Ok(());
                        }
                        soon(&mut due, &self.changes);
                    }
                    Ok(None) | Err(_) => return Ok(()),
                },
                // All of these are cancel-safe: a change stays marked as unseen, and the due time
                // is kept.
                Ok(()) = self.wish.changed() => soon(&mut due, &self.changes),
                Ok(()) = sights.changed() => {
                    // A recreated Node has lost its slices.
                    if uid(&sights) != self.owner {
                        soon(&mut due, &self.changes);
                    }
                }
                () = sleep_until_opt(due) => {
                    due = None;
                    self.settle().await?;
                }
            }
        }
    }

    /// Records a watch event; false if the list must be restarted.
    fn heard(
        &mut self,
        node: &str,
        event: WatchEvent<DynamicObject>,
    ) -> Result<bool, ClusterError> {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => self.note(&object),
            WatchEvent::Deleted(object) => {
                if let Some(name) = &object.metadata.name {
                    self.known.remove(name);
                }
            }
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) if status.code == 410 => return Ok(false),
            WatchEvent::Error(status) => {
                return Err(broke(node, ClusterErrorKind::Answered(status)));
            }
        }
        Ok(true)
    }

    fn complain(&self, error: &ClusterError, first: bool) {
        let why = match (self.absent, &error.why) {
            (true, ClusterErrorKind::NoVersion(known)) => format!(
                "the API server does not serve resource.k8s.io in a supported version ({known}): no devices can be claimed"
            ),
            (true, _) => "the API server does not serve resource.k8s.io: no devices can be claimed"
                .to_owned(),
            (false, _) => chain(error),
        };
        match first {
            true => tracing::warn!(reason = %error.reason(), "{why}"),
            false => tracing::debug!("{why}"),
        }
        self.tell.send_if_modified(|published| {
            // Without this kind no resources are published.
            if self.absent {
                published.resources = Some(std::collections::BTreeSet::new());
            }
            let news = published.problem.as_ref() != Some(&why);
            published.problem = Some(why);
            news
        });
    }
}

fn uid(sights: &watch::Receiver<crate::node::NodeSnapshot>) -> Option<String> {
    let node = sights.borrow().node.clone();
    node.map(|node| node.uid.clone())
}

fn broke(node: &str, why: ClusterErrorKind) -> ClusterError {
    ClusterError {
        act: "watch",
        object: named(node),
        why,
    }
}
