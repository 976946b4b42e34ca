//! The `Plan` document that `plan -o json` prints.

use serde::Serialize;

use super::{ConfigRef, Plan};
use machinist_ignition::{MachineConfig, Refusal};

/// A plan with the `apiVersion` and `kind` fields of all documents.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanDocument<'a> {
    api_version: &'static str,
    kind: &'static str,
    root: String,
    #[serde(flatten)]
    plan: &'a Plan,
}

impl<'a> PlanDocument<'a> {
    /// The document for a plan on the tree that is shown to users as `root`.
    pub fn new(root: impl Into<String>, plan: &'a Plan) -> Self {
        Self {
            api_version: "machinist.dev/v1",
            kind: "Plan",
            root: root.into(),
            plan,
        }
    }
}

impl Plan {
    /// A refused plan, which contains only the refusals.
    pub fn refused(from: &MachineConfig, to: &MachineConfig, refusals: Vec<Refusal>) -> Self {
        Self {
            from: ConfigRef::of(from),
            to: ConfigRef::of(to),
            refusals,
            ..Self::default()
        }
    }
}
