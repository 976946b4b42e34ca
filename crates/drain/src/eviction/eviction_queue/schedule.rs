//! Determines which request is due, and when the next one will be.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::{DEADLINE_SLACK, DueRequest, EvictionQueue, EvictionState, PodEntry};
use crate::{ForceAction, Pod, PriorityTier, WaitReason, eviction::Options};

impl EvictionQueue {
    /// Returns the next due request and marks it as running. `spent` and `ordered` determine
    /// whether it is forced.
    pub(in crate::eviction) fn start_next(
        &mut self,
        options: &Options,
        spent: Duration,
        forced_by_operator: bool,
        at: Instant,
    ) -> Option<DueRequest> {
        let tier = self.tier()?;
        let mut chosen = None;
        for entry in self.entries.values() {
            let EvictionState::Due(due) = entry.state else {
                continue;
            };
            if PriorityTier::of(&entry.pod) != tier {
                continue;
            }
            let pod = &entry.pod;
            let act = options
                .limits
                .act(pod, self.is_budgeted(pod), spent, forced_by_operator);
            let forced = act == ForceAction::Delete;
            // What blocked the eviction is ignored; only a refused deletion delays the next
            // attempt.
            let ready = match forced && !entry.delete_tried {
                true => true,
                false => due <= at && (forced || self.may_request(pod, at)),
            };
            if ready {
                chosen = Some((pod.id.clone(), forced, self.budget_key(pod)));
                break;
            }
        }
        let (pod, forced, key) = chosen?;
        let mut blocked_by_budget = false;
        if let Some(entry) = self.entries.get_mut(&pod) {
            entry.state = EvictionState::Requested;
            entry.delete_tried |= forced;
            blocked_by_budget = entry.is_blocked_by_budget();
        }
        if let Some(backoff) = key.and_then(|key| self.budget_backoffs.get_mut(&key)) {
            backoff.request_running |= !forced;
        }
        Some(DueRequest {
            pod,
            forced,
            blocked_by_budget,
        })
    }

    fn may_request(&self, pod: &Pod, at: Instant) -> bool {
        let backoff = self
            .budget_key(pod)
            .and_then(|key| self.budget_backoffs.get(&key));
        let held = backoff.is_some_and(|backoff| backoff.request_running || backoff.until > at);
        !held && self.throttled.is_none_or(|until| until <= at)
    }

    /// When the next request may be due, or when the reported state of a pod changes through time
    /// alone.
    pub(in crate::eviction) fn next_wakes(
        &self,
        options: &Options,
        now: Timestamp,
    ) -> impl Iterator<Item = NextWake> {
        let tier = self.tier();
        let due = self.entries.values().filter_map(move |entry| {
            let here = Some(PriorityTier::of(&entry.pod)) == tier;
            match entry.state {
                EvictionState::Due(due) if here => {
                    self.earliest_request(entry, due).map(NextWake::At)
                }
                _ => None,
            }
        });
        let skip = options.rules.skip_deleted;
        let overdue = self.entries.values().filter_map(move |entry| {
            let deadline = entry
                .pod
                .deleting
                .filter(|_| entry.state != EvictionState::LeftBehind)?;
            let left = Duration::try_from(deadline.duration_since(now)).unwrap_or_default();
            let passed = Duration::try_from(now.duration_since(deadline)).unwrap_or_default();
            let steps = [Some(WaitReason::OVERDUE_AFTER), skip]
                .into_iter()
                .flatten();
            let to_come =
                steps.filter_map(|step| (left + step + DEADLINE_SLACK).checked_sub(passed));
            to_come
                .filter(|time| !time.is_zero())
                .min()
                .map(NextWake::In)
        });
        due.chain(overdue)
    }

    /// When a pod may be requested; none while a request for another pod of its budget is running.
    fn earliest_request(&self, entry: &PodEntry, due: Instant) -> Option<Instant> {
        let backoff = self
            .budget_key(&entry.pod)
            .and_then(|key| self.budget_backoffs.get(&key));
        if backoff.is_some_and(|backoff| backoff.request_running) {
            return None;
        }
        let until = backoff.map_or(due, |backoff| backoff.until.max(due));
        Some(
            self.throttled
                .map_or(until, |throttled| throttled.max(until)),
        )
    }
}

/// When to check again.
#[derive(Clone, Copy, Debug)]
pub(in crate::eviction) enum NextWake {
    At(Instant),
    In(Duration),
}
