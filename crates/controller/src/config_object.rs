//! MachineConfigs, as far as the controller needs them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use machinist_kube_api::keys::{self, label};
use machinist_pool::RenderedConfig;

/// A MachineConfig.
#[derive(Clone, Debug)]
pub(crate) struct ConfigObject {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) created: Option<Timestamp>,
    /// Name, labels, annotations and spec as JSON, from which the object can be created again.
    pub(crate) text: String,
}

impl ConfigObject {
    /// The pool that this config was rendered for; `None` if a person or another controller created it.
    pub(crate) fn rendered_for(&self) -> Option<&str> {
        self.labels.get(label::RENDERED_FOR).map(String::as_str)
    }

    /// Describes a config that this controller rendered.
    pub(crate) fn as_rendered(&self) -> Option<RenderedConfig> {
        Some(RenderedConfig {
            name: self.name.clone(),
            pool: self.rendered_for()?.to_owned(),
            created: self.created,
        })
    }
}

impl From<DynamicObject> for ConfigObject {
    fn from(object: DynamicObject) -> Self {
        let metadata = object.metadata;
        let name = metadata.name.unwrap_or_default();
        let labels = metadata.labels.unwrap_or_default();
        let spec = object.data.get("spec").cloned();
        let manifest = json!({
            "apiVersion": format!("{}/v1", keys::GROUP),
            "kind": "MachineConfig",
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": metadata.annotations.unwrap_or_default(),
            },
            "spec": spec.unwrap_or_else(|| Value::Object(serde_json::Map::new())),
        });
        Self {
            text: manifest.to_string(),
            uid: metadata.uid.unwrap_or_default(),
            resource_version: metadata.resource_version.unwrap_or_default(),
            created: metadata.creation_timestamp.map(|time| time.0),
            name,
            labels,
        }
    }
}
