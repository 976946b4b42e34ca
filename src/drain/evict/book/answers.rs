//! What the server said to requests for single pods.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

use super::{Book, Hold, PAUSES, Request, State};
use crate::{
    backoff::jitter,
    drain::{Pod, PodId, What},
};

impl Book {
    /// The server said yes to a request.
    pub(in crate::drain::evict) fn accepted(
        &mut self,
        request: &Request,
        at: Instant,
        now: Timestamp,
    ) {
        let id = &request.pod;
        self.note_lost(id);
        // Before the entry is looked for: the watch may have told of the pod's end before this answer came.
        if request.forced {
            self.forced.insert(id.clone(), request.kept);
        }
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        entry.state = State::Leaving(at);
        entry.leaving_since.get_or_insert(now);
        entry.kept_by = None;
        entry.failures = 0;
        let pod = entry.pod.clone();
        self.release(&pod, Some(at));
    }

    /// Whom nobody makes anew is lost from now on, and not before.
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

    /// The server said no: the pod waits, for as long as the server or our own pauses say.
    pub(in crate::drain::evict) fn refused(
        &mut self,
        id: &PodId,
        what: Option<What>,
        after: Option<Duration>,
        at: Instant,
        now: Timestamp,
    ) {
        let Some(pod) = self.pod(id).cloned() else {
            return;
        };
        let pause = |failures| after.unwrap_or_else(|| PAUSES.wait(failures, jitter()));
        let budget = matches!(what, Some(What::Budget(..) | What::Never(..)));
        let hold = self.key(&pod).filter(|_| budget);
        if let Some(entry) = self.entries.get_mut(id) {
            // Where a budget is known, all pods that it counts have one pause together.
            let due = match hold.is_some() {
                true => at,
                false => at + pause(entry.failures),
            };
            entry.failures += 1;
            entry.state = match entry.pod.is_leaving() {
                true => State::Leaving(at),
                false => State::Due(due),
            };
            if let Some(what) = what {
                entry.keep(what, now);
            }
        }
        let Some(key) = hold else {
            return self.release(&pod, Some(at));
        };
        let hold = self.holds.entry(key).or_insert(Hold {
            until: at,
            failures: 0,
            asking: false,
        });
        // Those that were asked together are refused together, and count once.
        if hold.until <= at {
            hold.until = at + pause(hold.failures);
            hold.failures += 1;
        } else if let Some(after) = after {
            hold.until = hold.until.max(at + after);
        }
        hold.asking = false;
        self.share(&pod, now);
    }

    /// The others that the same budget counts wait for the same.
    fn share(&mut self, pod: &Pod, now: Timestamp) {
        let key = self.key(pod);
        let waiting = self
            .entries
            .values()
            .filter(|one| matches!(one.state, State::Due(_)));
        let same = waiting.filter(|one| one.pod.id != pod.id && self.key(&one.pod) == key);
        let told: Vec<_> = same
            .filter_map(|one| Some((one.pod.id.clone(), self.foreseen(&one.pod)?)))
            .collect();
        for (id, what) in told {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.keep(what, now);
            }
        }
    }

    /// No answer came: as if it had never been asked for.
    pub(in crate::drain::evict) fn unanswered(&mut self, id: &PodId, at: Instant) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        entry.state = match entry.pod.is_leaving() {
            true => State::Leaving(at),
            false => State::Due(at),
        };
        let pod = entry.pod.clone();
        self.release(&pod, None);
    }

    /// The budget of a pod is not being asked any more; with a time it has said yes then.
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
