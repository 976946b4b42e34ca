//! Sets the SELinux labels of the new objects of a plan.

use std::collections::BTreeSet;

use super::{
    MachineFacts, NewObject, NodeKind, ObjectKind, Operation, OperationKind, SelinuxLabels,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};

/// Sets the label of each new object to the policy's label for its path. An object that replaces another one of the
/// same kind, except a directory, keeps the existing label, unless another program has changed a label that
/// machinist set (`FileFacts::relabelled`).
pub(super) fn add(operations: &mut [Operation], observed: &MachineFacts) {
    if observed.labels.is_empty() {
        return;
    }
    for operation in operations {
        if let OperationKind::Put(node) = &mut operation.kind {
            let before = observed.objects.get(&operation.target);
            let before = before.filter(|facts| Some(facts.kind) == kind(node) && !facts.relabelled);
            let kept = before.filter(|facts| facts.kind != ObjectKind::Directory);
            match kept.and_then(|facts| facts.label.clone()) {
                Some(label) => node.label = Some(label),
                None => label(node, &operation.target, &observed.labels),
            }
        }
    }
}

/// The warning about objects in place whose labels could not be set.
pub(super) fn pending(paths: &BTreeSet<AbsPath>) -> Option<String> {
    let first = paths.first()?;
    let more = match paths.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "failed to set the SELinux label of {first}{more} ({})",
        Reason::LabelPending
    ))
}

fn label(node: &mut NewObject, path: &AbsPath, labels: &SelinuxLabels) {
    node.label = kind(node)
        .and_then(|kind| labels.of(path, kind))
        .map(str::to_owned);
    if let NodeKind::Directory(children) = &mut node.kind {
        for (name, child) in children {
            if let Ok(below) = path.join(name) {
                label(child, &below, labels);
            }
        }
    }
}

/// The kind of a node; none for a hard link, which has the label of its file.
fn kind(node: &NewObject) -> Option<ObjectKind> {
    match node.kind {
        NodeKind::File(_) | NodeKind::Copy { .. } => Some(ObjectKind::File),
        NodeKind::Link(_) => Some(ObjectKind::Link),
        NodeKind::Directory(_) => Some(ObjectKind::Directory),
        NodeKind::Hard { .. } => None,
    }
}
