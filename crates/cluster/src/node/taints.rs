//! Reconciles the taints that devices declare with those on the Node.
//!
//! An annotation, written in the same request, lists the taints that machinist owns. A taint that
//! another client had set before stays with that client, and remains when the device is removed.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{NodePatch, patches};
use machinist_kube_api::{NodeView, Taint, keys::annotation};

/// Identifies a taint on a Node: key and effect.
fn mark(taint: &Taint) -> String {
    format!("{}:{}", taint.key, taint.effect)
}

/// Taints that machinist owns, according to the Node's annotation.
pub(super) fn ours(view: &NodeView) -> BTreeSet<&str> {
    let marked = view.annotation(annotation::TAINTS).unwrap_or_default();
    marked.split(',').filter(|it| !it.is_empty()).collect()
}

/// Whether machinist owns this taint.
pub(super) fn is_ours(view: &NodeView, taint: &Taint) -> bool {
    ours(view).contains(mark(taint).as_str())
}

/// The next patch that brings the Node's taints closer to `wanted`, with the key and effect of the
/// one taint that it changes; none if only taints differ that `waits` delays. Each taint has its
/// own request, so that a policy that refuses one does not block the others.
pub(crate) fn change(
    view: &NodeView,
    wanted: &[Taint],
    waits: impl Fn(&str) -> bool,
) -> Option<(String, NodePatch)> {
    let marks: BTreeSet<String> = wanted.iter().map(mark).collect();
    let known = ours(view).into_iter().map(str::to_owned);
    let marks = marks.into_iter().chain(known).collect::<BTreeSet<_>>();
    marks.into_iter().filter(|it| !waits(it)).find_map(|mark| {
        let wanted = wanted.iter().find(|taint| self::mark(taint) == mark);
        let change = change_one(view, &mark, wanted)?;
        Some((mark, change))
    })
}

/// The patch that sets `wanted`, or removes the taint with this key and effect; none if nothing
/// differs.
fn change_one(view: &NodeView, mark: &str, wanted: Option<&Taint>) -> Option<NodePatch> {
    let old = &view.spec.taints;
    let mut marks = ours(view);
    let found = old.iter().find(|taint| self::mark(taint) == mark);
    let value = |taint: &Taint| taint.rest.get("value").cloned();
    // Another writer's taint with this key and effect keeps its value and stays.
    if found.is_some() && !marks.contains(mark)
        || wanted.is_some() && found.map(value) == wanted.map(value)
    {
        return None;
    }
    let others = old.iter().filter(|taint| self::mark(taint) != mark);
    let new: Vec<&Taint> = others.chain(wanted).collect();
    match wanted {
        Some(_) => marks.insert(mark),
        None => marks.remove(mark),
    };
    let mut operations = patches::unchanged(view);
    if found.is_some() || wanted.is_some() {
        operations.push(match new.is_empty() {
            true => json!({"op": "remove", "path": "/spec/taints"}),
            false => json!({"op": "add", "path": "/spec/taints", "value": new}),
        });
    }
    operations.extend(marks_operations(view, &marks));
    Some(NodePatch::Operations(Value::Array(operations)))
}

/// The operations that set the annotation to `marks`.
fn marks_operations(view: &NodeView, marks: &BTreeSet<&str>) -> Vec<Value> {
    let path = patches::pointer("/metadata/annotations", annotation::TAINTS);
    let text = marks.iter().copied().collect::<Vec<_>>().join(",");
    match view.annotation(annotation::TAINTS) {
        None if marks.is_empty() => Vec::new(),
        Some(_) if marks.is_empty() => vec![json!({"op": "remove", "path": path})],
        _ => {
            let parent = json!({"op": "add", "path": "/metadata/annotations", "value": {}});
            let parent = (!view.has_annotations).then_some(parent);
            let mark = json!({"op": "add", "path": path, "value": text});
            parent.into_iter().chain([mark]).collect()
        }
    }
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

    /// The operations of a change on taints and on the annotation.
    fn patch_operations(change: Option<(String, NodePatch)>) -> Vec<Value> {
        let Some((_, NodePatch::Operations(Value::Array(all)))) = change else {
            return Vec::new();
        };
        let tests = |it: &Value| it["op"] == "test";
        all.into_iter().filter(|it| !tests(it)).collect()
    }

    #[test]
    fn a_taint_is_added_next_to_foreign_taints_and_recorded_as_ours() {
        let theirs = taint("other.dev/x", "");
        let wanted = [taint("acme.dev/serial", "yes")];
        let before = node(std::slice::from_ref(&theirs), "");
        let operations = patch_operations(change(&before, &wanted, |_| false));
        assert_eq!(operations[0]["value"], json!([theirs, wanted[0]]));
        assert_eq!(operations[1]["path"], "/metadata/annotations");
        assert_eq!(operations[2]["value"], "acme.dev/serial:NoSchedule");
        let after = node(&[wanted[0].clone(), theirs], "acme.dev/serial:NoSchedule");
        assert_eq!(
            patch_operations(change(&after, &wanted, |_| false)),
            [Value::Null; 0]
        );
    }

    #[test]
    fn an_equal_taint_of_another_writer_is_neither_claimed_nor_removed() {
        let theirs = taint("acme.dev/serial", "mine");
        let there = node(std::slice::from_ref(&theirs), "");
        let wanted = [taint("acme.dev/serial", "yes")];
        assert_eq!(
            patch_operations(change(&there, &wanted, |_| false)),
            [Value::Null; 0]
        );
        assert_eq!(
            patch_operations(change(&there, &[], |_| false)),
            [Value::Null; 0]
        );
    }

    #[test]
    fn our_taint_is_removed_with_its_device_and_restored_if_deleted() {
        let ours = taint("acme.dev/serial", "");
        let mark = "acme.dev/serial:NoSchedule";
        let there = node(std::slice::from_ref(&ours), mark);
        let gone = patch_operations(change(&there, &[], |_| false));
        assert_eq!(gone[0], json!({"op": "remove", "path": "/spec/taints"}));
        assert_eq!(gone[1]["op"], "remove");
        let taken = node(&[], mark);
        let back = patch_operations(change(&taken, std::slice::from_ref(&ours), |_| false));
        assert_eq!(back[0]["value"], json!([ours]));
    }

    #[test]
    fn a_rejected_taint_does_not_block_adding_or_removing_others() {
        let refused = taint("acme.dev/serial", "");
        let other = taint("beta.dev/fpga", "");
        let waits = |taint: &str| taint == "acme.dev/serial:NoSchedule";
        let wanted = [refused.clone(), other.clone()];
        let (mark, _) = change(&node(&[], ""), &wanted, waits).unwrap();
        assert_eq!(mark, "beta.dev/fpga:NoSchedule");
        let added = patch_operations(change(&node(&[], ""), &wanted, waits));
        assert_eq!(added[0]["value"], json!([other]));
        assert_eq!(added[2]["value"], "beta.dev/fpga:NoSchedule");
        let both = "acme.dev/serial:NoSchedule,beta.dev/fpga:NoSchedule";
        let there = node(&[refused.clone(), other], both);
        let removed = patch_operations(change(&there, &[], waits));
        assert_eq!(removed[0]["value"], json!([refused]));
        assert_eq!(removed[1]["value"], "acme.dev/serial:NoSchedule");
        assert_eq!(
            patch_operations(change(
                &node(&[refused], "acme.dev/serial:NoSchedule"),
                &[],
                waits
            )),
            [Value::Null; 0]
        );
    }
}
