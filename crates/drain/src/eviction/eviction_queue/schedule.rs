//! Determines which request is due, and when the next one will be.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::{DEADLINE_SLACK, DueRequest, EvictionQueue, EvictionState, PodEntry};
use crate::{ForceAction, Pod, PriorityTier, WaitReason, eviction::Options};

impl EvictionQueue {
    /// Returns the next due request and marks it as running. `spent` and `ordered` determine
    /// whether it is forced.
    pub(in crate::eviction) fn next(
        &mut self,
        options: &Options,
        spent: Duration,
        ordered: bool,
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
                .act(pod, self.is_budgeted(pod), spent, ordered);
            let forced = act == ForceAction::Delete;
            // What blocked the eviction is ignored; only a refused deletion delays the next
            // attempt.
            let ready = match forced && !entry.delete_tried {
                true => true,
                false => due <= at && (forced || self.may_ask(pod, at)),
            };
            if ready {
                chosen = Some((pod.id.clone(), forced, self.key(pod)));
                break;
            }
        }
        let (pod, forced, key) = chosen?;
        let mut kept = false;
        if let Some(entry) = self.entries.get_mut(&pod) {
            entry.state = EvictionState::Asking;
            entry.delete_tried |= forced;
            kept = entry.is_kept_by_budget();
        }
        if let Some(hold) = key.and_then(|key| self.holds.get_mut(&key)) {
            hold.asking |= !forced;
        }
        Some(DueRequest { pod, forced, kept })
    }

    fn may_ask(&self, pod: &Pod, at: Instant) -> bool {
        let hold = self.key(pod).and_then(|key| self.holds.get(&key));
        let held = hold.is_some_and(|hold| hold.asking || hold.until > at);
        !held && self.throttled.is_none_or(|until| until <= at)
    }

    /// When the next request may be due, or when the reported state of a pod changes through time
    /// alone.
    pub(in crate::eviction) fn wake(
        &self,
        options: &Options,
        now: Timestamp,
    ) -> impl Iterator<Item = NextWake> {
        let tier = self.tier();
        let due = self.entries.values().filter_map(move |entry| {
            let here = Some(PriorityTier::of(&entry.pod)) == tier;
            match entry.state {
                EvictionState::Due(due) if here => self.not_before(entry, due).map(NextWake::At),
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
    fn not_before(&self, entry: &PodEntry, due: Instant) -> Option<Instant> {
        let hold = self.key(&entry.pod).and_then(|key| self.holds.get(&key));
        if hold.is_some_and(|hold| hold.asking) {
            return None;
        }
        let until = hold.map_or(due, |hold| hold.until.max(due));
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
