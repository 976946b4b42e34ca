//! Validates the taint of a declaration.

use super::{DeclarationValidator, schema};
use crate::{
    resource_name::{ResourceName, is_label},
    taint::{NodeTaint, NodeTaintEffect},
};

/// The maximum length of a taint's value, which is that of a label's value.
const MAX_VALUE_LEN: usize = 63;

impl DeclarationValidator<'_> {
    /// The taint for nodes that have the resource.
    pub(super) fn taint(&mut self, given: Option<schema::TaintDoc>) -> Option<NodeTaint> {
        let given = given?;
        // The key must have a domain, like a resource name; keys without a domain may collide with
        // others.
        if let Err(error) = ResourceName::new(given.key.as_str()) {
            let message = error.to_string().replace("resource name", "taint key");
            self.value("spec.taint.key", message, "vendor domain/name");
        }
        let value = given.value.as_str();
        if !value.is_empty() && (value.len() > MAX_VALUE_LEN || !is_label(value)) {
            let message = format!("{value:?} is not a valid taint value");
            let expected = "at most 63 letters, digits, -, _ and .";
            self.value("spec.taint.value", message, expected);
        }
        let Some(effect) = NodeTaintEffect::named(&given.effect) else {
            let message = match given.effect.as_str() {
                "NoExecute" => "NoExecute is not supported: it would evict pods".to_owned(),
                other => format!("{other:?} is not a taint effect"),
            };
            self.value(
                "spec.taint.effect",
                message,
                "NoSchedule or PreferNoSchedule",
            );
            return None;
        };
        Some(NodeTaint {
            key: given.key,
            value: given.value,
            effect,
        })
    }
}
