//! Removes everything that machinist owns from its Node when machinist is uninstalled.
//!
//! The annotations of the machine-config protocol stay. They name the config that the node is on,
//! which remains correct, and OpenShift's daemon or a reinstalled agent starts from them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    NodePatch, OwnNode,
    cordon::MAX_ATTEMPTS,
    fitness::is_our_taint,
    patches::{self, pointer, unchanged},
    taints,
};
use crate::ClusterError;
use machinist_kube_api::{
    NodeView, Taint,
    keys::{MACHINIST_PREFIX, annotation, label},
};

/// What machinist owns on a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedKeys {
    /// The node is uncordoned.
    pub uncordoned: bool,
    /// The ownership annotation is removed and the cordon stays, as an operator requested.
    pub kept_cordoned: bool,
    /// Annotations to remove.
    pub annotations: Vec<String>,
    /// Labels to remove.
    pub labels: Vec<String>,
    /// Taints to remove, by key.
    pub taints: Vec<String>,
    /// Conditions to remove, by type.
    pub conditions: Vec<String>,
}

impl RemovedKeys {
    /// Collects what machinist owns on a Node.
    pub fn of(view: &NodeView) -> Self {
        let ours = view.has_cordon_mark();
        let person = |name: &&String| *name == annotation::KEEP_CORDONED;
        let annotations = view.annotations.keys();
        let labels = view.labels.keys();
        let conditions = view.status.conditions.iter();
        let is_excluded = !patches::exclusion_marks(view).is_empty()
            && view.labels.contains_key(label::NO_REMEDIATION);
        Self {
            uncordoned: ours && view.is_cordoned() && !view.keeps_cordon(),
            kept_cordoned: ours && view.is_cordoned() && view.keeps_cordon(),
            annotations: annotations
                .filter(|name| name.starts_with(MACHINIST_PREFIX) && !person(name))
                .cloned()
                .collect(),
            labels: is_excluded
                .then(|| label::NO_REMEDIATION.to_owned())
                .into_iter()
                .chain(
                    labels
                        .filter(|name| name.starts_with(MACHINIST_PREFIX))
                        .cloned(),
                )
                .collect(),
            taints: (view.spec.taints.iter())
                .filter(|taint| is_our_taint(taint) || taints::is_ours(view, taint))
                .map(|taint| taint.key.clone())
                .collect(),
            conditions: conditions
                .map(|condition| condition.kind.clone())
                .filter(|kind| kind.starts_with(MACHINIST_PREFIX))
                .collect(),
        }
    }

    /// Whether anything but conditions is to be removed; conditions are written to the status
    /// subresource.
    fn is_of_the_object(&self) -> bool {
        self.uncordoned
            || [&self.annotations, &self.labels, &self.taints]
                .iter()
                .any(|all| !all.is_empty())
    }
}

impl OwnNode {
    /// Removes what machinist owns, or only lists it if `only_look` is set; none if the Node does
    /// not exist.
    ///
    /// Decides on a live read and reads again after a conflict. Missing fields are ignored, so it
    /// may be repeated after any crash.
    ///
    /// # Errors
    /// A request failed.
    pub async fn clean_up_node(
        &self,
        only_look: bool,
    ) -> Result<Option<RemovedKeys>, ClusterError> {
        let mut rounds = 0;
        loop {
            let Some(view): Option<Arc<NodeView>> = self.read().await? else {
                return Ok(None);
            };
            let left = RemovedKeys::of(&view);
            if only_look {
                return Ok(Some(left));
            }
            match self.remove_keys(&view, &left).await {
                Ok(()) => return Ok(Some(left)),
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) if error.is_conflict() && rounds < MAX_ATTEMPTS => rounds += 1,
                Err(error) => return Err(error),
            }
        }
    }

    async fn remove_keys(&self, view: &NodeView, left: &RemovedKeys) -> Result<(), ClusterError> {
        // Conditions first: this write changes the resource version, which the second request
        // tests. This one tests the UID instead.
        if !left.conditions.is_empty() {
            let gone = left.conditions.iter();
            let gone = gone.map(|kind| json!({"type": kind, "$patch": "delete"}));
            let status = json!({
                "metadata": {"uid": view.uid},
                "status": {"conditions": gone.collect::<Vec<_>>()},
            });
            self.change(&NodePatch::Conditions(status)).await?;
        }
        if left.is_of_the_object() {
            let now = self.read().await?;
            let now = now.as_deref().unwrap_or(view);
            if RemovedKeys::of(now).is_of_the_object() {
                self.change(&removal_patch(now, &RemovedKeys::of(now)))
                    .await?;
            }
        }
        Ok(())
    }
}

/// Removes everything that machinist owns in one request, including the cordon if it is annotated
/// as ours.
fn removal_patch(view: &NodeView, left: &RemovedKeys) -> NodePatch {
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
    NodePatch::Operations(Value::Array(operations))
}
