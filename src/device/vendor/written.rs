//! The schema of a vendor file, with all fields; unknown fields are refused.

use serde::Deserialize;

use super::Connects;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct File {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: Metadata,
    pub(super) spec: Spec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Metadata {
    pub(super) name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Spec {
    pub(super) connects: Connects,
    #[serde(default)]
    pub(super) serve: crate::device::inventory::Serve,
    pub(super) users: Option<Vec<u32>>,
    #[serde(default)]
    pub(super) group: u32,
    pub(super) resources: Vec<String>,
    #[serde(default)]
    pub(super) devices: Vec<String>,
    #[serde(default)]
    pub(super) mounts: Vec<String>,
    #[serde(default)]
    pub(super) cdi: Vec<String>,
    pub(super) grace: Option<String>,
    pub(super) deadline: Option<String>,
    #[serde(default)]
    pub(super) limits: Limits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Limits {
    pub(super) devices: Option<usize>,
    pub(super) resources: Option<usize>,
}
