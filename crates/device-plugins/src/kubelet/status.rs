//! The state of the kubelet and our registrations, for the rest of the agent.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{sync::watch, time::Instant};

use super::registration_log::{RegistrationLog, RegistrationOutcome};
use machinist_base::{rate_limit::LogRates, shutdown::Tasks};
use machinist_device::{
    ResourceName,
    status::{Attempts, KubeletPresence, Registration},
};

/// The kubelet's state and the resources registered with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletState {
    /// Whether it is running.
    pub presence: KubeletPresence,
    /// By resource; resources that had no device so far are missing.
    pub registrations: BTreeMap<ResourceName, Registration>,
    /// Registration attempts since the start.
    pub attempts: Attempts,
}

impl KubeletState {
    /// Records a registration's state; returns whether it changed.
    fn note(&mut self, resource: &ResourceName, reason: Option<&str>) -> bool {
        let registered = reason.is_none();
        let known = self.registrations.get(resource);
        if known.is_some_and(|known| known.reason.as_deref() == reason) {
            return false;
        }
        let same = known.filter(|known| known.registered == registered);
        let now = Registration {
            registered,
            since: same.map_or_else(Timestamp::now, |known| known.since),
            reason: reason.map(str::to_owned),
        };
        self.registrations.insert(resource.clone(), now);
        true
    }
}

/// Number and time of the kubelet's allocation calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocations {
    /// Calls not answered yet.
    pub in_flight: u32,
    /// Calls answered, with success or not.
    pub answered: u64,
    /// When the last one was answered. The kubelet takes a moment to store the result.
    pub last: Option<Instant>,
}

impl Allocations {
    /// Whether an allocation is in progress, or ended within `lately`, so that the kubelet may not
    /// have stored it yet.
    pub fn is_allocating(&self, lately: Duration) -> bool {
        self.in_flight > 0 || self.last.is_some_and(|last| last.elapsed() < lately)
    }
}

/// Counts allocations in progress. Cheap to clone; clones count together.
#[derive(Clone, Debug, Default)]
pub struct InFlightAllocations(Arc<watch::Sender<Allocations>>);

impl InFlightAllocations {
    /// The counts, as a watch.
    pub fn counts(&self) -> watch::Receiver<Allocations> {
        self.0.subscribe()
    }

    /// Counts one allocation from now until the value is dropped.
    pub fn begin(&self) -> InFlightGuard {
        self.0.send_modify(|all| all.in_flight += 1);
        InFlightGuard(self.clone())
    }
}

/// The writing side of the state for the module's tasks. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct KubeletStatusWriter {
    state: Arc<watch::Sender<KubeletState>>,
    /// Separate, so that an allocation does not cause the whole state to be evaluated again.
    allocations: InFlightAllocations,
    log: RegistrationLog,
    /// By resource, or "directory". A pod of root that mounts the kubelet's directory can replace
    /// sockets, play the kubelet, and call our services.
    pub(super) log_rates: LogRates,
}

impl KubeletStatusWriter {
    pub(super) fn new(tasks: &Tasks) -> Self {
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
        Self {
            state: Arc::new(watch::Sender::new(state)),
            allocations: InFlightAllocations::default(),
            log: RegistrationLog::start(tasks),
            log_rates: LogRates::default(),
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<KubeletState> {
        self.state.subscribe()
    }

    pub(super) fn allocations(&self) -> watch::Receiver<Allocations> {
        self.allocations.counts()
    }

    /// Records that the kubelet runs, or the reason why not; returns whether this changed.
    pub(super) fn presence(&self, reason: Option<&str>) -> bool {
        self.state.send_if_modified(|state| {
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

    /// Records that the kubelet accepted the resource, `after` its socket was noticed.
    pub(super) fn registered(&self, resource: &ResourceName, after: Duration) {
        let mut is_changed = false;
        self.state.send_modify(|state| {
            state.attempts.accepted += 1;
            is_changed = state.note(resource, None);
        });
        if is_changed {
            self.log
                .send(resource, RegistrationOutcome::Registered(after));
        }
    }

    /// Records that the resource was refused or not found; returns whether this changed.
    pub(super) fn failed(&self, resource: &ResourceName, reason: &str) -> bool {
        let mut is_changed = false;
        self.state.send_modify(|state| {
            state.attempts.failed += 1;
            is_changed = state.note(resource, Some(reason));
        });
        is_changed
    }

    /// Records that the resource is no longer registered.
    pub(super) fn lost(&self, resource: &ResourceName, why: &'static str) {
        let note = |state: &mut KubeletState| state.note(resource, Some(why));
        if self.state.send_if_modified(note) {
            self.log.send(resource, RegistrationOutcome::Lost(why));
        }
    }

    /// Records that a registration starts. From now until it is forgotten no other contract may
    /// advertise the resource.
    pub(super) fn record_start(&self, resource: &ResourceName) {
        self.state.send_if_modified(|state| {
            let known = state.registrations.contains_key(resource);
            !known && state.note(resource, Some("it is about to be registered"))
        });
    }

    /// Records that there is no kubelet to register with.
    pub(super) fn record_waiting(&self, resource: &ResourceName) {
        let why = Some("kubelet not found");
        self.state
            .send_if_modified(|state| state.note(resource, why));
    }

    /// Counts an allocation from now until the answer is dropped.
    pub(super) fn allocating(&self) -> InFlightGuard {
        self.allocations.begin()
    }

    pub(super) fn forget(&self, resource: &ResourceName) {
        self.state
            .send_if_modified(|state| state.registrations.remove(resource).is_some());
    }

    /// Records that the kubelet has no resource of ours any more.
    pub(super) fn clear(&self) {
        self.state.send_if_modified(|state| {
            let known = std::mem::take(&mut state.registrations);
            !known.is_empty()
        });
    }
}

/// One counted allocation; also ends when the kubelet cancels the call.
#[derive(Debug)]
pub struct InFlightGuard(InFlightAllocations);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.0.send_modify(|all| {
            all.in_flight = all.in_flight.saturating_sub(1);
            all.answered += 1;
            all.last = Some(Instant::now());
        });
    }
}
