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
    request_running: bool,
}

/// A request that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DueRequest {
    pub(super) pod: PodId,
    /// Delete the pod, whatever blocks it.
    pub(super) forced: bool,
    /// A budget has blocked it so far.
    pub(super) blocked_by_budget: bool,
}

/// The pods that must leave, and the progress of each.
#[derive(Debug, Default)]
pub(super) struct EvictionQueue {
    entries: BTreeMap<PodId, PodEntry>,
    budgets: BTreeMap<String, Vec<DisruptionBudget>>,
    daemon_sets: DaemonSets,
    budget_backoffs: BTreeMap<(String, String), BudgetBackoff>,
    /// An overloaded server gets no requests until then.
    pub(super) throttled: Option<Instant>,
    deleted_count: usize,
    notes: Arc<Vec<(PodId, PodNote)>>,
    loss_notes: Arc<Vec<(PodId, PodNote)>>,
    /// Forced pods; true if a budget had blocked them.
    forced_pods: BTreeMap<PodId, bool>,
    left_behind: Vec<PodId>,
    /// The node was listed once: pods that appear from now on were created during the drain.
    was_surveyed: bool,
    /// Number of pods that each workload has created here since then, by namespace and name.
    recreated_pods: BTreeMap<(String, String), u32>,
}

impl EvictionQueue {
    /// Merges a survey of the whole node that was started at `started_at`.
    pub(super) fn merge_survey(
        &mut self,
        mut review: NodePodsReview,
        started_at: Instant,
        now: Timestamp,
    ) {
        self.add_notes(review.notes());
        let evicted_ids: BTreeSet<_> = review.evict.iter().map(|(pod, _)| pod.id.clone()).collect();
        let remaining_ids: BTreeSet<_> = review.leave.iter().map(|(pod, _)| pod).collect();
        // Pods that the watch has updated since are newer than the list.
        let known = self
            .entries
            .values()
            .filter(|entry| entry.observed_at < started_at);
        let missing: Vec<_> = known.map(|entry| entry.pod.id.clone()).collect();
        for id in missing.iter().filter(|id| !evicted_ids.contains(id)) {
            match remaining_ids.contains(id) {
                true => self.leave_behind(id),
                false => self.record_deleted(id),
            }
        }
        let pods: Vec<_> = review.evict.drain(..).map(|(pod, _)| pod).collect();
        self.budgets.append(&mut review.budgets);
        self.daemon_sets = review.sets;
        for pod in pods {
            let id = pod.id.clone();
            self.upsert(pod, started_at, now);
            let Some(entry) = self.entries.get_mut(&id) else {
                continue;
            };
            // The eviction was accepted before this list, but the pod is not terminating: evict it again.
            if matches!(entry.state, EvictionState::Terminating(at) if at < started_at && !entry.pod.is_terminating())
            {
                entry.state = EvictionState::Due(started_at);
            }
        }
        self.was_surveyed = true;
    }

    /// Merges a pod from the watch.
    pub(super) fn merge_pod(&mut self, pod: Pod, options: &Options, at: Instant, now: Timestamp) {
        if self.entries.contains_key(&pod.id) {
            return self.upsert(pod, at, now);
        }
        // A pod that prevents the drain is found again by the final survey.
        if let PodDisposition::Evict(notes) = classify(&pod, &options.rules, &self.daemon_sets, now)
        {
            let notes = notes.into_iter().map(|note| (pod.id.clone(), note));
            self.add_notes(notes.collect());
            self.upsert(pod, at, now);
        }
    }

    /// Notes about a pod are kept after its deletion.
    fn add_notes(&mut self, notes: Vec<(PodId, PodNote)>) {
        let new = notes.into_iter().filter(|note| !self.notes.contains(note));
        let new: Vec<_> = new.collect();
        if !new.is_empty() {
            Arc::make_mut(&mut self.notes).extend(new);
        }
    }

    fn upsert(&mut self, pod: Pod, at: Instant, now: Timestamp) {
        let predicted = self.predicted_blocker(&pod);
        let recreating = self.recreating_controller(&pod);
        let entry = self
            .entries
            .entry(pod.id.clone())
            .or_insert_with(|| PodEntry {
                pod: pod.clone(),
                state: EvictionState::Due(at),
                blocker: None,
                terminating_since: None,
                observed_at: at,
                failures: 0,
                delete_tried: false,
            });
        entry.pod = pod;
        entry.observed_at = at;
        if entry.pod.is_terminating() {
            entry.terminating_since.get_or_insert(now);
            entry.blocker = None;
            if matches!(entry.state, EvictionState::Due(_)) {
                entry.state = EvictionState::Terminating(at);
            }
        } else if let Some(what @ (WaitReason::Never(..) | WaitReason::Several(_))) = predicted {
            entry.record_blocker(what, now);
        }
        if let Some((owner, times)) = recreating {
            // Force is also subject to this backoff, because deleting the pod is what recreated it.
            entry.delete_tried = true;
            entry.state = EvictionState::Due(at + EVICTION_BACKOFF.wait(times, jitter()));
            entry.record_blocker(WaitReason::ComesBack(owner), now);
        }
    }

