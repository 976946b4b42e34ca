//! The state of the DRA driver, for the rest of the agent.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use tokio::sync::watch;

use machinist_base::rate_limit::LogRates;
use machinist_device::{
    ResourceName,
    dra::{claim_checkpoint::ClaimCheckpoint, traits::PublishedPool},
};

/// The driver's state towards the kubelet and the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverState {
    /// Whether the kubelet has registered the driver.
    pub registered: bool,
    /// Since when `registered` and `reason` are unchanged.
    pub since: Timestamp,
    /// Why it is not registered; `None` when it is.
    pub reason: Option<String>,
    /// Registrations so far: each one may come from a restarted kubelet.
    pub registrations: u64,
    /// The ResourceSlices that are published in the cluster.
    pub published: PublishedPool,
    /// Resources that claims have or may get; no other contract may advertise them.
    pub holding: BTreeSet<ResourceName>,
}

/// The writing side of the state for the driver's tasks. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct DriverStatusWriter(Arc<watch::Sender<DriverState>>, LogRates);

impl DriverStatusWriter {
    pub(super) fn new(checkpoint: &ClaimCheckpoint) -> Self {
        let state = DriverState {
            registered: false,
            since: Timestamp::now(),
            reason: Some("the agent has just started".to_owned()),
            registrations: 0,
            published: PublishedPool {
                generation: checkpoint.generation,
                ..PublishedPool::default()
            },
            holding: checkpoint.claimed_resources(),
        };
        Self(Arc::new(watch::Sender::new(state)), LogRates::default())
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<DriverState> {
        self.0.subscribe()
    }

    /// Records that the kubelet registered the driver, or why not; returns whether this is worth a
    /// log line. Any pod of root that mounts the kubelet's directories can act as the kubelet.
    pub(super) fn registration(&self, reason: Option<&str>) -> bool {
        let is_new = self.0.send_if_modified(|state| {
            let registered = reason.is_none();
            state.registrations += u64::from(registered);
            let is_changed = state.reason.as_deref() != reason;
            if state.registered != registered {
                (state.registered, state.since) = (registered, Timestamp::now());
            }
            state.reason = reason.map(str::to_owned);
            // A repeated registration counts, too: the kubelet has restarted.
            is_changed || registered
        });
        is_new && self.1.take("registration").is_some()
    }

    pub(super) fn published(&self, published: &PublishedPool) {
        self.0.send_if_modified(|state| {
            let is_changed = state.published != *published;
            if is_changed {
                state.published = published.clone();
            }
            is_changed
        });
    }

    pub(super) fn holding(&self, checkpoint: &ClaimCheckpoint) {
        let holding = checkpoint.claimed_resources();
        self.0.send_if_modified(|state| {
            let is_changed = state.holding != holding;
            if is_changed {
                state.holding = holding;
            }
            is_changed
        });
    }
}

/// The current time, for reports.
pub(super) fn now() -> Timestamp {
    Timestamp::now()
}
