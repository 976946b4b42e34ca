//! Surveys the whole node: lists its pods and classifies each.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    BudgetMode, DisruptionBudget, Drain, DrainError, DrainRules, EvictionCallError, EvictionMethod,
    Pod, PodApi, PodId, PodRefusal, WaitReason, bounded,
};
use crate::{
    DaemonSets, EvictionResponse, PodDisposition, PodNote, classify, controllers, in_order,
    prospect,
};
use machinist_base::clock::Clock;

/// The result of a survey.
#[derive(Debug, Default)]
pub(super) struct NodePodsReview {
    /// The version from which a watch continues.
    pub(super) version: String,
    /// The DaemonSets that pods name.
    pub(super) sets: DaemonSets,
    /// Pods to evict, in order.
    pub(super) evict: Vec<(Pod, Vec<PodNote>)>,
    /// Pods that stay, and the notes about them.
    pub(super) leave: Vec<(PodId, Option<PodNote>)>,
    /// Pods that prevent the drain.
    pub(super) refuse: Vec<PodRefusal>,
    /// Disruption budgets of the namespaces with pods to evict; missing if they may not be read.
    pub(super) budgets: BTreeMap<String, Vec<DisruptionBudget>>,
}

/// A failed call and its purpose.
pub(super) type FailedCall = (String, EvictionCallError);

/// Lists and classifies. `sets` are already looked up, because DaemonSets rarely change during a
/// drain.
pub(super) async fn survey<P: PodApi>(
    pods: &P,
    node: &str,
    rules: &DrainRules,
    mut sets: DaemonSets,
    clock: &Clock,
) -> Result<NodePodsReview, FailedCall> {
    let listed = bounded(pods.list(node)).await;
    let listed = listed.map_err(|error| (format!("list the pods of {node}"), error))?;
    for (namespace, name) in controllers(&listed.pods) {
        if sets.get(&namespace, &name).is_none() {
            let there = bounded(pods.daemon_set(&namespace, &name)).await;
            let act = || format!("get DaemonSet {namespace}/{name}");
            sets.insert(&namespace, &name, there.map_err(|error| (act(), error))?);
        }
    }
    let mut found = NodePodsReview {
        version: listed.version,
        ..NodePodsReview::default()
    };
    for pod in in_order(listed.pods) {
        match classify(&pod, rules, &sets, clock.now()) {
            PodDisposition::Evict(notes) => found.evict.push((pod, notes)),
            PodDisposition::Leave(note) => found.leave.push((pod.id, note)),
            PodDisposition::Refuse(notes) => found.refuse.push(PodRefusal { pod: pod.id, notes }),
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
                machinist_base::error_chain::chain(&error)
            ),
        }
    }
    Ok(found)
}

impl NodePodsReview {
    /// The predicted blocker of a pod's eviction, if its budgets block it.
    pub(super) fn predicted_blocker(&self, pod: &Pod) -> Option<WaitReason> {
        let budgets = self.budgets.get(&pod.id.namespace)?;
        WaitReason::from_prospect(pod, &prospect(pod, budgets))
    }

    /// All notes about pods.
    pub(super) fn notes(&self) -> Vec<(PodId, PodNote)> {
        let left = self.leave.iter();
        let left = left.filter_map(|(pod, note)| Some((pod.clone(), note.clone()?)));
        let lost = self.evict.iter();
        let lost = lost.flat_map(|(pod, notes)| notes.iter().map(|n| (pod.id.clone(), n.clone())));
        left.chain(lost).collect()
    }
}

/// The plan of a drain, without side effects.
#[derive(Clone, Debug, PartialEq)]
pub struct DrainPreview {
    /// Pods that would be evicted, in order.
    pub evict: Vec<PreviewedPod>,
    /// Notes about pods that stay.
    pub leave: Vec<(PodId, PodNote)>,
    /// Pods that prevent the drain: while there are any, no pod would be evicted.
    pub refuse: Vec<PodRefusal>,
}

/// A pod that would be evicted.
#[derive(Clone, Debug, PartialEq)]
pub struct PreviewedPod {
    /// The pod.
    pub pod: PodId,
    /// Notes about losses.
    pub notes: Vec<PodNote>,
    /// What would block it now, according to its budgets or the server.
    pub kept_by: Option<WaitReason>,
}

