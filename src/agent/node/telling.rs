//! What a drain tells the cluster, as events.

use std::collections::BTreeSet;

use super::Ours;
use crate::{
    cluster::events::Subject,
    crd::EventReason,
    drain::{PodId, evict::Progress},
    reason::Reason,
};

/// What was told of a drain: each thing once.
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
                    .map(|why| format!(", as asked: {why}"));
                let why = why.unwrap_or_default();
                let note = format!("{pod} is deleted past what kept it{why}");
                ours.tell(EventReason::DrainForced, note);
            }
        }
    }
}

fn subject(pod: &PodId) -> Subject {
    Subject::Pod {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
    }
}
