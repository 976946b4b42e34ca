//! Desired fields of the Node and their difference from the observed ones. Pure functions.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{NodePatch, fitness::NodeFitness, patches};
use machinist_kube_api::{NodeView, Taint, keys};

/// All fields that machinist wants on the Node. Fields not listed here are left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredNodeStatus {
    /// Annotations; a none value removes the annotation.
    pub annotations: BTreeMap<&'static str, Option<String>>,
    /// Labels, with the same meaning.
    pub labels: BTreeMap<String, Option<String>>,
    /// Taints that devices declare: the complete set of machinist's taints except the start-up
    /// taint.
    pub taints: Vec<Taint>,
    /// Decides about the start-up taint; none if machinist does not manage it.
    pub fitness: Option<NodeFitness>,
    /// Whether to set the label that keeps remediators away, because the node is down on purpose. A
    /// label that another writer set stays with that writer.
    pub stand_back: bool,
    /// All of machinist's conditions; others of ours are removed.
    pub conditions: Vec<DesiredCondition>,
}

/// A desired node condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredCondition {
    /// Its type.
    pub kind: &'static str,
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// The reason, as a stable code.
    pub reason: String,
    /// One sentence, no longer than [`REASON_LIMIT`](machinist_kube_api::MAX_REASON_BYTES).
    pub message: String,
    /// Objects named in the message. A change of this list is published as quickly as a change of
    /// the reason.
    pub names: Vec<String>,
}

/// How observed conditions differ from the desired ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConditionDiff {
    /// They do not differ.
    Equal,
    /// Only in the message.
    Message,
    /// In the status, reason or presence, which programs read.
    Fact,
}

/// Compares the Node's conditions with the desired ones.
pub(crate) fn differs(view: &NodeView, wanted: &[DesiredCondition]) -> ConditionDiff {
    let far = wanted.iter().map(|one| match view.condition(one.kind) {
        Some(known) if known.status != one.status || known.reason != one.reason => {
            ConditionDiff::Fact
        }
        Some(known) if known.message != one.message => ConditionDiff::Message,
        Some(_) => ConditionDiff::Equal,
        None => ConditionDiff::Fact,
    });
    far.max().unwrap_or(ConditionDiff::Equal)
}

/// A patch with all desired conditions; `lastTransitionTime` is kept while the status is unchanged.
pub(crate) fn conditions(
    view: &NodeView,
    wanted: &[DesiredCondition],
    now: jiff::Timestamp,
) -> NodePatch {
    let one = |one: &DesiredCondition| {
        let since = view.condition(one.kind);
        let since = since.filter(|known| known.status == one.status);
        let since = since.and_then(|known| known.last_transition_time);
        json!({
            "type": one.kind,
            "status": one.status,
            "reason": one.reason,
            "message": one.message,
            "lastHeartbeatTime": seconds(now),
            "lastTransitionTime": seconds(since.unwrap_or(now)),
        })
    };
    let all: Vec<_> = wanted.iter().map(one).collect();
    NodePatch::Conditions(json!({"status": {"conditions": all}}))
}

/// Formats a time with whole seconds, as Node conditions use.
fn seconds(time: jiff::Timestamp) -> String {
    let whole = jiff::Timestamp::from_second(time.as_second());
    whole.unwrap_or(time).to_string()
}

/// A patch of annotations and labels that differ. With `sweep` it also removes machinist's labels
/// and its blocked-by annotation if they are no longer desired; annotations that operators set are
/// kept.
pub(crate) fn metadata(
    view: &NodeView,
    notice: &DesiredNodeStatus,
    sweep: bool,
) -> Option<NodePatch> {
    let mut annotations = differing(&view.annotations, &notice.annotations);
    let mut labels = differing(&view.labels, &notice.labels);
    if sweep {
        let blocked = keys::annotation::BLOCKED_BY;
        if view.annotations.contains_key(blocked) && !notice.annotations.contains_key(blocked) {
            annotations.insert(blocked.to_owned(), Value::Null);
        }
        let ours = view
            .labels
            .keys()
            .filter(|it| it.starts_with(keys::MACHINIST_PREFIX));
        for label in ours.filter(|it| !notice.labels.contains_key(it.as_str())) {
            labels.insert(label.clone(), Value::Null);
        }
    }
    patches::fields(view, annotations, labels)
}

fn differing<N: AsRef<str>>(
    known: &BTreeMap<String, String>,
    wanted: &BTreeMap<N, Option<String>>,
) -> Map<String, Value> {
    let differs = |(name, text): &(&N, &Option<String>)| known.get(name.as_ref()) != text.as_ref();
    let wanted = wanted.iter().filter(differs);
    wanted
        .map(|(name, text)| (name.as_ref().to_owned(), json!(text)))
        .collect()
}

/// A patch that removes machinist's conditions that are no longer desired; no other component
/// removes them.
pub(crate) fn leftover_conditions(
    view: &NodeView,
    notice: &DesiredNodeStatus,
) -> Option<NodePatch> {
    let spoken_of = |kind: &str| notice.conditions.iter().any(|one| one.kind == kind);
    let left: Vec<_> = view
        .status
        .conditions
        .iter()
        .filter(|it| it.kind.starts_with(keys::MACHINIST_PREFIX) && !spoken_of(&it.kind))
        .map(|it| json!({"$patch": "delete", "type": it.kind}))
        .collect();
    (!left.is_empty()).then(|| NodePatch::Conditions(json!({"status": {"conditions": left}})))
}
