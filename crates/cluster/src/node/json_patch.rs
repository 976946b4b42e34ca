//! Parts of JSON patches of a Node.

use serde_json::{Value, json};

use machinist_kube_api::NodeView;

/// Operations that fail if the Node changed since it was read: a failed `test` returns 422.
pub(super) fn unchanged(view: &NodeView) -> Vec<Value> {
    let test = |path: &str, value: &str| json!({"op": "test", "path": path, "value": value});
    vec![
        test("/metadata/uid", &view.uid),
        test("/metadata/resourceVersion", &view.resource_version),
    ]
}

/// Escapes `~` and `/` in a JSON pointer (RFC 6901).
pub(super) fn pointer(parent: &str, name: &str) -> String {
    format!("{parent}/{}", name.replace('~', "~0").replace('/', "~1"))
}
