//! What the Node is to say, and what of it is missing there: pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Change, patches};
use crate::{
    crd::{self, NodeView, names},
    reason::Reason,
};

/// Everything that the Node is to say. What is not named here is left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// Annotations; none for those that are to go.
    pub annotations: BTreeMap<&'static str, Option<String>>,
    /// Labels, in the same way.
    pub labels: BTreeMap<&'static str, Option<String>>,
    /// Whether the node is to carry the start-up taint; none where it is not ours to say.
    pub not_ready_taint: Option<bool>,
    /// Remediators are to leave the node alone: it is down on purpose. A label that somebody else put
    /// there for that stays theirs.
    pub stand_back: bool,
    /// The condition `machinist.dev/Ready`; none where there is to be none.
    pub ready: Option<Ready>,
}

/// The condition `machinist.dev/Ready`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// No closed gate holds.
    pub ready: bool,
    /// The first closed gate's code, or `Ok`.
    pub reason: Reason,
    /// One sentence.
    pub message: String,
}

/// A Node's times have whole seconds.
pub(super) fn seconds(time: jiff::Timestamp) -> String {
    let whole = jiff::Timestamp::from_second(time.as_second());
    whole.unwrap_or(time).to_string()
}

pub(super) fn words(ready: &Ready) -> (&'static str, &str) {
    let status = if ready.ready { "True" } else { "False" };
    (status, crd::cut(&ready.message, crd::REASON_LIMIT))
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

fn differing(
    known: &BTreeMap<String, String>,
    wanted: &BTreeMap<&'static str, Option<String>>,
) -> Map<String, Value> {
    let differs =
        |(name, text): &(&&'static str, &Option<String>)| known.get(**name) != text.as_ref();
    let wanted = wanted.iter().filter(differs);
    wanted
        .map(|(name, text)| ((*name).to_owned(), json!(text)))
        .collect()
}

/// Conditions of ours that nobody speaks of: nobody else ever takes one away.
pub(super) fn leftover_conditions(view: &NodeView, notice: &Notice) -> Option<Change> {
    let spoken_of = |kind: &str| kind == names::condition::READY && notice.ready.is_some();
    let left: Vec<_> = view
        .status
        .conditions
        .iter()
        .filter(|it| it.kind.starts_with(names::OURS) && !spoken_of(&it.kind))
        .map(|it| json!({"$patch": "delete", "type": it.kind}))
        .collect();
    (!left.is_empty()).then(|| Change::Conditions(json!({"status": {"conditions": left}})))
}
