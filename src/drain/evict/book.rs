//! Who must go and how far each is. Knows times, and nothing of requests.

mod entry;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::Instant;

use super::{Budget, Options, Pod, PodId, Progress, survey::Survey};
use crate::{
    backoff::{Backoff, jitter},
    drain::{Act, DaemonSets, Note, Tier, Verdict, What, classify, prospect},
};

use entry::{Entry, State};

/// Pauses between two requests for the same pod, or for pods of the same budget. The first is kubectl's
/// pace; the longest keeps a node that waits for days at three requests a minute, and a budget that was
/// lifted is still noticed before anybody looks.
pub(super) const PAUSES: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(20));

/// The wall clock has whole milliseconds: when this has passed, what was due then has come.
const JUST_AFTER: Duration = Duration::from_millis(2);

/// What is known of a budget that refused.
#[derive(Clone, Copy, Debug)]
struct Hold {
    until: Instant,
    failures: u32,
    asking: bool,
}

/// One request that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) pod: PodId,
    /// Past what keeps it.
    pub(super) forced: bool,
}

/// Who must go and how far each is.
#[derive(Debug, Default)]
pub(super) struct Book {
    entries: BTreeMap<PodId, Entry>,
    budgets: BTreeMap<String, Vec<Budget>>,
    sets: DaemonSets,
    holds: BTreeMap<(String, String), Hold>,
    /// A server that has too much to do is left alone until then.
    pub(super) throttled: Option<Instant>,
    gone: usize,
    notes: Arc<Vec<(PodId, Note)>>,
    forced: BTreeSet<PodId>,
    left_behind: Vec<PodId>,
}

impl Book {
    /// Takes in what a look at the whole node found; it was begun at `asked`.
    pub(super) fn take(&mut self, mut found: Survey, asked: Instant, now: Timestamp) {
        self.notes = Arc::new(found.notes());
        let there: BTreeSet<_> = found.evict.iter().map(|(pod, _)| pod.id.clone()).collect();
        let stay: BTreeSet<_> = found.leave.iter().map(|(pod, _)| pod).collect();
        // What the watch has shown since is newer than the list.
        let known = self.entries.values().filter(|one| one.seen < asked);
        let missing: Vec<_> = known.map(|one| one.pod.id.clone()).collect();
        for id in missing.iter().filter(|id| !there.contains(id)) {
            match stay.contains(id) {
                true => self.leave(id),
                false => self.is_gone(id),
            }
        }
        let pods: Vec<_> = found.evict.drain(..).map(|(pod, _)| pod).collect();
        self.budgets.append(&mut found.budgets);
        self.sets = found.sets;
        for pod in pods {
            let id = pod.id.clone();
            self.put(pod, asked, now);
            let Some(entry) = self.entries.get_mut(&id) else {
                continue;
            };
            // The server said yes before this look, and the pod was not asked to end: once more.
            if matches!(entry.state, State::Leaving(at) if at < asked && !entry.pod.is_leaving()) {
                entry.state = State::Due(asked);
            }
        }
    }

    /// Takes in what the watch says of a pod.
    pub(super) fn seen(&mut self, pod: Pod, options: &Options, at: Instant, now: Timestamp) {
        if self.entries.contains_key(&pod.id) {
            return self.put(pod, at, now);
        }
        // One that speaks against the drain is found again by the last look.
        if let Verdict::Evict(notes) = classify(&pod, &options.rules, &self.sets, now) {
            let told = notes.into_iter().map(|note| (pod.id.clone(), note));
            Arc::make_mut(&mut self.notes).extend(told);
            self.put(pod, at, now);
        }
    }

    fn put(&mut self, pod: Pod, at: Instant, now: Timestamp) {
        let foreseen = self.foreseen(&pod);
        let entry = self.entries.entry(pod.id.clone()).or_insert_with(|| Entry {
            pod: pod.clone(),
            state: State::Due(at),
            kept_by: None,
            leaving_since: None,
            seen: at,
            failures: 0,
            delete_tried: false,
        });
        entry.pod = pod;
        entry.seen = at;
        if entry.pod.is_leaving() {
            entry.leaving_since.get_or_insert(now);
            entry.kept_by = None;
            if matches!(entry.state, State::Due(_)) {
                entry.state = State::Leaving(at);
            }
        } else if let Some(what @ (What::Never(..) | What::Several(_))) = foreseen {
            entry.keep(what, now);
        }
    }

