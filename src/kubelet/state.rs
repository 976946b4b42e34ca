//! What the rest of the agent is told of the kubelet.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{sync::watch, time::Instant};

use super::news::{Became, News};
use crate::{
    device::{
        ResourceName,
        status::{Attempts, KubeletPresence, Registration},
    },
    shutdown::Tasks,
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

impl KubeletState {
    /// Says whether this is news.
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

/// How often the kubelet asked for devices, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocations {
    /// Asked and not answered yet.
    pub in_flight: u32,
    /// Answered, one way or the other.
    pub answered: u64,
    /// When the last one was answered. It takes the kubelet a moment to write down what it got.
    pub last: Option<Instant>,
}

impl Allocations {
    /// Whether the kubelet is being given something, or was within `lately` and may not have written it down.
    pub fn is_giving(&self, lately: Duration) -> bool {
        self.in_flight > 0 || self.last.is_some_and(|last| last.elapsed() < lately)
    }
}

/// Counts what the kubelet asks for and has not been given yet. Cheap to clone; all clones count together.
#[derive(Clone, Debug, Default)]
pub struct Giving(Arc<watch::Sender<Allocations>>);

impl Giving {
    /// What was counted.
    pub fn told(&self) -> watch::Receiver<Allocations> {
        self.0.subscribe()
    }

    /// Counts one, from now until it is dropped.
    pub fn begin(&self) -> Given {
        self.0.send_modify(|all| all.in_flight += 1);
        Given(self.clone())
    }
}

/// Where the tasks of this room write what they know. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Board {
    state: Arc<watch::Sender<KubeletState>>,
    /// Apart: nobody works out the state anew for an allocation.
    allocations: Giving,
    news: News,
}

impl Board {
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
            allocations: Giving::default(),
            news: News::start(tasks),
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<KubeletState> {
        self.state.subscribe()
    }

    pub(super) fn allocations(&self) -> watch::Receiver<Allocations> {
        self.allocations.told()
    }

    /// Says whether this is news.
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

    /// The kubelet took it, so long after it had shown itself.
    pub(super) fn registered(&self, resource: &ResourceName, after: Duration) {
        let mut news = false;
        self.state.send_modify(|state| {
            state.attempts.accepted += 1;
            news = state.note(resource, None);
        });
        if news {
            self.news.tell(resource, Became::Registered(after));
        }
    }

    /// It was not taken, or not found. Says whether this is news.
    pub(super) fn failed(&self, resource: &ResourceName, reason: &str) -> bool {
        let mut news = false;
        self.state.send_modify(|state| {
            state.attempts.failed += 1;
            news = state.note(resource, Some(reason));
        });
        news
    }

    /// It is registered no more.
    pub(super) fn lost(&self, resource: &ResourceName, why: &'static str) {
        let note = |state: &mut KubeletState| state.note(resource, Some(why));
        if self.state.send_if_modified(note) {
            self.news.tell(resource, Became::Lost(why));
        }
    }

    /// It may be registered from now on: until it is forgotten, nobody else lends it.
    pub(super) fn begins(&self, resource: &ResourceName) {
        self.state.send_if_modified(|state| {
            let known = state.registrations.contains_key(resource);
            !known && state.note(resource, Some("it is about to be registered"))
        });
    }

    /// There is no kubelet to register it with.
    pub(super) fn waits(&self, resource: &ResourceName) {
        let why = Some("there is no kubelet");
        self.state
            .send_if_modified(|state| state.note(resource, why));
    }

    /// Counts an allocation, from now until the answer is dropped.
    pub(super) fn allocating(&self) -> Given {
        self.allocations.begin()
    }

    pub(super) fn forget(&self, resource: &ResourceName) {
        self.state
            .send_if_modified(|state| state.registrations.remove(resource).is_some());
    }

    /// The kubelet has nothing of ours any more.
    pub(super) fn forget_all(&self) {
        self.state.send_if_modified(|state| {
            let known = std::mem::take(&mut state.registrations);
            !known.is_empty()
        });
    }
}

/// Something that the kubelet is being given; what it gives up waiting for counts no longer either.
#[derive(Debug)]
pub struct Given(Giving);

impl Drop for Given {
    fn drop(&mut self) {
        self.0.0.send_modify(|all| {
            all.in_flight = all.in_flight.saturating_sub(1);
            all.answered += 1;
            all.last = Some(Instant::now());
        });
    }
}
