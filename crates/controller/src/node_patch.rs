//! Builds the patches of Nodes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use machinist_cluster::json_patch::{JsonPatch, annotation_path};
use machinist_kube_api::{
    NodeView, Taint,
    keys::{annotation, protocol, taint},
};
use machinist_pool::{NodeChange, NodePatchRequest, UPDATE_TAINT_EFFECT, has_update_taint};

/// Builds the patch for a request; `node` is the version of the Node that was decided on, and `budgets` the value of the
/// annotation that is set with a grant.
pub(crate) fn node_patch(
    node: &NodeView,
    request: &NodePatchRequest,
    budgets: Option<&str>,
) -> Value {
    let mut patch = NodePatch {
        node,
        patch: JsonPatch::of_version(&request.uid, &request.resource_version),
    };
    if !node.has_annotations {
        let no_annotations = json!({});
        patch.patch.set("/metadata/annotations", no_annotations);
    }
    match &request.change {
        NodeChange::PlaceGrant {
            grant,
            desired,
            removes_taint,
        } => {
            patch.annotate(annotation::GRANT, Some(grant));
            patch.annotate(annotation::GRANT_ACKNOWLEDGED, None);
            if budgets.is_some() {
                patch.annotate(annotation::GRANT_BUDGETS, budgets);
            }
            patch.annotate(protocol::DESIRED_CONFIG, Some(desired));
            if *removes_taint {
                patch.taint(false);
            }
        }
        NodeChange::WithdrawGrant {
            ends,
            is_placed,
            resets_desired,
            desired,
            ..
        } => {
            patch.annotate(annotation::GRANT_ENDS, Some(ends));
            if *is_placed {
                patch.annotate(annotation::GRANT, None);
            }
            if *resets_desired {
                patch.annotate(protocol::DESIRED_CONFIG, desired.as_deref());
            }
        }
        NodeChange::RequestCancel { target } => patch.annotate(annotation::CANCEL, Some(target)),
        NodeChange::ResetDesired { desired } => {
            patch.annotate(protocol::DESIRED_CONFIG, desired.as_deref());
        }
        NodeChange::AddTaint => patch.taint(true),
        NodeChange::RemoveTaint => patch.taint(false),
    }
    patch.patch.into_value()
}

struct NodePatch<'n> {
    node: &'n NodeView,
    patch: JsonPatch,
}

impl NodePatch<'_> {
    /// Sets or removes an annotation.
    fn annotate(&mut self, name: &str, value: Option<&str>) {
        match value {
            Some(value) => self.patch.set(annotation_path(name), value),
            None if self.node.annotations.contains_key(name) => {
                self.patch.remove(annotation_path(name));
            }
            None => {}
        }
    }

    /// Adds or removes the taint of the update, and keeps the others.
    fn taint(&mut self, wanted: bool) {
        if has_update_taint(self.node) == wanted {
            return;
        }
        let mut taints = self.node.spec.taints.clone();
        match wanted {
            true => taints.push(Taint {
                key: taint::UPDATE_IN_PROGRESS.to_owned(),
                effect: UPDATE_TAINT_EFFECT.to_owned(),
                rest: BTreeMap::new(),
            }),
            false => taints.retain(|it| {
                it.key != taint::UPDATE_IN_PROGRESS || it.effect != UPDATE_TAINT_EFFECT
            }),
        }
        match taints.is_empty() {
            true => self.patch.remove("/spec/taints"),
            false => self.patch.set("/spec/taints", json!(taints)),
        }
    }
}

#[cfg(test)]
mod tests;
