//! Operations of JSON patches (RFC 6902).

use serde_json::{Value, json};

/// The operations of one patch. They begin with tests, so that the patch fails if the object has changed.
#[derive(Clone, Debug)]
pub(crate) struct JsonPatch(Vec<Value>);

impl JsonPatch {
    /// Begins a patch that the API server carries out only on the object with this UID and resource version.
    pub(crate) fn of_version(uid: &str, resource_version: &str) -> Self {
        let test = |path: &str, value: &str| json!({"op": "test", "path": path, "value": value});
        Self(vec![
            test("/metadata/uid", uid),
            test("/metadata/resourceVersion", resource_version),
        ])
    }

    /// Sets a field, whether it exists or not. Its parent must exist.
    pub(crate) fn set(&mut self, path: impl Into<String>, value: impl Into<Value>) {
        let (path, value) = (path.into(), value.into());
        self.0
            .push(json!({"op": "add", "path": path, "value": value}));
    }

    /// Removes a field, which must exist.
    pub(crate) fn remove(&mut self, path: impl Into<String>) {
        let path = path.into();
        self.0.push(json!({"op": "remove", "path": path}));
    }

    /// The operations as a JSON array.
    pub(crate) fn into_value(self) -> Value {
        Value::Array(self.0)
    }
}

/// The path of an annotation.
pub(crate) fn annotation_path(name: &str) -> String {
    let escaped = name.replace('~', "~0").replace('/', "~1");
    format!("/metadata/annotations/{escaped}")
}
