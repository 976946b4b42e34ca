//! Who must go and how far each is. Knows times, and nothing of requests.

mod answers;
mod due;
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

pub(super) use due::Wake;
use entry::{Entry, State};

/// Pauses between two requests for the same pod, or for pods of the same budget. The first is kubectl's
/// pace; the longest keeps a node that waits for days at three requests a minute, and a budget that was
/// lifted is still noticed before anybody looks.
pub(super) const PAUSES: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(20));

/// A workload may put so many pods on the node in a drain, less one, before it is said and slowed down: some
/// were on their way when the node was cordoned.
const TOO_OFTEN: u32 = 3;

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
    /// Deleted, whatever keeps it.
    pub(super) forced: bool,
    /// A budget has kept it until now.
    pub(super) kept: bool,
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
    lost: Arc<Vec<(PodId, Note)>>,
    /// Whom a budget had kept is true here.
    forced: BTreeMap<PodId, bool>,
    left_behind: Vec<PodId>,
    /// The node was looked at once: who comes now comes back.
    begun: bool,
    /// How many pods each workload has put here since, by namespace and name.
    came: BTreeMap<(String, String), u32>,
}

impl Book {
    /// Takes in what a look at the whole node found; it was begun at `asked`.
    pub(super) fn take(&mut self, mut found: Survey, asked: Instant, now: Timestamp) {
        self.note(found.notes());
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
        self.begun = true;
    }

    /// Takes in what the watch says of a pod.
    pub(super) fn seen(&mut self, pod: Pod, options: &Options, at: Instant, now: Timestamp) {
        if self.entries.contains_key(&pod.id) {
            return self.put(pod, at, now);
        }
        // One that speaks against the drain is found again by the last look.
        if let Verdict::Evict(notes) = classify(&pod, &options.rules, &self.sets, now) {
            let told = notes.into_iter().map(|note| (pod.id.clone(), note));
            self.note(told.collect());
            self.put(pod, at, now);
        }
    }

    /// What was said of a pod stays said when it is gone.
    fn note(&mut self, notes: Vec<(PodId, Note)>) {
        let new = notes.into_iter().filter(|note| !self.notes.contains(note));
        let new: Vec<_> = new.collect();
        if !new.is_empty() {
            Arc::make_mut(&mut self.notes).extend(new);
        }
    }

    fn put(&mut self, pod: Pod, at: Instant, now: Timestamp) {
        let foreseen = self.foreseen(&pod);
        let back = self.comes_back(&pod);
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
        if let Some((owner, times)) = back {
            // Force, too, has its pauses here: deleting it is what has brought it.
            entry.delete_tried = true;
            entry.state = State::Due(at + PAUSES.wait(times, jitter()));
            entry.keep(What::ComesBack(owner), now);
        }
    }

    /// Who has put a new pod here too often since the drain began, and how often beyond that.
    fn comes_back(&mut self, pod: &Pod) -> Option<(String, u32)> {
        if !self.begun || pod.is_leaving() || self.entries.contains_key(&pod.id) {
            return None;
        }
        let controller = pod.controller.as_ref()?;
        let owner = format!("{} {}", controller.kind, controller.name);
        let came = (pod.id.namespace.clone(), owner.clone());
        let times = self.came.entry(came).or_default();
        *times += 1;
        let beyond = times.checked_sub(TOO_OFTEN)?;
        Some((owner, beyond))
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

    /// How far the drain is. `limit` is when it gives up.
    pub(super) fn progress(&self, now: Timestamp, limit: Option<Timestamp>) -> Progress {
        let leaving = |entry: &&Entry| matches!(entry.state, State::Leaving(_));
        let behind = self.left_behind.len();
        let leaving = self.entries.values().filter(leaving).count();
        let of = |forced: &BTreeMap<PodId, bool>| {
            let kept = forced.iter().filter(|(_, kept)| **kept);
            kept.map(|(id, _)| id.clone()).collect::<Vec<_>>()
        };
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
            lost: Arc::clone(&self.lost),
            forced: self.forced.keys().cloned().collect(),
            overridden: Arc::new(of(&self.forced)),
            left_behind: self.left_behind.clone(),
            ..Progress::default()
        }
    }
}