pub(super) async fn judge<P: PodApi>(drain: &Drain<P>) -> Result<Vec<(PodId, bool)>, DrainError> {
    let (pods, sets) = (drain.pods.as_ref(), DaemonSets::default());
    let found = survey(pods, &drain.node, &drain.options.rules, sets, &drain.clock).await;
    let found = found.map_err(failed)?;
    let goes = found.evict.into_iter().map(|(pod, _)| pod.id);
    let goes = goes.chain(found.refuse.into_iter().map(|refusal| refusal.pod));
    let stays = found.leave.into_iter().map(|(pod, _)| (pod, false));
    Ok(goes.map(|pod| (pod, true)).chain(stays).collect())
}

pub(super) async fn rehearse<P: PodApi>(
    drain: &Drain<P>,
    ask: bool,
) -> Result<DrainPreview, DrainError> {
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
        let foreseen = found
            .predicted_blocker(pod)
            .filter(|_| options.way == BudgetMode::Evict);
        evict.push(PreviewedPod {
            pod: pod.id.clone(),
            notes: notes.clone(),
            kept_by: match ask {
                true => asked(drain, pod, foreseen).await?,
                false => foreseen,
            },
        });
    }
    let left = found.leave.into_iter();
    Ok(DrainPreview {
        evict,
        leave: left.filter_map(|(pod, note)| Some((pod, note?))).collect(),
        refuse: found.refuse,
    })
}

/// The server's response to a dry-run eviction.
async fn asked<P: PodApi>(
    drain: &Drain<P>,
    pod: &Pod,
    foreseen: Option<WaitReason>,
) -> Result<Option<WaitReason>, DrainError> {
    let how = EvictionMethod {
        grace: drain.options.grace,
        dry_run: true,
    };
    let answer = match drain.options.way {
        BudgetMode::Evict => bounded(drain.pods.evict(&pod.id, how)).await,
        BudgetMode::Delete => bounded(drain.pods.delete(&pod.id, how)).await,
    };
    let refused = match answer {
        Ok(()) => return Ok(None),
        Err(EvictionCallError::Refused(refused)) => refused,
        Err(error) => return Err(failed((format!("evict {}", pod.id), error))),
    };
    Ok(match EvictionResponse::of(&refused) {
        EvictionResponse::NotFound => None,
        EvictionResponse::NotServed => return Err(DrainError::NotServed),
        EvictionResponse::Forbidden => {
            let error = EvictionCallError::Refused(refused);
            return Err(failed((format!("evict {}", pod.id), error)));
        }
        answer => blocker_for(answer, pod, foreseen),
    })
}

/// The blocker for a response; a prediction from its budgets is more precise.
pub(super) fn blocker_for(
    answer: EvictionResponse,
    pod: &Pod,
    foreseen: Option<WaitReason>,
) -> Option<WaitReason> {
    let words = |rule| crate::ControllerNames {
        budget: String::new(),
        rule,
        unready: !pod.ready,
    };
    match answer {
        EvictionResponse::Budget(said, _) => {
            Some(foreseen.unwrap_or_else(|| WaitReason::Budget(words(said), None)))
        }
        EvictionResponse::SeveralBudgets => {
            Some(foreseen.unwrap_or_else(|| WaitReason::Several(Vec::new())))
        }
        EvictionResponse::Throttled(_) => Some(WaitReason::Throttled),
        EvictionResponse::NamespaceEnds => Some(WaitReason::NamespaceEnds),
        EvictionResponse::Refused(said) => Some(WaitReason::Refused(said)),
        EvictionResponse::NotFound | EvictionResponse::Forbidden | EvictionResponse::NotServed => {
            None
        }
    }
}

/// The error for a failed call that the drain depends on.
pub(super) fn failed((act, source): FailedCall) -> DrainError {
    match source.is_forbidden() {
        true => DrainError::Forbidden { act, source },
        false => DrainError::Unreachable {
            patience: std::time::Duration::ZERO,
            source,
        },
    }
}
