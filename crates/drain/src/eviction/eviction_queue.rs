//! State of a drain: the pods that must leave and the progress of each. It handles times, but makes no requests.

mod pod_entry;
mod retry;
mod schedule;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::Instant;

use super::{DisruptionBudget, EvictionProgress, Options, Pod, PodId, preflight::NodePodsReview};
use crate::{
    DaemonSets, ForceAction, PodDisposition, PodNote, PriorityTier, WaitReason, classify, prospect,
};
use machinist_base::backoff::{Backoff, jitter};

use pod_entry::{EvictionState, PodEntry};
pub(super) use schedule::NextWake;

/// Backoff between requests for the same pod, or for pods of the same budget. It starts at kubectl's interval; the
/// maximum limits a node that waits for days to three requests a minute, and still notices a lifted budget quickly.
pub(super) const EVICTION_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(5), Duration::from_secs(20));

/// A workload that creates this many pods on the node during a drain is reported, and evicting its pods is slowed
/// down. Fewer may have been scheduled already when the node was cordoned.
const MAX_RECREATED_PODS: u32 = 3;

/// The wall clock has whole milliseconds: after this delay, a deadline has certainly passed.
const DEADLINE_SLACK: Duration = Duration::from_millis(2);

/// Backoff state of a budget that refused.
#[derive(Clone, Copy, Debug)]
struct BudgetBackoff {
    until: Instant,
    failures: u32,
    asking: bool,
}

/// A request that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DueRequest {
    pub(super) pod: PodId,
    /// Delete the pod, whatever blocks it.
    pub(super) forced: bool,
    /// A budget has blocked it so far.
    pub(super) kept: bool,
}

/// The pods that must leave, and the progress of each.
#[derive(Debug, Default)]
pub(super) struct EvictionQueue {
    entries: BTreeMap<PodId, PodEntry>,
    budgets: BTreeMap<String, Vec<DisruptionBudget>>,
    sets: DaemonSets,
    holds: BTreeMap<(String, String), BudgetBackoff>,
    /// An overloaded server gets no requests until then.
    pub(super) throttled: Option<Instant>,
    gone: usize,
    notes: Arc<Vec<(PodId, PodNote)>>,
    lost: Arc<Vec<(PodId, PodNote)>>,
    /// Forced pods; true if a budget had blocked them.
    forced: BTreeMap<PodId, bool>,
    left_behind: Vec<PodId>,
    /// The node was listed once: pods that appear from now on were created during the drain.
    begun: bool,
    /// Number of pods that each workload has created here since then, by namespace and name.
    came: BTreeMap<(String, String), u32>,
}

