//! Surveys the whole node: lists its pods and classifies each.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Budget, CallError, Drain, DrainError, How, Pod, PodId, Pods, Refusal, Rules, Way, What, bounded,
};
use crate::{
    clock::Clock,
    drain::{Answer, DaemonSets, Note, Verdict, classify, controllers, in_order, prospect},
};

/// The result of a survey.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The version from which a watch continues.
    pub(super) version: String,
    /// The DaemonSets that pods name.
    pub(super) sets: DaemonSets,
    /// Pods to evict, in order.
    pub(super) evict: Vec<(Pod, Vec<Note>)>,
    /// Pods that stay, and the notes about them.
    pub(super) leave: Vec<(PodId, Option<Note>)>,
    /// Pods that prevent the drain.
    pub(super) refuse: Vec<Refusal>,
    /// Disruption budgets of the namespaces with pods to evict; missing if they may not be read.
    pub(super) budgets: BTreeMap<String, Vec<Budget>>,
}

/// A failed call and its purpose.
pub(super) type Failed = (String, CallError);

/// Lists and classifies. `sets` are already looked up, because DaemonSets rarely change during a
/// drain.
pub(super) async fn survey<P: Pods>(
    pods: &P,
    node: &str,
    rules: &Rules,
    mut sets: DaemonSets,
    clock: &Clock,
) -> Result<Survey, Failed> {
    let listed = bounded(pods.list(node)).await;
    let listed = listed.map_err(|error| (format!("list the pods of {node}"), error))?;
    for (namespace, name) in controllers(&listed.pods) {
        if sets.get(&namespace, &name).is_none() {
            let there = bounded(pods.daemon_set(&namespace, &name)).await;
            let act = || format!("get DaemonSet {namespace}/{name}");
            sets.insert(&namespace, &name, there.map_err(|error| (act(), error))?);
        }
    }
    let mut found = Survey {
        version: listed.version,
        ..Survey::default()
    };
    for pod in in_order(listed.pods) {
        match classify(&pod, rules, &sets, clock.now()) {
            Verdict::Evict(notes) => found.evict.push((pod, notes)),
            Verdict::Leave(note) => found.leave.push((pod.id, note)),
            Verdict::Refuse(notes) => found.refuse.push(Refusal { pod: pod.id, notes }),
        }
    }
    found.sets = sets;
    let namespaces = found.evict.iter().map(|(pod, _)| &pod.id.namespace);
    for namespace in namespaces.collect::<BTreeSet<_>>() {
        match bounded(pods.budgets(namespace)).await {
            Ok(budgets) => drop(found.budgets.insert(namespace.clone(), budgets)),
            Err(error) if error.is_outage() => {
                return Err((
                    format!("list the PodDisruptionBudgets of {namespace}"),
                    error,
                ));
            }
            // The API server applies them even if they cannot be read here.
            Err(error) => tracing::warn!(
                namespace,
                "PodDisruptionBudgets are not named: {}",
                crate::error_chain::chain(&error)
            ),
        }
    }
    Ok(found)
}

impl Survey {
    /// The predicted blocker of a pod's eviction, if its budgets block it.
    pub(super) fn foreseen(&self, pod: &Pod) -> Option<What> {
        let budgets = self.budgets.get(&pod.id.namespace)?;
        What::from_prospect(pod, &prospect(pod, budgets))
    }

    /// All notes about pods.
    pub(super) fn notes(&self) -> Vec<(PodId, Note)> {
        let left = self.leave.iter();
        let left = left.filter_map(|(pod, note)| Some((pod.clone(), note.clone()?)));
        let lost = self.evict.iter();
        let lost = lost.flat_map(|(pod, notes)| notes.iter().map(|n| (pod.id.clone(), n.clone())));
        left.chain(lost).collect()
    }
}

/// The plan of a drain, without side effects.
#[derive(Clone, Debug, PartialEq)]
pub struct Rehearsal {
    /// Pods that would be evicted, in order.
    pub evict: Vec<Rehearsed>,
    /// Notes about pods that stay.
    pub leave: Vec<(PodId, Note)>,
    /// Pods that prevent the drain: while there are any, no pod would be evicted.
    pub refuse: Vec<Refusal>,
}

