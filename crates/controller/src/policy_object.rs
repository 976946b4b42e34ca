//! The object with the cluster's disruption policies, as far as the controller needs it.

use kube::api::DynamicObject;
use serde_json::{Value, json};

/// The lists of the merged policies.
const MERGED_FIELDS: [&str; 3] = ["files", "units", "sshkey"];

/// MachineConfiguration `cluster`.
#[derive(Clone, Debug)]
pub(crate) struct PolicyObject {
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) generation: i64,
    /// The object with its spec alone.
    pub(crate) spec: Value,
    observed_generation: Option<i64>,
    /// The merged policies in its status.
    merged: Value,
}

impl PolicyObject {
    /// Whether its status holds these merged policies of its spec.
    pub(crate) fn has(&self, merged: &Value) -> bool {
        let is_same = |field: &str| self.merged[field] == merged[field];
        self.observed_generation == Some(self.generation) && MERGED_FIELDS.into_iter().all(is_same)
    }

    /// The merge patch that writes these policies. Other parts of the status are kept, and the version is tested.
    pub(crate) fn status_patch(&self, merged: &Value) -> Value {
        json!({
            "metadata": {"uid": self.uid, "resourceVersion": self.resource_version},
            "status": {
                "observedGeneration": self.generation,
                "nodeDisruptionPolicyStatus": {"clusterPolicies": merged},
            },
        })
    }
}

impl From<DynamicObject> for PolicyObject {
    fn from(object: DynamicObject) -> Self {
        let metadata = object.metadata;
        let status = &object.data["status"];
        Self {
            uid: metadata.uid.unwrap_or_default(),
            resource_version: metadata.resource_version.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            spec: json!({"spec": object.data["spec"]}),
            observed_generation: status["observedGeneration"].as_i64(),
            merged: status["nodeDisruptionPolicyStatus"]["clusterPolicies"].clone(),
        }
    }
}