    /// The workload that has created pods here too often since the drain began, and by how many it exceeds the
    /// limit.
    fn recreating_controller(&mut self, pod: &Pod) -> Option<(String, u32)> {
        if !self.was_surveyed || pod.is_terminating() || self.entries.contains_key(&pod.id) {
            return None;
        }
        let controller = pod.controller.as_ref()?;
        let owner = format!("{} {}", controller.kind, controller.name);
        let workload = (pod.id.namespace.clone(), owner.clone());
        let times = self.recreated_pods.entry(workload).or_default();
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
    pub(super) fn replace_budgets(
        &mut self,
        namespace: &str,
        budgets: Vec<DisruptionBudget>,
        now: Timestamp,
    ) {
        self.budgets.insert(namespace.to_owned(), budgets);
        let of_it = self
            .entries
            .values()
            .filter(|entry| entry.pod.id.namespace == namespace);
        let waiting =
            of_it.filter(|entry| entry.is_blocked_by_budget() && !entry.pod.is_terminating());
        let blockers: Vec<_> = waiting
            .filter_map(|entry| Some((entry.pod.id.clone(), self.predicted_blocker(&entry.pod)?)))
            .collect();
        for (id, what) in blockers {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.record_blocker(what, now);
            }
        }
    }

    /// Records that a pod was deleted, identified by its UID.
    pub(super) fn record_deleted(&mut self, id: &PodId) {
        if let Some(entry) = self.entries.remove(id) {
            self.deleted_count += 1;
            self.left_behind.retain(|left| left != id);
            self.end_budget_request(&entry.pod, None);
        }
    }

    /// The DaemonSets that were looked up.
    pub(super) fn daemon_sets(&self) -> DaemonSets {
        self.daemon_sets.clone()
    }

    pub(super) fn pod(&self, id: &PodId) -> Option<&Pod> {
        self.entries.get(id).map(|entry| &entry.pod)
    }

    /// The budget that matches a pod, if exactly one does.
    fn budget_key(&self, pod: &Pod) -> Option<(String, String)> {
        let budgets = self.budgets.get(&pod.id.namespace)?;
        let mut counting = budgets.iter().filter(|budget| budget.counts_pod(pod));
        let budget = counting.next().filter(|_| counting.next().is_none())?;
        Some((budget.namespace.clone(), budget.name.clone()))
    }

    fn is_budgeted(&self, pod: &Pod) -> bool {
        let budgets = self.budgets.get(&pod.id.namespace);
        budgets.is_some_and(|all| all.iter().any(|budget| budget.counts_pod(pod)))
    }

    /// The tier that is being evicted; none if all pods are gone.
    pub(super) fn tier(&self) -> Option<PriorityTier> {
        let here = self
            .entries
            .values()
            .filter(|entry| entry.state != EvictionState::LeftBehind);
        here.map(|entry| PriorityTier::of(&entry.pod)).min()
    }

    /// Stops waiting for pods that have ended after force, or that are overdue if the rules skip those.
    pub(super) fn stop_waiting(
        &mut self,
        options: &Options,
        spent: Duration,
        forced_by_operator: bool,
        now: Timestamp,
    ) {
        let mut left = Vec::new();
        for entry in self.entries.values() {
            let pod = &entry.pod;
            let act = options
                .limits
                .act(pod, self.is_budgeted(pod), spent, forced_by_operator);
            let behind = act == ForceAction::LeaveBehind || options.rules.skips(pod, now);
            if behind && matches!(entry.state, EvictionState::Terminating(_)) {
                left.push(pod.id.clone());
            }
        }
        for id in left {
            self.leave_behind(&id);
        }
    }

    fn leave_behind(&mut self, id: &PodId) {
        let entry = self.entries.get_mut(id);
        if let Some(entry) = entry.filter(|entry| entry.state != EvictionState::LeftBehind) {
            entry.state = EvictionState::LeftBehind;
            self.left_behind.push(id.clone());
        }
    }

    /// The progress. `limit` is the time limit of the drain.
    pub(super) fn progress(&self, now: Timestamp, limit: Option<Timestamp>) -> EvictionProgress {
        let terminating = |entry: &&PodEntry| matches!(entry.state, EvictionState::Terminating(_));
        let behind = self.left_behind.len();
        let leaving = self.entries.values().filter(terminating).count();
        let overridden = |forced: &BTreeMap<PodId, bool>| {
            let blocked = forced.iter().filter(|(_, blocked)| **blocked);
            blocked.map(|(id, _)| id.clone()).collect::<Vec<_>>()
        };
        EvictionProgress {
            begun: true,
            tier: self.tier().unwrap_or_default(),
            to_go: self.entries.len() - leaving - behind,
            leaving,
            gone: self.deleted_count,
            waits: self
                .entries
                .values()
                .filter_map(|entry| entry.wait(now, limit))
                .collect(),
            notes: Arc::clone(&self.notes),
            lost: Arc::clone(&self.loss_notes),
            forced: self.forced_pods.keys().cloned().collect(),
            overridden: Arc::new(overridden(&self.forced_pods)),
            left_behind: self.left_behind.clone(),
            ..EvictionProgress::default()
        }
    }
}
