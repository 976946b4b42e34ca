//! The pool that our Node is in, for the settings of that pool.
//!
//! The pools are listed at the start, when labels or desired config of our Node change, and about once an
//! hour; nothing is watched. What was learned is kept on the disk: an agent that starts while the API
//! server is away goes on with the settings that it had.

use std::{collections::BTreeMap, time::Duration};

use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    backoff::{Backoff, jitter},
    cluster::{
        Cluster, ClusterError, fleet,
        node::{OwnNode, Sight},
    },
    crd::PoolView,
    pool::Membership,
    root::{Root, RootError},
    telemetry::chain,
    update::store::paths,
};

/// A pool that comes to be, or selects other nodes, is noticed in this time at most: by chance in three
/// quarters of it, so that agents that began together do not ask together.
const SELDOM: Duration = Duration::from_secs(4500);

/// Waits after the pools could not be listed.
const RETRY: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(600));

/// As long as the name of a Kubernetes object may be.
const LONGEST: u64 = 253;

/// The pool that was learned last; none where none was, or what is kept is no name.
pub fn known(root: &Root) -> Option<String> {
    let text = root.read_text(&paths::pool(), LONGEST + 1).ok()?;
    let name = text.trim_end_matches('\n');
    is_name(name).then(|| name.to_owned())
}

/// Whether a text may be a pool's name.
pub fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let ends = text.starts_with('.') || text.ends_with('.');
    !text.is_empty() && text.chars().all(plain) && !ends
}

/// Forgets what was learned.
pub fn forget(root: &Root) -> Result<(), RootError> {
    root.remove_file(&paths::pool())
}

/// Our Node as a member of a pool.
#[derive(Debug)]
pub(super) struct Member {
    root: Root,
    cluster: Cluster,
    node: OwnNode,
    pool: watch::Sender<Option<String>>,
    /// What was said last about several pools.
    warned: Option<String>,
}

/// What the pool depends on, as far as our Node says it. A new config is the moment at which it counts.
type Claim = (BTreeMap<String, String>, Option<String>);

impl Member {
    /// `known` is what the settings were read with.
    pub(super) fn new(root: &Root, cluster: Cluster, node: OwnNode, known: Option<String>) -> Self {
        Self {
            root: root.clone(),
            cluster,
            node,
            pool: watch::Sender::new(known),
            warned: None,
        }
    }

    /// The pool, now and whenever it changes.
    pub(super) fn told(&self) -> watch::Receiver<Option<String>> {
        self.pool.subscribe()
    }

    /// Learns of it until `stop`.
    pub(super) async fn follow(mut self, stop: CancellationToken) {
        let mut sights = self.node.sights();
        let mut failures = 0;
        loop {
            let claim = claim(&sights.borrow_and_update());
            let wait = match &claim {
                None => None,
                Some((labels, _)) => tokio::select! {
                    () = stop.cancelled() => return,
                    // Safe to drop: it only reads.
                    listed = fleet::pools(&self.cluster) => match listed {
                        Ok(pools) => {
                            failures = 0;
                            self.learn(labels, &pools).await;
                            Some(SELDOM.mul_f64(0.25f64.mul_add(-jitter(), 1.0)))
                        }
                        Err(error) => {
                            let wait = self.unheard(&error, failures);
                            failures = failures.saturating_add(1);
                            Some(wait)
                        }
                    },
                },
            };
            tokio::select! {
                () = stop.cancelled() => return,
                // Safe to drop, both: the claim is compared anew, and time passes by itself.
                () = other(&mut sights, claim.as_ref()) => failures = 0,
                () = passed(wait) => {}
            }
        }
    }

    /// Takes note of the pool: on the disk first, so that a start after this knows it.
    async fn learn(&mut self, labels: &BTreeMap<String, String>, pools: &[PoolView]) {
        let membership = Membership::of(labels, pools);
        let warning = membership.warning(self.node.name());
        if self.warned != warning {
            if let Some(warning) = &warning {
                tracing::warn!("{warning}");
            }
            self.warned = warning;
        }
        let name = membership.pool.map(|pool| pool.name.clone());
        if *self.pool.borrow() == name {
            return;
        }
        let (root, learned) = (self.root.clone(), name.clone());
        let kept = tokio::task::spawn_blocking(move || match learned {
            Some(name) => root.replace(&paths::pool(), format!("{name}\n").as_bytes(), 0o600),
            None => forget(&root),
        });
        // A lost task is a defect that the log shows.
        if let Err(error) = kept.await.unwrap_or(Ok(())) {
            tracing::warn!("the next start may not know the pool: {}", chain(&error));
        }
        match &name {
            Some(name) => tracing::info!("this node is in pool {name}"),
            None => tracing::info!("this node is in no pool"),
        }
        self.pool.send_replace(name);
    }

    /// What is known stays: a server that is away, or a kind that is gone for a moment, must not change
    /// the settings in the midst of an update.
    fn unheard(&self, error: &ClusterError, failures: u32) -> Duration {
        let known = self.pool.borrow();
        let stays = known.as_deref().unwrap_or("none");
        match (failures, error.is_not_found() && known.is_none()) {
            // A cluster without pools.
            (_, true) => return SELDOM,
            (0, false) => tracing::warn!(
                reason = %error.reason(),
                "the pool that is known stays ({stays}): {}", chain(error)
            ),
            _ => tracing::debug!("{}", chain(error)),
        }
        let wait = RETRY.wait(failures, jitter());
        wait.max(error.retry_after().unwrap_or_default())
    }
}

fn claim(sight: &Sight) -> Option<Claim> {
    let node = sight.node.as_ref()?;
    Some((
        node.labels.clone(),
        node.desired_config().map(str::to_owned),
    ))
}

/// Waits until our Node claims something else.
async fn other(sights: &mut watch::Receiver<Sight>, known: Option<&Claim>) {
    let differs = |sight: &Sight| {
        sight.node.as_ref().is_some_and(|node| {
            known.is_none_or(|(labels, desired)| {
                node.labels != *labels || node.desired_config() != desired.as_deref()
            })
        })
    };
    if sights.wait_for(differs).await.is_err() {
        std::future::pending().await
    }
}

async fn passed(wait: Option<Duration>) {
    match wait {
        Some(wait) => sleep(wait).await,
        None => std::future::pending().await,
    }
}
