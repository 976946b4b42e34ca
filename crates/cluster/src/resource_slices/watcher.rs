//! Watches the ResourceSlices and triggers their reconciliation.

use std::time::Duration;

use kube::api::{ApiResource, DynamicObject};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{CHANGE_DEBOUNCE, SliceReconciler, named, resource, selector};
use crate::{
    Cluster, ClusterError, ClusterErrorKind, resource_claims,
    watch_loop::{self, WatchHandler},
    watch_stream::WatchChange,
};
use machinist_base::{error_chain::chain, rate_limit::sleep_until_opt};

/// If the kind does not exist, it is looked up again after this time, because the cluster may be
/// upgraded.
const KIND_RECHECK_INTERVAL: Duration = Duration::from_secs(600);

impl SliceReconciler {
    /// Reconciles the slices until `stop`. No request is sent before a desired pool is known.
    pub async fn reconcile_slices(self, stop: CancellationToken) {
        watch_loop::run(self, stop).await;
    }

    /// Plans to write soon.
    fn soon(&mut self) {
        let changes = &self.changes;
        self.due
            .get_or_insert_with(|| changes.ready().max(Instant::now() + CHANGE_DEBOUNCE));
    }

    fn has_other_owner(&self) -> bool {
        let node = self.snapshots.borrow().node.clone();
        node.map(|node| node.uid.clone()) != self.owner
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
        self.published_pool.send_if_modified(|published| {
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

impl WatchHandler for SliceReconciler {
    type Object = DynamicObject;
    type View = DynamicObject;

    fn resumes_watch() -> bool {
        false
    }

    fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn object(&self) -> String {
        named(self.node.name())
    }

    fn selector(&self) -> String {
        selector(self.node.name())
    }

    async fn kind(&mut self) -> Result<ApiResource, ClusterError> {
        if self.desired_pool.wait_for(Option::is_some).await.is_err() {
            return std::future::pending().await;
        }
        if let Some((api, _)) = &self.api {
            return Ok(api.clone());
        }
        let version = resource_claims::version(&self.cluster).await;
        self.absent = version.as_ref().is_err_and(ClusterError::is_not_found);
        let (version, spelling) = version?;
        let api = resource(version);
        self.api = Some((api.clone(), spelling));
        Ok(api)
    }

    async fn listed(&mut self, objects: Vec<DynamicObject>) -> Result<(), ClusterError> {
        let names: Vec<_> = objects
            .iter()
            .map(|one| one.metadata.name.clone())
            .collect();
        self.known
            .retain(|name, _| names.contains(&Some(name.clone())));
        objects.iter().for_each(|one| self.note(one));
        self.settle().await
    }

    fn opened(&mut self) {
        self.snapshots.mark_changed();
        self.due = None;
    }

    fn changed(&mut self, change: WatchChange<DynamicObject>) {
        match change {
            WatchChange::Applied(object) => self.note(&object),
            WatchChange::Deleted(object) => {
                if let Some(name) = &object.metadata.name {
                    self.known.remove(name);
                }
            }
            WatchChange::Bookmark => {}
        }
        self.soon();
    }

    async fn work_due(&mut self) {
        loop {
            tokio::select! {
                // All of these are cancel-safe: a change stays marked as unseen, and the due time
                // is kept.
                Ok(()) = self.desired_pool.changed() => self.soon(),
                Ok(()) = self.snapshots.changed() => {
                    // A recreated Node has lost its slices.
                    if self.has_other_owner() {
                        self.soon();
                    }
                }
                () = sleep_until_opt(self.due) => {
                    self.due = None;
                    return;
                }
            }
        }
    }

    async fn run_due_work(&mut self) -> Result<(), ClusterError> {
        self.settle().await
    }

    fn failed(&mut self, error: &ClusterError, first: bool, wait: Duration) -> Duration {
        self.complain(error, first);
        if error.act == "list" && error.is_not_found() {
            // The server no longer has this API version, so discover it again.
            self.api = None;
        }
        match self.absent {
            true => KIND_RECHECK_INTERVAL,
            false => wait,
        }
    }
}
