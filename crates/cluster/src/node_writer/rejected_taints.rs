//! Taints that the API server refuses: each is retried after a while, and the other writes go on.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::{
    ClusterError,
    events::{EventSubject, Events},
};
use machinist_base::error_chain::chain;
use machinist_kube_api::EventReason;

/// An administrator who allows the taint waits at most this long for it.
const REFUSED_TAINT_RETRY_INTERVAL: Duration = Duration::from_secs(300);

/// The refused taints by key and effect, each with the time of its next try.
pub(super) struct RefusedTaints {
    events: Events,
    next_try: BTreeMap<String, Instant>,
}

impl RefusedTaints {
    pub(super) const fn new(events: Events) -> Self {
        Self {
            events,
            next_try: BTreeMap::new(),
        }
    }

    /// Whether this taint must not be written yet.
    pub(super) fn is_deferred(&self, taint: &str) -> bool {
        let next = self.next_try.get(taint);
        next.is_some_and(|when| *when > Instant::now())
    }

    /// When the next of them is retried.
    pub(super) fn next_try(&self) -> Option<Instant> {
        let now = Instant::now();
        self.next_try.values().copied().filter(|it| *it > now).min()
    }

    /// Records a write that the API server forbids, and emits an event for the first refusal of a
    /// taint.
    pub(super) fn record_refusal(&mut self, taint: &str, error: &ClusterError) {
        let when = Instant::now() + REFUSED_TAINT_RETRY_INTERVAL;
        if self.next_try.insert(taint.to_owned(), when).is_some() {
            tracing::debug!(taint, "{}", chain(error));
            return;
        }
        let note = format!("API server rejected taint {taint}: {}", error.why);
        tracing::warn!(reason = %error.reason(), "{note}");
        self.events
            .emit(EventSubject::Node, EventReason::TaintRefused, note);
    }

    /// Records that a taint was written.
    pub(super) fn record_write(&mut self, taint: &str) {
        self.next_try.remove(taint);
    }

    /// Forgets every refusal, because the Node was recreated.
    pub(super) fn clear(&mut self) {
        self.next_try.clear();
    }
}
