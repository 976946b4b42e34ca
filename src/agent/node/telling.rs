//! Emits events about a drain.

use std::collections::BTreeSet;

use super::Ours;
use crate::{
    cluster::events::Subject,
    crd::EventReason,
    drain::{PodId, evict::Progress},
    reason::Reason,
};

/// Events already emitted for a drain, so that each one is emitted once.
#[derive(Default)]
pub(super) struct Told {
    blocked: BTreeSet<(String, Reason)>,
    lost: BTreeSet<String>,
    forced: BTreeSet<String>,
}

impl Told {
    pub(super) fn tell(&mut self, ours: &Ours, progress: &Progress) {
        for wait in progress.blockers() {
            if self
                .blocked
                .insert((wait.pod.uid.clone(), wait.what.reason()))
            {
                let note = wait.sentence();
                ours.tell(EventReason::DrainBlocked, note.clone());
                let pod = subject(&wait.pod);
                ours.events.tell(pod, EventReason::DrainBlocked, note);
            }
        }
        for (pod, note) in progress.lost.iter() {
            if self.lost.insert(pod.uid.clone()) {
                let note = format!("{pod} {}", note.sentence());
                ours.tell(EventReason::UnmanagedPodEvicted, note);
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
                ours.tell(EventReason::DrainForced, note);
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

fn subject(pod: &PodId) -> Subject {
    Subject::Pod {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_nothing_kept_is_not_said_to_have_been_kept() {
        let pod = PodId {
            namespace: "kube-system".to_owned(),
            name: "dns".to_owned(),
            uid: "1".to_owned(),
        };
        let told = |kept| forced(&pod, kept, ", requested: the rack burns");
        assert!(told(true).contains("despite its PodDisruptionBudget"));
        let free = told(false);
        assert!(
            !free.contains("PodDisruptionBudget") && free.ends_with("requested: the rack burns")
        );
    }
}
