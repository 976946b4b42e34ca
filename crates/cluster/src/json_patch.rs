//! Operations of JSON patches (RFC 6902).

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::node::patches::pointer;
use machinist_kube_api::keys;

/// The operations of one patch. They begin with tests, so that the patch fails if the object has changed.
#[derive(Clone, Debug)]
pub struct JsonPatch(Vec<Value>);

impl JsonPatch {
    /// Begins a patch that the API server carries out only on the object with this UID and resource version.
    pub fn of_version(uid: &str, resource_version: &str) -> Self {
        let test = |path: &str, value: &str| json!({"op": "test", "path": path, "value": value});
        Self(vec![
            test("/metadata/uid", uid),
            test("/metadata/resourceVersion", resource_version),
        ])
    }

    /// Sets a field, whether it exists or not. Its parent must exist.
    pub fn set(&mut self, path: impl Into<String>, value: impl Into<Value>) {
        let (path, value) = (path.into(), value.into());
        self.0
            .push(json!({"op": "add", "path": path, "value": value}));
    }

    /// Removes a field, which must exist.
    pub fn remove(&mut self, path: impl Into<String>) {
        let path = path.into();
        self.0.push(json!({"op": "remove", "path": path}));
    }

    /// Sets or removes an annotation; `has_annotations` is whether the object has any.
    pub fn annotations<'v>(
        &mut self,
        has_annotations: bool,
        changes: impl IntoIterator<Item = (&'static str, Option<&'v str>)>,
    ) {
        let mut exists = has_annotations;
        for (name, value) in changes {
            match value {
                Some(value) => {
                    if !exists {
                        self.set("/metadata/annotations", json!({}));
                        exists = true;
                    }
                    self.set(annotation_path(name), value);
                }
                None => self.remove(annotation_path(name)),
            }
        }
    }

    /// The operations as a JSON array.
    pub fn into_value(self) -> Value {
        Value::Array(self.0)
    }
}

/// The operations as the body of a request.
pub fn body(operations: &Value) -> Result<Patch<()>, kube::Error> {
    let operations = serde_json::from_value(operations.clone());
    operations.map(Patch::Json).map_err(kube::Error::SerdeError)
}

/// The parameters of a patch; with `dry_run` the API server changes nothing.
pub fn params(dry_run: bool) -> PatchParams {
    PatchParams {
        dry_run,
        field_manager: Some(keys::FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// The path of an annotation.
pub fn annotation_path(name: &str) -> String {
    pointer("/metadata/annotations", name)
}
