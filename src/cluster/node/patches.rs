//! What is sent to change a Node: pure, from what is there and what there is to be.

use serde_json::{Map, Value, json};

use super::{Change, leave::Left, taints};
use crate::crd::{NodeView, Taint, names};

/// Unschedulable, and marked as ours, in one request; whoever changes the Node in between makes the
/// request fail, so that a person's cordon never becomes ours.
pub(super) fn cordon(view: &NodeView) -> Change {
    let mut operations = unchanged(view);
    if !view.has_annotations {
        operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
    }
    let mark = pointer("/metadata/annotations", names::annotation::CORDONED);
    operations.push(json!({"op": "add", "path": mark, "value": "update"}));
    operations.push(json!({"op": "add", "path": "/spec/unschedulable", "value": true}));
    Change::Operations(Value::Array(operations))
}

/// Our mark goes, and with `lift` the cordon with it.
pub(super) fn uncordon(view: &NodeView, lift: bool) -> Change {
    let mut operations = unchanged(view);
    let mark = pointer("/metadata/annotations", names::annotation::CORDONED);
    operations.push(json!({"op": "remove", "path": mark}));
    if lift && view.is_cordoned() {
        operations.push(json!({"op": "remove", "path": "/spec/unschedulable"}));
    }
    Change::Operations(Value::Array(operations))
}

/// Fails when anybody has written since: with 422 for a `test`.
pub(super) fn unchanged(view: &NodeView) -> Vec<Value> {
    let test = |path: &str, value: &str| json!({"op": "test", "path": path, "value": value});
    vec![
        test("/metadata/uid", &view.uid),
        test("/metadata/resourceVersion", &view.resource_version),
    ]
}

/// The label that sends remediators away, with the mark that it is ours; none where it is as it is to
/// be, or somebody else's.
pub(super) fn stand_back(view: &NodeView, wanted: bool) -> Option<Change> {
    let (label, mark) = (names::label::NO_REMEDIATION, names::annotation::STANDS_BACK);
    let stands = view.labels.contains_key(label);
    let ours = view.annotations.contains_key(mark);
    let (label, mark) = (
        pointer("/metadata/labels", label),
        pointer("/metadata/annotations", mark),
    );
    let mut operations = unchanged(view);
    match wanted {
        true if !stands => {
            for (there, parent) in [
                (view.has_annotations, "/metadata/annotations"),
                (!view.labels.is_empty(), "/metadata/labels"),
            ] {
                if !there {
                    operations.push(json!({"op": "add", "path": parent, "value": {}}));
                }
            }
            operations.push(json!({"op": "add", "path": mark, "value": "update"}));
            operations.push(json!({"op": "add", "path": label, "value": "true"}));
        }
        false if ours => {
            operations.push(json!({"op": "remove", "path": mark}));
            if stands {
                operations.push(json!({"op": "remove", "path": label}));
            }
        }
        _ => return None,
    }
    Some(Change::Operations(Value::Array(operations)))
}

const NO_SCHEDULE: &str = "NoSchedule";

/// Whether it is the start-up taint.
pub(super) fn is_our_taint(taint: &Taint) -> bool {
    taint.key == names::taint::NOT_READY && taint.effect == NO_SCHEDULE
}

/// What is ours goes, in one request: with the mark of the cordon the cordon itself.
pub(super) fn leave(view: &NodeView, left: &Left) -> Change {
    let mut operations = unchanged(view);
    for (parent, names) in [
        ("/metadata/annotations", &left.annotations),
        ("/metadata/labels", &left.labels),
    ] {
        let paths = names.iter().map(|name| pointer(parent, name));
        operations.extend(paths.map(|path| json!({"op": "remove", "path": path})));
    }
    if left.uncordoned {
        operations.push(json!({"op": "remove", "path": "/spec/unschedulable"}));
    }
    if !left.taints.is_empty() {
        let ours = |taint: &Taint| is_our_taint(taint) || taints::is_ours(view, taint);
        let others = view.spec.taints.iter().filter(|taint| !ours(taint));
        let others: Vec<_> = others.collect();
        operations.push(match others.is_empty() {
            true => json!({"op": "remove", "path": "/spec/taints"}),
            false => json!({"op": "add", "path": "/spec/taints", "value": others}),
        });
    }
    Change::Operations(Value::Array(operations))
}

/// Our start-up taint as it is to be; none where it is. Everybody else's taints are in the list as
/// they were: a list that somebody changed meanwhile fails the request.
pub(super) fn not_ready_taint(view: &NodeView, wanted: bool) -> Option<Change> {
    let old = &view.spec.taints;
    if old.iter().any(is_our_taint) == wanted {
        return None;
    }
    let mut new = old.clone();
    match wanted {
        true => new.push(Taint {
            key: names::taint::NOT_READY.to_owned(),
            effect: NO_SCHEDULE.to_owned(),
            rest: std::collections::BTreeMap::new(),
        }),
        false => new.retain(|taint| !is_our_taint(taint)),
    }
    let mut operations = match old.is_empty() {
        // A list that is not there cannot be tested; its absence is part of the version.
        true => unchanged(view),
        false => vec![
            json!({"op": "test", "path": "/metadata/uid", "value": view.uid}),
            json!({"op": "test", "path": "/spec/taints", "value": old}),
        ],
    };
    operations.push(match new.is_empty() {
        true => json!({"op": "remove", "path": "/spec/taints"}),
        false => json!({"op": "add", "path": "/spec/taints", "value": new}),
    });
    Some(Change::Operations(Value::Array(operations)))
}

/// These annotations and labels, `null` for those that go; none where there is nothing to do. The UID
/// makes the request fail on a Node that was registered anew.
pub(super) fn fields(
    view: &NodeView,
    annotations: Map<String, Value>,
    labels: Map<String, Value>,
) -> Option<Change> {
    let mut metadata = Map::new();
    for (name, fields) in [("annotations", annotations), ("labels", labels)] {
        if !fields.is_empty() {
            metadata.insert(name.to_owned(), Value::Object(fields));
        }
    }
    if metadata.is_empty() {
        return None;
    }
    metadata.insert("uid".to_owned(), json!(view.uid));
    Some(Change::Fields(json!({"metadata": metadata})))
}

/// RFC 6901: `~` and `/` in a name are written otherwise.
pub(super) fn pointer(parent: &str, name: &str) -> String {
    format!("{parent}/{}", name.replace('~', "~0").replace('/', "~1"))
}
