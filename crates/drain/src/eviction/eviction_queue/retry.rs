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
        self.record_lost_pod(id);
        // Before the entry is looked up: the watch may have reported the deletion before this
        // response.
        if request.forced {
            self.forced_pods
                .insert(id.clone(), request.blocked_by_budget);
        }
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        entry.state = EvictionState::Terminating(at);
        entry.terminating_since.get_or_insert(now);
        entry.blocker = None;
        entry.failures = 0;
        let pod = entry.pod.clone();
        self.end_budget_request(&pod, Some(at));
    }

    /// A pod that no controller recreates counts as lost from the accepted eviction on.
    fn record_lost_pod(&mut self, id: &PodId) {
        let of_it = self.notes.iter().filter(|(pod, _)| pod == id);
        let lost: Vec<_> = of_it
            .filter(|(_, note)| note.is_for_good())
            .filter(|note| !self.loss_notes.contains(note))
            .cloned()
            .collect();
        if !lost.is_empty() {
            Arc::make_mut(&mut self.loss_notes).extend(lost);
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
        let backoff = self.budget_key(&pod).filter(|_| budget);
        if let Some(entry) = self.entries.get_mut(id) {
            // If its budget is known, all pods that it matches share one backoff.
            let due = match backoff.is_some() {
                true => at,
                false => at + pause(entry.failures),
            };
            entry.failures += 1;
            entry.state = match entry.pod.is_terminating() {
                true => EvictionState::Terminating(at),
                false => EvictionState::Due(due),
            };
            if let Some(what) = what {
                entry.record_blocker(what, now);
            }
        }
        let Some(key) = backoff else {
            return self.end_budget_request(&pod, Some(at));
        };
        let backoff = self.budget_backoffs.entry(key).or_insert(BudgetBackoff {
            until: at,
            failures: 0,
            request_running: false,
        });
        // Concurrent requests that are refused together count as one failure.
        if backoff.until <= at {
            backoff.until = at + pause(backoff.failures);
            backoff.failures += 1;
        } else if let Some(after) = after {
            backoff.until = backoff.until.max(at + after);
        }
        backoff.request_running = false;
        self.share_blocker(&pod, now);
    }

    /// Records the same blocker for all other pods that the budget matches.
    fn share_blocker(&mut self, pod: &Pod, now: Timestamp) {
        let key = self.budget_key(pod);
        let waiting = self
            .entries
            .values()
            .filter(|entry| matches!(entry.state, EvictionState::Due(_)));
        let same =
            waiting.filter(|entry| entry.pod.id != pod.id && self.budget_key(&entry.pod) == key);
        let blockers: Vec<_> = same
            .filter_map(|entry| Some((entry.pod.id.clone(), self.predicted_blocker(&entry.pod)?)))
            .collect();
        for (id, what) in blockers {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.record_blocker(what, now);
            }
        }
    }

    /// No response was received: the pod is as if it had not been requested.
    pub(in crate::eviction) fn record_unanswered(&mut self, id: &PodId, at: Instant) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        entry.state = match entry.pod.is_terminating() {
            true => EvictionState::Terminating(at),
            false => EvictionState::Due(at),
        };
        let pod = entry.pod.clone();
        self.end_budget_request(&pod, None);
    }

    /// Ends the running request for the pod's budget; with a time, the budget allowed an eviction
    /// at that time.
    pub(super) fn end_budget_request(&mut self, pod: &Pod, allowed_at: Option<Instant>) {
        let Some(backoff) = self
            .budget_key(pod)
            .and_then(|key| self.budget_backoffs.get_mut(&key))
        else {
            return;
        };
        backoff.request_running = false;
        if let Some(at) = allowed_at {
            backoff.failures = 0;
            backoff.until = at;
        }
    }
}