impl EvictionQueue {
    /// Merges a survey of the whole node that was started at `asked`.
    pub(super) fn merge_survey(
        &mut self,
        mut found: NodePodsReview,
        asked: Instant,
        now: Timestamp,
    ) {
        self.note(found.notes());
        let there: BTreeSet<_> = found.evict.iter().map(|(pod, _)| pod.id.clone()).collect();
        let stay: BTreeSet<_> = found.leave.iter().map(|(pod, _)| pod).collect();
        // Pods that the watch has updated since are newer than the list.
        let known = self.entries.values().filter(|one| one.seen < asked);
        let missing: Vec<_> = known.map(|one| one.pod.id.clone()).collect();
        for id in missing.iter().filter(|id| !there.contains(id)) {
            match stay.contains(id) {
                true => self.leave(id),
                false => self.record_deleted(id),
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
            // The eviction was accepted before this list, but the pod is not terminating: evict it again.
            if matches!(entry.state, EvictionState::Leaving(at) if at < asked && !entry.pod.is_terminating())
            {
                entry.state = EvictionState::Due(asked);
            }
        }
        self.begun = true;
    }

    /// Merges a pod from the watch.
    pub(super) fn merge_pod(&mut self, pod: Pod, options: &Options, at: Instant, now: Timestamp) {
        if self.entries.contains_key(&pod.id) {
            return self.put(pod, at, now);
        }
        // A pod that prevents the drain is found again by the final survey.
        if let PodDisposition::Evict(notes) = classify(&pod, &options.rules, &self.sets, now) {
            let told = notes.into_iter().map(|note| (pod.id.clone(), note));
            self.note(told.collect());
            self.put(pod, at, now);
        }
    }

    /// Notes about a pod are kept after its deletion.
    fn note(&mut self, notes: Vec<(PodId, PodNote)>) {
        let new = notes.into_iter().filter(|note| !self.notes.contains(note));
        let new: Vec<_> = new.collect();
        if !new.is_empty() {
            Arc::make_mut(&mut self.notes).extend(new);
        }
    }

    fn put(&mut self, pod: Pod, at: Instant, now: Timestamp) {
        let foreseen = self.predicted_blocker(&pod);
        let back = self.comes_back(&pod);
        let entry = self
            .entries
            .entry(pod.id.clone())
            .or_insert_with(|| PodEntry {
                pod: pod.clone(),
                state: EvictionState::Due(at),
                kept_by: None,
                leaving_since: None,
                seen: at,
                failures: 0,
                delete_tried: false,
            });
        entry.pod = pod;
        entry.seen = at;
        if entry.pod.is_terminating() {
            entry.leaving_since.get_or_insert(now);
            entry.kept_by = None;
            if matches!(entry.state, EvictionState::Due(_)) {
                entry.state = EvictionState::Leaving(at);
            }
        } else if let Some(what @ (WaitReason::Never(..) | WaitReason::Several(_))) = foreseen {
            entry.keep(what, now);
        }
        if let Some((owner, times)) = back {
            // Force is also subject to this backoff, because deleting the pod is what recreated it.
            entry.delete_tried = true;
            entry.state = EvictionState::Due(at + EVICTION_BACKOFF.wait(times, jitter()));
            entry.keep(WaitReason::ComesBack(owner), now);
        }
    }

    /// The workload that has created pods here too often since the drain began, and by how many it exceeds the
    /// limit.
    fn comes_back(&mut self, pod: &Pod) -> Option<(String, u32)> {
        if !self.begun || pod.is_terminating() || self.entries.contains_key(&pod.id) {
            return None;
        }
        let controller = pod.controller.as_ref()?;
        let owner = format!("{} {}", controller.kind, controller.name);
        let came = (pod.id.namespace.clone(), owner.clone());
        let times = self.came.entry(came).or_default();
        *times += 1;
        let beyond = times.checked_sub(MAX_RECREATED_PODS)?;
        Some((owner, beyond))
    }

    /// The predicted blocker of a pod's eviction, if its budgets block it.
    pub(super) fn predicted_blocker(&self, pod: &Pod) -> Option<WaitReason> {
        let budgets = self.budgets.get(&pod.id.namespace)?;
        WaitReason::from_prospect(pod, &prospect(pod, budgets))
    }

    /// Stores newly read budgets.
    pub(super) fn read(&mut self, namespace: &str, budgets: Vec<DisruptionBudget>, now: Timestamp) {
        self.budgets.insert(namespace.to_owned(), budgets);
        let of_it = self
            .entries
            .values()
            .filter(|one| one.pod.id.namespace == namespace);
        let waiting = of_it.filter(|one| one.is_kept_by_budget() && !one.pod.is_terminating());
        let told: Vec<_> = waiting
            .filter_map(|one| Some((one.pod.id.clone(), self.predicted_blocker(&one.pod)?)))
            .collect();
        for (id, what) in told {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.keep(what, now);
            }
        }
    }

    /// Records that a pod was deleted, identified by its UID.
    pub(super) fn record_deleted(&mut self, id: &PodId) {
        if let Some(entry) = self.entries.remove(id) {
            self.gone += 1;
            self.left_behind.retain(|left| left != id);
            self.release(&entry.pod, None);
        }
    }

    /// The DaemonSets that were looked up.
    pub(super) fn sets(&self) -> DaemonSets {
        self.sets.clone()
    }

    pub(super) fn pod(&self, id: &PodId) -> Option<&Pod> {
        self.entries.get(id).map(|entry| &entry.pod)
    }

    /// The budget that matches a pod, if exactly one does.
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

    /// The tier that is being evicted; none if all pods are gone.
    pub(super) fn tier(&self) -> Option<PriorityTier> {
        let here = self
            .entries
            .values()
            .filter(|one| one.state != EvictionState::LeftBehind);
        here.map(|one| PriorityTier::of(&one.pod)).min()
    }

    /// Stops waiting for pods that have ended after force, or that are overdue if the rules skip those.
    pub(super) fn stop_waiting(
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
            let behind = act == ForceAction::LeaveBehind || options.rules.skips(pod, now);
            if behind && matches!(entry.state, EvictionState::Leaving(_)) {
                left.push(pod.id.clone());
            }
        }
        for id in left {
            self.leave(&id);
        }
    }

    fn leave(&mut self, id: &PodId) {
        let entry = self.entries.get_mut(id);
        if let Some(entry) = entry.filter(|one| one.state != EvictionState::LeftBehind) {
            entry.state = EvictionState::LeftBehind;
            self.left_behind.push(id.clone());
        }
    }

    /// The progress. `limit` is the time limit of the drain.
    pub(super) fn progress(&self, now: Timestamp, limit: Option<Timestamp>) -> EvictionProgress {
        let leaving = |entry: &&PodEntry| matches!(entry.state, EvictionState::Leaving(_));
        let behind = self.left_behind.len();
        let leaving = self.entries.values().filter(leaving).count();
        let of = |forced: &BTreeMap<PodId, bool>| {
            let kept = forced.iter().filter(|(_, kept)| **kept);
            kept.map(|(id, _)| id.clone()).collect::<Vec<_>>()
        };
        EvictionProgress {
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
            ..EvictionProgress::default()
        }
    }
}
