//! What the rest of the agent is told of the kubelet.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use tokio::sync::watch;

use crate::device::{
    ResourceName,
    status::{Attempts, KubeletPresence, Registration},
};

/// The kubelet, and what it took from us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletState {
    /// Whether it is there.
    pub presence: KubeletPresence,
    /// By resource; resources without a device so far are missing.
    pub registrations: BTreeMap<ResourceName, Registration>,
    /// Registrations tried since the start.
    pub attempts: Attempts,
}

/// Where the tasks of this room write what they know. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Board(Arc<watch::Sender<KubeletState>>);

impl Board {
    pub(super) fn new() -> Self {
        let presence = KubeletPresence {
            present: false,
            since: Timestamp::now(),
            reason: Some("the agent has just started".to_owned()),
        };
        let state = KubeletState {
            presence,
            registrations: BTreeMap::new(),
            attempts: Attempts::default(),
        };
        Self(Arc::new(watch::Sender::new(state)))
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<KubeletState> {
        self.0.subscribe()
    }

    /// Says whether this is news.
    pub(super) fn presence(&self, reason: Option<&str>) -> bool {
        self.0.send_if_modified(|state| {
            let known = &mut state.presence;
            if known.reason.as_deref() == reason {
                return false;
            }
            if known.present != reason.is_none() {
                (known.present, known.since) = (reason.is_none(), Timestamp::now());
            }
            known.reason = reason.map(str::to_owned);
            true
        })
    }

    /// Says whether this is news.
    pub(super) fn registration(&self, resource: &ResourceName, reason: Option<&str>) -> bool {
        self.0.send_if_modified(|state| {
            let registered = reason.is_none();
            let known = state.registrations.get(resource);
            if known.is_some_and(|known| known.reason.as_deref() == reason) {
                return false;
            }
            let same = known.filter(|known| known.registered == registered);
            let since = same.map_or_else(Timestamp::now, |known| known.since);
            let reason = reason.map(str::to_owned);
            let now = Registration {
                registered,
                since,
                reason,
            };
            state.registrations.insert(resource.clone(), now);
            true
        })
    }

    /// Counts an attempt to register a resource.
    pub(super) fn attempted(&self, accepted: bool) {
        self.0.send_modify(|state| {
            let count = match accepted {
                true => &mut state.attempts.accepted,
                false => &mut state.attempts.failed,
            };
            *count += 1;
        });
    }

    pub(super) fn forget(&self, resource: &ResourceName) {
        self.0
            .send_if_modified(|state| state.registrations.remove(resource).is_some());
    }
}
