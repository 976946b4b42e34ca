//! Emits events about a drain.

use std::collections::BTreeSet;

use super::NodeContext;
use machinist_base::reason::Reason;
use machinist_cluster::events::EventSubject;
use machinist_drain::{PodId, eviction::EvictionProgress};
use machinist_kube_api::EventReason;

/// Events already emitted for a drain, so that each one is emitted once.
#[derive(Default)]
pub(super) struct ReportedDrainState {
    blocked: BTreeSet<(String, Reason)>,
    lost: BTreeSet<String>,
    forced: BTreeSet<String>,
}

impl ReportedDrainState {
    pub(super) fn emit_drain_events(&mut self, ours: &NodeContext, progress: &EvictionProgress) {
        for wait in progress.blockers() {
            if self
                .blocked
                .insert((wait.pod.uid.clone(), wait.what.reason()))
            {
                let note = wait.sentence();
                ours.emit_node_event(EventReason::DrainBlocked, note.clone());
                let pod = subject(&wait.pod);
                ours.events.emit(pod, EventReason::DrainBlocked, note);
            }
        }
        for (pod, note) in progress.lost.iter() {
            if self.lost.insert(pod.uid.clone()) {
                let note = format!("{pod} {}", note.sentence());
                ours.emit_node_event(EventReason::UnmanagedPodEvicted, note);
            }
        }
        for pod in &progress.forced {
            if self.forced.insert(pod.uid.clone()) {
                let why = progress
                    .ordered
                    .as_deref()
                    .map(|why| format!(", requested: {why}"));
                let kept = progress.overridden.contains(pod);
                let note = forced(pod, kept, &why.unwrap_or_default());
                ours.emit_node_event(EventReason::DrainForced, note);
            }
        }
    }
}

/// Without a disruption budget in the way, the message mentions none.
fn forced(pod: &PodId, kept: bool, why: &str) -> String {
    match kept {
        true => format!("{pod} deleted despite its PodDisruptionBudget{why}"),
        false => format!("{pod} deleted without eviction: forced drain{why}"),
    }
}

fn subject(pod: &PodId) -> EventSubject {
    EventSubject::Pod {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn force_event_mentions_a_budget_only_if_one_blocked_the_pod() {
        let pod = PodId {
            namespace: "kube-system".to_owned(),
            name: "dns".to_owned(),
            uid: "1".to_owned(),
        };
        let event = |kept| forced(&pod, kept, ", requested: the rack burns");
        assert!(event(true).contains("despite its PodDisruptionBudget"));
        let free = event(false);
        assert!(
            !free.contains("PodDisruptionBudget") && free.ends_with("requested: the rack burns")
        );
    }
}
