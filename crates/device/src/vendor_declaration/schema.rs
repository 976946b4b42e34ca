//! The schema of a vendor file, with all fields; unknown fields are refused.

use serde::Deserialize;

use super::VendorTransport;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct VendorDoc {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: VendorMetadataDoc,
    pub(super) spec: VendorSpecDoc,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct VendorMetadataDoc {
    pub(super) name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct VendorSpecDoc {
    pub(super) connects: VendorTransport,
    #[serde(default)]
    pub(super) serve: crate::inventory::ServeMode,
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
    pub(super) limits: VendorLimitsDoc,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct VendorLimitsDoc {
    pub(super) devices: Option<usize>,
    pub(super) resources: Option<usize>,
}
