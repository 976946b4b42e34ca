//! What the Node is to say, and what of it is missing there: pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Change, patches};
use crate::crd::{NodeView, Taint, names};

/// Everything that the Node is to say. What is not named here is left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// Annotations; none for those that are to go.
    pub annotations: BTreeMap<&'static str, Option<String>>,
    /// Labels, in the same way.
    pub labels: BTreeMap<String, Option<String>>,
    /// Taints that devices ask for: all that are to be ours, but for the start-up taint.
    pub taints: Vec<Taint>,
    /// Whether the node is to carry the start-up taint; none where it is not ours to say.
    pub not_ready_taint: Option<bool>,
    /// Remediators are to leave the node alone: it is down on purpose. A label that somebody else put
    /// there for that stays theirs.
    pub stand_back: bool,
    /// Conditions, all of ours: those that are not among them go.
    pub conditions: Vec<Condition>,
}

/// A condition of ours, as it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub kind: &'static str,
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// Why, as one stable word.
    pub reason: String,
    /// One sentence, no longer than [`REASON_LIMIT`](crate::crd::REASON_LIMIT).
    pub message: String,
    /// Whom the sentence names: that another one is named is told as soon as another reason.
    pub names: Vec<String>,
}

/// How a condition is not as it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Differs {
    /// In nothing.
    Not,
    /// In its sentence.
    Words,
    /// In what programs read.
    Fact,
}

/// How far the Node's conditions are from ours.
pub(super) fn differs(view: &NodeView, wanted: &[Condition]) -> Differs {
    let far = wanted.iter().map(|one| match view.condition(one.kind) {
        Some(known) if known.status != one.status || known.reason != one.reason => Differs::Fact,
        Some(known) if known.message != one.message => Differs::Words,
        Some(_) => Differs::Not,
        None => Differs::Fact,
    });
    far.max().unwrap_or(Differs::Not)
}

/// All of ours in one request; a time of transition stays while a status does.
pub(super) fn conditions(view: &NodeView, wanted: &[Condition], now: jiff::Timestamp) -> Change {
    let one = |one: &Condition| {
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
    Change::Conditions(json!({"status": {"conditions": all}}))
}

/// A Node's times have whole seconds.
fn seconds(time: jiff::Timestamp) -> String {
    let whole = jiff::Timestamp::from_second(time.as_second());
    whole.unwrap_or(time).to_string()
}

/// Annotations and labels that are not as they are to be. With `sweep` those of ours that nobody
/// speaks of any more go, too; what people say to us never.
pub(super) fn metadata(view: &NodeView, notice: &Notice, sweep: bool) -> Option<Change> {
    let mut annotations = differing(&view.annotations, &notice.annotations);
    let mut labels = differing(&view.labels, &notice.labels);
    if sweep {
        let blocked = names::annotation::BLOCKED_BY;
        if view.annotations.contains_key(blocked) && !notice.annotations.contains_key(blocked) {
            annotations.insert(blocked.to_owned(), Value::Null);
        }
        let ours = view.labels.keys().filter(|it| it.starts_with(names::OURS));
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

/// Conditions of ours that nobody speaks of: nobody else ever takes one away.
pub(super) fn leftover_conditions(view: &NodeView, notice: &Notice) -> Option<Change> {
    let spoken_of = |kind: &str| notice.conditions.iter().any(|one| one.kind == kind);
    let left: Vec<_> = view
        .status
        .conditions
        .iter()
        .filter(|it| it.kind.starts_with(names::OURS) && !spoken_of(&it.kind))
        .map(|it| json!({"$patch": "delete", "type": it.kind}))
        .collect();
    (!left.is_empty()).then(|| Change::Conditions(json!({"status": {"conditions": left}})))
}
