//! Determines the MachineConfigPool of our Node, whose settings then apply.
//!
//! The pools are listed at startup, when labels or desired config of our Node change, and about
//! once an hour; they are not watched. The result is stored on disk, so that an agent that starts
//! while the API server is unreachable keeps its settings.

use std::{collections::BTreeMap, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use machinist_base::{
    backoff::{Backoff, jitter},
    error_chain::chain,
};
use machinist_cluster::{
    Cluster, ClusterError, fleet_queries,
    node::OwnNode,
    node_poll::{self, NodePoll},
};
use machinist_kube_api::{NodeView, PoolView};
use machinist_pool::{ImageSetSelection, Membership};
use machinist_rootfs::{Root, RootError};
use machinist_update::store::paths;

/// Maximum time in which a new or changed pool is noticed; at random after three quarters of it or
/// later, so that agents that started together do not list together.
const MAX_RELIST_INTERVAL: Duration = Duration::from_secs(4500);

/// Backoff after a failed list.
const LIST_BACKOFF: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(600));

/// Maximum length of a Kubernetes object name.
const MAX_OBJECT_NAME_LEN: u64 = 253;

/// The stored pool name; none if there is none, or it is invalid.
pub fn stored_pool(root: &Root) -> Option<String> {
    let text = root
        .read_text(&paths::pool(), MAX_OBJECT_NAME_LEN + 1)
        .ok()?;
    let name = text.trim_end_matches('\n');
    is_name(name).then(|| name.to_owned())
}

/// Whether a text is a valid pool name.
pub fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let ends = text.starts_with('.') || text.ends_with('.');
    !text.is_empty() && text.chars().all(plain) && !ends
}

/// Removes the stored pool name.
pub fn remove_stored_pool(root: &Root) -> Result<(), RootError> {
    root.remove_file(&paths::pool())
}

/// Tracks the pool of our Node.
#[derive(Debug)]
pub(super) struct PoolMembershipTask {
    root: Root,
    cluster: Cluster,
    node: OwnNode,
    pool: watch::Sender<Option<String>>,
    image_sets: watch::Sender<Option<ImageSetSelection>>,
    /// The last logged warning about several matching pools.
    warned: Option<String>,
}

/// The Node's labels and desired config, on which the pool depends. A change of the desired config
/// is when the pool's settings matter.
type MembershipInputs = (BTreeMap<String, String>, Option<String>);

impl PoolMembershipTask {
    /// `stored_pool` is the pool that the current settings were read for.
    pub(super) fn new(root: &Root, cluster: Cluster, node: OwnNode, known: Option<String>) -> Self {
        Self {
            root: root.clone(),
            cluster,
            node,
            pool: watch::Sender::new(known),
            image_sets: watch::Sender::new(None),
            warned: None,
        }
    }

    /// Receiver of the pool's name.
    pub(super) fn pool_receiver(&self) -> watch::Receiver<Option<String>> {
        self.pool.subscribe()
    }

    /// Receiver of the pool's sets of images; none before the first list.
    pub(super) fn image_sets_receiver(&self) -> watch::Receiver<Option<ImageSetSelection>> {
        self.image_sets.subscribe()
    }

    /// Updates the pool until `stop`.
    pub(super) async fn follow(self, stop: CancellationToken) {
        let node = self.node.clone();
        node_poll::poll(self, &node, stop).await;
    }

    /// Stores the pool: on disk first, so that a later start knows it.
    async fn save_pool_labels(&mut self, labels: &BTreeMap<String, String>, pools: &[PoolView]) {
        let membership = Membership::of(labels, pools);
        let warning = membership.warning(self.node.name());
        if self.warned != warning {
            if let Some(warning) = &warning {
                tracing::warn!("{warning}");
            }
            self.warned = warning;
        }
        // A node in no pool has no sets, which is known.
        let sets = membership
            .pool
            .map_or_else(ImageSetSelection::default, |pool| {
                ImageSetSelection::of(&pool.spec)
            });
        self.image_sets.send_if_modified(|known| {
            let sets = Some(sets);
            let differs = *known != sets;
            *known = sets;
            differs
        });
        let name = membership.pool.map(|pool| pool.name.clone());
        if *self.pool.borrow() == name {
            return;
        }
        let (root, learned) = (self.root.clone(), name.clone());
        let kept = tokio::task::spawn_blocking(move || match learned {
            Some(name) => root.replace(&paths::pool(), format!("{name}\n").as_bytes(), 0o600),
            None => remove_stored_pool(&root),
        });
        // A lost task is a defect and is logged.
        if let Err(error) = kept.await.unwrap_or(Ok(())) {
            tracing::warn!(
                "failed to store the pool name for the next start: {}",
                chain(&error)
            );
        }
        match &name {
            Some(name) => tracing::info!("node is in pool {name}"),
            None => tracing::info!("node is in no pool"),
        }
        self.pool.send_replace(name);
    }

    /// Handles a failed list. The known pool is kept: an unreachable server or a temporarily
    /// missing kind must not change the settings during an update.
    fn record_read_failure(&self, error: &ClusterError, failures: u32) -> Duration {
        let known = self.pool.borrow();
        let stays = known.as_deref().unwrap_or("none");
        match (failures, error.is_not_found() && known.is_none()) {
            // The cluster has no pools.
            (_, true) => return MAX_RELIST_INTERVAL,
            (0, false) => tracing::warn!(
                reason = %error.reason(),
                "keeping the last known pool ({stays}): {}", chain(error)
            ),
            _ => tracing::debug!("{}", chain(error)),
        }
        let wait = LIST_BACKOFF.wait(failures, jitter());
        wait.max(error.retry_after().unwrap_or_default())
    }
}

impl NodePoll for PoolMembershipTask {
    type Input = MembershipInputs;
    type Answer = Result<Vec<PoolView>, ClusterError>;

    fn input(node: &NodeView) -> MembershipInputs {
        (
            node.labels.clone(),
            node.desired_config().map(str::to_owned),
        )
    }

    async fn read(&self, _: &MembershipInputs) -> Self::Answer {
        fleet_queries::pools(&self.cluster).await
    }

    async fn handle(
        &mut self,
        (labels, _): &MembershipInputs,
        listed: Self::Answer,
        failures: &mut u32,
    ) -> Option<Duration> {
        match listed {
            Ok(pools) => {
                *failures = 0;
                self.save_pool_labels(labels, &pools).await;
                Some(MAX_RELIST_INTERVAL.mul_f64(0.25f64.mul_add(-jitter(), 1.0)))
            }
            Err(error) => {
                let wait = self.record_read_failure(&error, *failures);
                *failures = failures.saturating_add(1);
                Some(wait)
            }
        }
    }
}