    /// What its budgets will say to a pod's eviction, where that is no.
    pub(super) fn foreseen(&self, pod: &Pod) -> Option<What> {
        let budgets = self.budgets.get(&pod.id.namespace)?;
        What::from_prospect(pod, &prospect(pod, budgets))
    }

    /// Budgets were read again.
    pub(super) fn read(&mut self, namespace: &str, budgets: Vec<Budget>, now: Timestamp) {
        self.budgets.insert(namespace.to_owned(), budgets);
        let of_it = self
            .entries
            .values()
            .filter(|one| one.pod.id.namespace == namespace);
        let waiting = of_it.filter(|one| one.is_kept_by_budget() && !one.pod.is_leaving());
        let told: Vec<_> = waiting
            .filter_map(|one| Some((one.pod.id.clone(), self.foreseen(&one.pod)?)))
            .collect();
        for (id, what) in told {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.keep(what, now);
            }
        }
    }

    /// A pod is gone: its UID is no longer there.
    pub(super) fn is_gone(&mut self, id: &PodId) {
        if let Some(entry) = self.entries.remove(id) {
            self.gone += 1;
            self.left_behind.retain(|left| left != id);
            self.release(&entry.pod, None);
        }
    }

    /// The DaemonSets that were asked for.
    pub(super) fn sets(&self) -> DaemonSets {
        self.sets.clone()
    }

    pub(super) fn pod(&self, id: &PodId) -> Option<&Pod> {
        self.entries.get(id).map(|entry| &entry.pod)
    }

    /// The server said yes to a request.
    pub(super) fn accepted(&mut self, id: &PodId, forced: bool, at: Instant, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        entry.state = State::Leaving(at);
        entry.leaving_since.get_or_insert(now);
        entry.kept_by = None;
        entry.failures = 0;
        let pod = entry.pod.clone();
        if forced {
            self.forced.insert(id.clone());
        }
        self.release(&pod, Some(at));
    }

    /// The server said no: the pod waits, for as long as the server or our own pauses say.
    pub(super) fn refused(
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
        hold.until = at + pause(hold.failures);
        hold.failures += 1;
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
    pub(super) fn unanswered(&mut self, id: &PodId, at: Instant) {
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
    fn release(&mut self, pod: &Pod, yes: Option<Instant>) {
        let Some(hold) = self.key(pod).and_then(|key| self.holds.get_mut(&key)) else {
            return;
        };
        hold.asking = false;
        if let Some(at) = yes {
            hold.failures = 0;
            hold.until = at;
        }
    }

    /// The one budget that counts a pod.
    fn key(&self, pod: &Pod) -> Option<(String, String)> {
        let budgets = self.budgets.get(&pod.id.namespace)?;
        let mut counting = budgets.iter().filter(|one| one.counts_pod(pod));
        let budget = counting.next().filter(|_| counting.next().is_none())?;
        Some((budget.namespace.clone(), budget.name.clone()))
    }

    fn is_budgeted(&self, pod: &Pod) -> bool {
        let budgets = self.budgets.get(&pod.id.namespace);
        budgets.is_some_and(|all| all.iter().any(|one| one.counts_pod(pod)))
    }

    /// The pods that leave now; none when all are gone.
    pub(super) fn tier(&self) -> Option<Tier> {
        let here = self
            .entries
            .values()
            .filter(|one| one.state != State::LeftBehind);
        here.map(|one| Tier::of(&one.pod)).min()
    }

    /// Notes who is no longer waited for: ended past force, or overdue where that is asked for.
    pub(super) fn let_go(
        &mut self,
        options: &Options,
        spent: Duration,
        ordered: bool,
        now: Timestamp,
    ) {
        let mut left = Vec::new();
        for entry in self.entries.values() {
            let pod = &entry.pod;
            let act = options
                .limits
                .act(pod, self.is_budgeted(pod), spent, ordered);
            let behind = act == Act::LeaveBehind || options.rules.skips(pod, now);
            if behind && matches!(entry.state, State::Leaving(_)) {
                left.push(pod.id.clone());
            }
        }
        for id in left {
            self.leave(&id);
        }
    }

    fn leave(&mut self, id: &PodId) {
        let entry = self.entries.get_mut(id);
        if let Some(entry) = entry.filter(|one| one.state != State::LeftBehind) {
            entry.state = State::LeftBehind;
            self.left_behind.push(id.clone());
        }
    }

    /// The next request that is due, which is then under way. `spent` and `ordered` say whether it is
    /// past what keeps it.
    pub(super) fn next(
        &mut self,
        options: &Options,
        spent: Duration,
        ordered: bool,
        at: Instant,
    ) -> Option<Request> {
        let tier = self.tier()?;
        let mut chosen = None;
        for entry in self.entries.values() {
            let State::Due(due) = entry.state else {
                continue;
            };
            if Tier::of(&entry.pod) != tier {
                continue;
            }
            let pod = &entry.pod;
            let act = options
                .limits
                .act(pod, self.is_budgeted(pod), spent, ordered);
            let forced = act == Act::Delete;
            // What kept it until now counts no more; only what the server says to the deletion does.
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
        if let Some(entry) = self.entries.get_mut(&pod) {
            entry.state = State::Asking;
            entry.delete_tried |= forced;
        }
        if let Some(hold) = key.and_then(|key| self.holds.get_mut(&key)) {
            hold.asking |= !forced;
        }
        Some(Request { pod, forced })
    }

    fn may_ask(&self, pod: &Pod, at: Instant) -> bool {
        let hold = self.key(pod).and_then(|key| self.holds.get(&key));
        let held = hold.is_some_and(|hold| hold.asking || hold.until > at);
        !held && self.throttled.is_none_or(|until| until <= at)
    }

    /// When the next request may be due, and when what is said of a pod changes with time alone.
    pub(super) fn wake(&self, options: &Options, now: Timestamp) -> impl Iterator<Item = Wake> {
        let tier = self.tier();
        let due = self.entries.values().filter_map(move |entry| {
            let here = Some(Tier::of(&entry.pod)) == tier;
            match entry.state {
                State::Due(due) if here => self.not_before(entry, due).map(Wake::At),
                _ => None,
            }
        });
        let skip = options.rules.skip_deleted;
        let overdue = self.entries.values().filter_map(move |entry| {
            let deadline = entry
                .pod
                .deleting
                .filter(|_| entry.state != State::LeftBehind)?;
            let left = Duration::try_from(deadline.duration_since(now)).unwrap_or_default();
            let passed = Duration::try_from(now.duration_since(deadline)).unwrap_or_default();
            let steps = [Some(What::OVERDUE_AFTER), skip].into_iter().flatten();
            let to_come = steps.filter_map(|step| (left + step + JUST_AFTER).checked_sub(passed));
            to_come.filter(|time| !time.is_zero()).min().map(Wake::In)
        });
        due.chain(overdue)
    }

    /// When a pod may be asked for; none while the answer for another of its budget is awaited.
    fn not_before(&self, entry: &Entry, due: Instant) -> Option<Instant> {
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

    /// How far the drain is. `limit` is when it gives up.
    pub(super) fn progress(&self, now: Timestamp, limit: Option<Timestamp>) -> Progress {
        let leaving = |entry: &&Entry| matches!(entry.state, State::Leaving(_));
        let behind = self.left_behind.len();
        let leaving = self.entries.values().filter(leaving).count();
        Progress {
            begun: true,
            tier: self.tier().unwrap_or_default(),
            to_go: self.entries.len() - leaving - behind,
            leaving,
            gone: self.gone,
            waits: self
                .entries
                .values()
                .filter_map(|one| one.wait(now, limit))
                .collect(),
            notes: Arc::clone(&self.notes),
            forced: self.forced.iter().cloned().collect(),
            left_behind: self.left_behind.clone(),
            ..Progress::default()
        }
    }
}

/// When to look again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wake {
    At(Instant),
    In(Duration),
}
