//! What the rest of the agent is told of the driver.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use tokio::sync::watch;

use crate::device::{ResourceName, dra::ports::Published, dra::prepared::Book};

/// The driver, as the kubelet and the cluster have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverState {
    /// Whether the kubelet took its registration.
    pub registered: bool,
    /// Since when that is as it is.
    pub since: Timestamp,
    /// Why it has not, in words; none when it has.
    pub reason: Option<String>,
    /// Registrations so far: the kubelet may be another one each time.
    pub registrations: u64,
    /// What the cluster was told.
    pub published: Published,
    /// Resources that claims have or may be given: nobody else may lend them.
    pub holding: BTreeSet<ResourceName>,
}

/// Where the tasks of this room write what they know. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Board(Arc<watch::Sender<DriverState>>);

impl Board {
    pub(super) fn new(book: &Book) -> Self {
        let state = DriverState {
            registered: false,
            since: Timestamp::now(),
            reason: Some("the agent has just started".to_owned()),
            registrations: 0,
            published: Published {
                generation: book.generation,
                ..Published::default()
            },
            holding: book.holding(),
        };
        Self(Arc::new(watch::Sender::new(state)))
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<DriverState> {
        self.0.subscribe()
    }

    /// The kubelet took the registration, or why it has not; says whether this is news.
    pub(super) fn registration(&self, reason: Option<&str>) -> bool {
        self.0.send_if_modified(|state| {
            let registered = reason.is_none();
            state.registrations += u64::from(registered);
            let news = state.reason.as_deref() != reason;
            if state.registered != registered {
                (state.registered, state.since) = (registered, Timestamp::now());
            }
            state.reason = reason.map(str::to_owned);
            // A registration that follows another is told, too: the kubelet started anew.
            news || registered
        })
    }

    pub(super) fn published(&self, published: &Published) {
        self.0.send_if_modified(|state| {
            let news = state.published != *published;
            if news {
                state.published = published.clone();
            }
            news
        });
    }

    pub(super) fn holding(&self, book: &Book) {
        let holding = book.holding();
        self.0.send_if_modified(|state| {
            let news = state.holding != holding;
            if news {
                state.holding = holding;
            }
            news
        });
    }
}

/// For what is told with its time.
pub(super) fn now() -> Timestamp {
    Timestamp::now()
}