/// A pod that would be evicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Rehearsed {
    /// The pod.
    pub pod: PodId,
    /// Notes about losses.
    pub notes: Vec<Note>,
    /// What would block it now, according to its budgets or the server.
    pub kept_by: Option<What>,
}

pub(super) async fn judge<P: Pods>(drain: &Drain<P>) -> Result<Vec<(PodId, bool)>, DrainError> {
    let (pods, sets) = (drain.pods.as_ref(), DaemonSets::default());
    let found = survey(pods, &drain.node, &drain.options.rules, sets, &drain.clock).await;
    let found = found.map_err(failed)?;
    let goes = found.evict.into_iter().map(|(pod, _)| pod.id);
    let goes = goes.chain(found.refuse.into_iter().map(|refusal| refusal.pod));
    let stays = found.leave.into_iter().map(|(pod, _)| (pod, false));
    Ok(goes.map(|pod| (pod, true)).chain(stays).collect())
}

pub(super) async fn rehearse<P: Pods>(
    drain: &Drain<P>,
    ask: bool,
) -> Result<Rehearsal, DrainError> {
    let Drain {
        pods,
        node,
        options,
        clock,
        ..
    } = drain;
    let (pods, sets) = (pods.as_ref(), DaemonSets::default());
    let found = survey(pods, node, &options.rules, sets, clock).await;
    let found = found.map_err(failed)?;
    let ask = ask && found.refuse.is_empty();
    let mut evict = Vec::new();
    for (pod, notes) in &found.evict {
        let foreseen = found.foreseen(pod).filter(|_| options.way == Way::Evict);
        evict.push(Rehearsed {
            pod: pod.id.clone(),
            notes: notes.clone(),
            kept_by: match ask {
                true => asked(drain, pod, foreseen).await?,
                false => foreseen,
            },
        });
    }
    let left = found.leave.into_iter();
    Ok(Rehearsal {
        evict,
        leave: left.filter_map(|(pod, note)| Some((pod, note?))).collect(),
        refuse: found.refuse,
    })
}

/// The server's response to a dry-run eviction.
async fn asked<P: Pods>(
    drain: &Drain<P>,
    pod: &Pod,
    foreseen: Option<What>,
) -> Result<Option<What>, DrainError> {
    let how = How {
        grace: drain.options.grace,
        dry_run: true,
    };
    let answer = match drain.options.way {
        Way::Evict => bounded(drain.pods.evict(&pod.id, how)).await,
        Way::Delete => bounded(drain.pods.delete(&pod.id, how)).await,
    };
    let refused = match answer {
        Ok(()) => return Ok(None),
        Err(CallError::Refused(refused)) => refused,
        Err(error) => return Err(failed((format!("evict {}", pod.id), error))),
    };
    Ok(match Answer::of(&refused) {
        Answer::Gone => None,
        Answer::NotServed => return Err(DrainError::NotServed),
        Answer::Forbidden => {
            let error = CallError::Refused(refused);
            return Err(failed((format!("evict {}", pod.id), error)));
        }
        answer => what(answer, pod, foreseen),
    })
}

/// The blocker for a response; a prediction from its budgets is more precise.
pub(super) fn what(answer: Answer, pod: &Pod, foreseen: Option<What>) -> Option<What> {
    let words = |rule| crate::drain::Names {
        budget: String::new(),
        rule,
        unready: !pod.ready,
    };
    match answer {
        Answer::Budget(said, _) => {
            Some(foreseen.unwrap_or_else(|| What::Budget(words(said), None)))
        }
        Answer::SeveralBudgets => Some(foreseen.unwrap_or_else(|| What::Several(Vec::new()))),
        Answer::Throttled(_) => Some(What::Throttled),
        Answer::NamespaceEnds => Some(What::NamespaceEnds),
        Answer::Refused(said) => Some(What::Refused(said)),
        Answer::Gone | Answer::Forbidden | Answer::NotServed => None,
    }
}

/// The error for a failed call that the drain depends on.
pub(super) fn failed((act, source): Failed) -> DrainError {
    match source.is_forbidden() {
        true => DrainError::Forbidden { act, source },
        false => DrainError::Unreachable {
            patience: std::time::Duration::ZERO,
            source,
        },
    }
}
