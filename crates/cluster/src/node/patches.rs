//! Builds the patches of a Node from its observed and desired state. Pure functions.

use serde_json::{Map, Value, json};

use super::{
    NodePatch,
    fitness::{NO_SCHEDULE, NodeFitness, is_our_taint},
};
use machinist_kube_api::{MAX_REASON_BYTES, NodeView, Taint, keys, truncate_at_char};

/// Operations that fail if the Node changed since it was read: a failed `test` returns 422.
pub(super) fn unchanged(view: &NodeView) -> Vec<Value> {
    let test = |path: &str, value: &str| json!({"op": "test", "path": path, "value": value});
    vec![
        test("/metadata/uid", &view.uid),
        test("/metadata/resourceVersion", &view.resource_version),
    ]
}

/// Escapes `~` and `/` in a JSON pointer (RFC 6901).
pub(crate) fn pointer(parent: &str, name: &str) -> String {
    format!("{parent}/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// Removes the cancellation request for `config`, and records the refusal `why` if there is one. If
/// another request was made in the meantime, the patch fails and that request is kept.
pub(super) fn cancel_reply(config: &str, why: Option<&str>) -> NodePatch {
    let question = pointer("/metadata/annotations", keys::annotation::CANCEL);
    let mut operations = vec![
        json!({"op": "test", "path": question, "value": config}),
        json!({"op": "remove", "path": question}),
    ];
    if let Some(why) = why {
        let answer = pointer("/metadata/annotations", keys::annotation::CANCEL_REFUSED);
        let text = format!("{config}: {why}");
        let text = truncate_at_char(&text, MAX_REASON_BYTES);
        operations.push(json!({"op": "add", "path": answer, "value": text}));
    }
    NodePatch::Operations(Value::Array(operations))
}

/// The operation that acknowledges a grant.
pub(super) fn acknowledgement(id: &str) -> Value {
    let path = pointer(
        "/metadata/annotations",
        keys::annotation::GRANT_ACKNOWLEDGED,
    );
    json!({"op": "add", "path": path, "value": id})
}

/// Cordons the node and annotates it as cordoned by machinist, in one request, which also acknowledges a grant. The
/// request fails if the Node changed in between, so that an operator's cordon is never claimed and a withdrawn grant never
/// acknowledged.
pub(super) fn cordon(view: &NodeView, acknowledged: Option<&str>) -> NodePatch {
    let mut operations = unchanged(view);
    if !view.has_annotations {
        operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
    }
    let mark = pointer("/metadata/annotations", keys::annotation::CORDONED);
    operations.push(json!({"op": "add", "path": mark, "value": "update"}));
    operations.extend(acknowledged.map(acknowledgement));
    operations.push(json!({"op": "add", "path": "/spec/unschedulable", "value": true}));
    NodePatch::Operations(Value::Array(operations))
}

/// Removes the ownership annotation, and with `lift` also the cordon.
pub(super) fn uncordon(view: &NodeView, lift: bool) -> NodePatch {
    let mut operations = unchanged(view);
    let mark = pointer("/metadata/annotations", keys::annotation::CORDONED);
    operations.push(json!({"op": "remove", "path": mark}));
    if lift && view.is_cordoned() {
        operations.push(json!({"op": "remove", "path": "/spec/unschedulable"}));
    }
    NodePatch::Operations(Value::Array(operations))
}

/// Sets or removes the label that keeps remediators away, together with the annotation that marks
/// it as ours; none if nothing changes or another writer owns the label.
pub(crate) fn remediation_exclusion(view: &NodeView, wanted: bool) -> Option<NodePatch> {
    let label = keys::label::NO_REMEDIATION;
    let stands = view.labels.contains_key(label);
    let marks = exclusion_marks(view);
    let (label, mark) = (
        pointer("/metadata/labels", label),
        pointer(
            "/metadata/annotations",
            keys::annotation::OWNS_REMEDIATION_EXCLUSION,
        ),
    );
    let mut operations = unchanged(view);
    let is_former = marks.contains(&keys::annotation::FORMER_OWNS_REMEDIATION_EXCLUSION);
    let unmark = marks
        .iter()
        .map(|mark| json!({"op": "remove", "path": pointer("/metadata/annotations", mark)}));
    match wanted {
        true if !stands || is_former => {
            for (there, parent) in [
                (view.has_annotations, "/metadata/annotations"),
                (!view.labels.is_empty(), "/metadata/labels"),
            ] {
                if !there {
                    operations.push(json!({"op": "add", "path": parent, "value": {}}));
                }
            }
            operations.extend(unmark);
            operations.push(json!({"op": "add", "path": mark, "value": "update"}));
            operations.push(json!({"op": "add", "path": label, "value": "true"}));
        }
        false if !marks.is_empty() => {
            operations.extend(unmark);
            if stands {
                operations.push(json!({"op": "remove", "path": label}));
            }
        }
        _ => return None,
    }
    Some(NodePatch::Operations(Value::Array(operations)))
}

/// The annotations of the Node that mark this label as ours, also by the former name.
pub(super) fn exclusion_marks(view: &NodeView) -> Vec<&'static str> {
    let names = [
        keys::annotation::OWNS_REMEDIATION_EXCLUSION,
        keys::annotation::FORMER_OWNS_REMEDIATION_EXCLUSION,
    ];
    let found = names.into_iter();
    found
        .filter(|name| view.annotations.contains_key(*name))
        .collect()
}

/// Adds or removes the start-up taint; none if nothing changes. Other taints in the list are kept:
/// if another client changed the list meanwhile, the request fails.
pub(crate) fn not_ready_taint(view: &NodeView, fitness: &NodeFitness) -> Option<NodePatch> {
    let wanted = fitness.start_up_taint(view)?;
    let old = &view.spec.taints;
    if old.iter().any(is_our_taint) == wanted {
        return None;
    }
    let mut new = old.clone();
    match wanted {
        true => new.push(Taint {
            key: keys::taint::NOT_READY.to_owned(),
            effect: NO_SCHEDULE.to_owned(),
            rest: std::collections::BTreeMap::new(),
        }),
        false => new.retain(|taint| !is_our_taint(taint)),
    }
    let mut operations = match old.is_empty() {
        // A missing list cannot be tested; the resource version covers its absence.
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
    Some(NodePatch::Operations(Value::Array(operations)))
}

/// A merge patch of annotations and labels, where `null` removes one; none if there are none. The
/// UID makes the request fail on a recreated Node.
pub(super) fn fields(
    view: &NodeView,
    annotations: Map<String, Value>,
    labels: Map<String, Value>,
) -> Option<NodePatch> {
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
    Some(NodePatch::Fields(json!({"metadata": metadata})))
}
