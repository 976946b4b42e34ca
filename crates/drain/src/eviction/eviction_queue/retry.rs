//! Processes the server's responses to requests for single pods.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

use super::{BudgetBackoff, DueRequest, EVICTION_BACKOFF, EvictionQueue, EvictionState};
use crate::{Pod, PodId, WaitReason};
use machinist_base::backoff::jitter;

impl EvictionQueue {
    /// The server accepted a request.
    pub(in crate::eviction) fn record_accepted(
        &mut self,
        request: &DueRequest,
        at: Instant,
        now: Timestamp,
    ) {
        let id = &request.pod;
        self.note_lost(id);
        // Before the entry is looked up: the watch may have reported the deletion before this
        // response.
        if request.forced {
            self.forced.insert(id.clone(), request.kept);
        }
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        entry.state = EvictionState::Leaving(at);
        entry.leaving_since.get_or_insert(now);
        entry.kept_by = None;
        entry.failures = 0;
        let pod = entry.pod.clone();
        self.release(&pod, Some(at));
    }

    /// A pod that no controller recreates counts as lost from the accepted eviction on.
    fn note_lost(&mut self, id: &PodId) {
        let of_it = self.notes.iter().filter(|(pod, _)| pod == id);
        let lost: Vec<_> = of_it
            .filter(|(_, note)| note.is_for_good())
            .filter(|note| !self.lost.contains(note))
            .cloned()
            .collect();
        if !lost.is_empty() {
            Arc::make_mut(&mut self.lost).extend(lost);
        }
    }

    /// The server refused: the pod is retried after the server's delay or our own backoff.
    pub(in crate::eviction) fn record_refused(
        &mut self,
        id: &PodId,
        what: Option<WaitReason>,
        after: Option<Duration>,
        at: Instant,
        now: Timestamp,
    ) {
        let Some(pod) = self.pod(id).cloned() else {
            return;
        };
        let pause = |failures| after.unwrap_or_else(|| EVICTION_BACKOFF.wait(failures, jitter()));
        let budget = matches!(what, Some(WaitReason::Budget(..) | WaitReason::Never(..)));
        let hold = self.key(&pod).filter(|_| budget);
        if let Some(entry) = self.entries.get_mut(id) {
            // If its budget is known, all pods that it matches share one backoff.
            let due = match hold.is_some() {
                true => at,
                false => at + pause(entry.failures),
            };
            entry.failures += 1;
            entry.state = match entry.pod.is_terminating() {
                true => EvictionState::Leaving(at),
                false => EvictionState::Due(due),
            };
            if let Some(what) = what {
                entry.keep(what, now);
            }
        }
        let Some(key) = hold else {
            return self.release(&pod, Some(at));
        };
        let hold = self.holds.entry(key).or_insert(BudgetBackoff {
            until: at,
            failures: 0,
            asking: false,
        });
        // Concurrent requests that are refused together count as one failure.
        if hold.until <= at {
            hold.until = at + pause(hold.failures);
            hold.failures += 1;
        } else if let Some(after) = after {
            hold.until = hold.until.max(at + after);
        }
        hold.asking = false;
        self.share(&pod, now);
    }

    /// Records the same blocker for all other pods that the budget matches.
    fn share(&mut self, pod: &Pod, now: Timestamp) {
        let key = self.key(pod);
        let waiting = self
            .entries
            .values()
            .filter(|one| matches!(one.state, EvictionState::Due(_)));
        let same = waiting.filter(|one| one.pod.id != pod.id && self.key(&one.pod) == key);
        let told: Vec<_> = same
            .filter_map(|one| Some((one.pod.id.clone(), self.predicted_blocker(&one.pod)?)))
            .collect();
        for (id, what) in told {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.keep(what, now);
            }
        }
    }

    /// No response was received: the pod is as if it had not been requested.
    pub(in crate::eviction) fn record_unanswered(&mut self, id: &PodId, at: Instant) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        entry.state = match entry.pod.is_terminating() {
            true => EvictionState::Leaving(at),
            false => EvictionState::Due(at),
        };
        let pod = entry.pod.clone();
        self.release(&pod, None);
    }

    /// Ends the running request for the pod's budget; with a time, the budget allowed an eviction
    /// at that time.
    pub(super) fn release(&mut self, pod: &Pod, yes: Option<Instant>) {
        let Some(hold) = self.key(pod).and_then(|key| self.holds.get_mut(&key)) else {
            return;
        };
        hold.asking = false;
        if let Some(at) = yes {
            hold.failures = 0;
            hold.until = at;
        }
    }
}
