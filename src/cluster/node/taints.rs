//! Taints that devices ask for: which are on the Node, which of them are ours, and what is to change.
//!
//! An annotation names those that are ours, written in the same request: whoever had put such a taint there
//! before keeps it, and it stays when the device goes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Change, patches};
use crate::crd::{NodeView, Taint, names::annotation};

/// What tells one taint from another on a Node.
fn mark(taint: &Taint) -> String {
    format!("{}:{}", taint.key, taint.effect)
}

/// Those that are ours, by the Node's own word.
pub(super) fn ours(view: &NodeView) -> BTreeSet<&str> {
    let marked = view.annotation(annotation::TAINTS).unwrap_or_default();
    marked.split(',').filter(|it| !it.is_empty()).collect()
}

/// Whether it is one of ours.
pub(super) fn is_ours(view: &NodeView, taint: &Taint) -> bool {
    ours(view).contains(mark(taint).as_str())
}

/// What makes the Node bear `wanted` beside those of others; none where it does.
pub(super) fn change(view: &NodeView, wanted: &[Taint]) -> Option<Change> {
    let old = &view.spec.taints;
    let known = ours(view);
    let others = old.iter().filter(|taint| !is_ours(view, taint));
    let mut new: Vec<Taint> = others.cloned().collect();
    let mut marks = BTreeSet::new();
    for taint in wanted {
        let mark = mark(taint);
        // Somebody else's says the same; whose value it has is theirs to say.
        if new.iter().any(|other| self::mark(other) == mark) {
            continue;
        }
        // One of ours stays as the API server has dated it.
        let there = old.iter().find(|known| self::mark(known) == mark);
        let there = there.filter(|known| known.rest.get("value") == taint.rest.get("value"));
        new.push(there.unwrap_or(taint).clone());
        marks.insert(mark);
    }
    let same = |one: &[Taint], other: &[Taint]| {
        one.len() == other.len() && one.iter().all(|taint| other.contains(taint))
    };
    let marked = marks.iter().map(String::as_str).eq(known.iter().copied());
    if same(old, &new) && marked {
        return None;
    }
    let mut operations = patches::unchanged(view);
    if !same(old, &new) {
        operations.push(match new.is_empty() {
            true => json!({"op": "remove", "path": "/spec/taints"}),
            false => json!({"op": "add", "path": "/spec/taints", "value": new}),
        });
    }
    let path = patches::pointer("/metadata/annotations", annotation::TAINTS);
    let marks = marks.into_iter().collect::<Vec<_>>().join(",");
    match (
        marks.is_empty(),
        view.annotations.contains_key(annotation::TAINTS),
    ) {
        (true, false) => {}
        (true, true) => operations.push(json!({"op": "remove", "path": path})),
        (false, _) => {
            if !view.has_annotations {
                let parent = "/metadata/annotations";
                operations.push(json!({"op": "add", "path": parent, "value": {}}));
            }
            operations.push(json!({"op": "add", "path": path, "value": marks}));
        }
    }
    Some(Change::Operations(Value::Array(operations)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn taint(key: &str, value: &str) -> Taint {
        let value = (!value.is_empty()).then(|| ("value".to_owned(), json!(value)));
        Taint {
            key: key.to_owned(),
            effect: "NoSchedule".to_owned(),
            rest: value.into_iter().collect::<BTreeMap<_, _>>(),
        }
    }

    fn node(taints: &[Taint], marks: &str) -> NodeView {
        let mut node = NodeView::default();
        node.spec.taints = taints.to_vec();
        if !marks.is_empty() {
            node.has_annotations = true;
            node.annotations
                .insert(annotation::TAINTS.to_owned(), marks.to_owned());
        }
        node
    }

    /// What the change says of taints and of our mark.
    fn said(change: Option<Change>) -> Vec<Value> {
        let Some(Change::Operations(Value::Array(all))) = change else {
            return Vec::new();
        };
        let tests = |it: &Value| it["op"] == "test";
        all.into_iter().filter(|it| !tests(it)).collect()
    }

    #[test]
    fn a_taint_is_added_with_our_mark_beside_those_of_others_and_then_left_alone() {
        let theirs = taint("other.dev/x", "");
        let wanted = [taint("acme.dev/serial", "yes")];
        let before = node(std::slice::from_ref(&theirs), "");
        let operations = said(change(&before, &wanted));
        assert_eq!(operations[0]["value"], json!([theirs, wanted[0]]));
        assert_eq!(operations[1]["path"], "/metadata/annotations");
        assert_eq!(operations[2]["value"], "acme.dev/serial:NoSchedule");
        let after = node(&[wanted[0].clone(), theirs], "acme.dev/serial:NoSchedule");
        assert_eq!(said(change(&after, &wanted)), [Value::Null; 0]);
    }

    #[test]
    fn what_somebody_else_put_there_is_neither_ours_nor_taken_away() {
        let theirs = taint("acme.dev/serial", "mine");
        let there = node(std::slice::from_ref(&theirs), "");
        let wanted = [taint("acme.dev/serial", "yes")];
        assert_eq!(said(change(&there, &wanted)), [Value::Null; 0]);
        assert_eq!(said(change(&there, &[])), [Value::Null; 0]);
    }

    #[test]
    fn ours_goes_with_the_device_and_one_that_somebody_took_off_comes_back() {
        let ours = taint("acme.dev/serial", "");
        let mark = "acme.dev/serial:NoSchedule";
        let there = node(std::slice::from_ref(&ours), mark);
        let gone = said(change(&there, &[]));
        assert_eq!(gone[0], json!({"op": "remove", "path": "/spec/taints"}));
        assert_eq!(gone[1]["op"], "remove");
        let taken = node(&[], mark);
        let back = said(change(&taken, std::slice::from_ref(&ours)));
        assert_eq!(back[0]["value"], json!([ours]));
    }
}
