//! `containerEdits` as a spec writes them.

use serde::Deserialize;

/// What a runtime changes of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Edits {
    pub(super) env: Vec<String>,
    pub(super) device_nodes: Vec<Node>,
    pub(super) net_devices: Vec<NetDevice>,
    pub(super) mounts: Vec<Mount>,
    pub(super) hooks: Vec<Hook>,
    pub(super) intel_rdt: Option<Rdt>,
    pub(super) additional_gids: Vec<u32>,
}

/// Shapes whose names are checked.
macro_rules! shapes {
    ($($name:ident { $($(#[$meta:meta])* $field:ident: $type:ty),+ $(,)? })+) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub(super) struct $name { $($(#[$meta])* pub(super) $field: $type),+ }
    )+};
}

shapes! {
    Node {
        path: String,
        host_path: Option<String>,
        #[serde(rename = "type")]
        kind: Option<String>,
        major: Option<i64>,
        minor: Option<i64>,
        file_mode: Option<u32>,
        permissions: Option<String>,
        uid: Option<u32>,
        gid: Option<u32>,
    }
    NetDevice { host_interface_name: String, name: String }
    Mount {
        host_path: String,
        container_path: String,
        #[serde(default)]
        options: Vec<String>,
        #[serde(rename = "type")]
        kind: Option<String>,
    }
    Hook {
        hook_name: String,
        path: String,
        #[serde(default)]
        args: Vec<String>,
        #[serde(default)]
        env: Vec<String>,
        timeout: Option<u32>,
    }
    Rdt {
        #[serde(rename = "closID")]
        clos_id: Option<String>,
        #[serde(rename = "l3CacheSchema")]
        l3_cache_schema: Option<String>,
        #[serde(rename = "memBwSchema")]
        mem_bw_schema: Option<String>,
        schemata: Option<Vec<String>>,
        enable_monitoring: Option<bool>,
        #[serde(rename = "enableCMT")]
        enable_cmt: Option<bool>,
        #[serde(rename = "enableMBM")]
        enable_mbm: Option<bool>,
    }
}

impl Edits {
    pub(super) fn is_empty(&self) -> bool {
        self.env.is_empty()
            && self.device_nodes.is_empty()
            && self.net_devices.is_empty()
            && self.mounts.is_empty()
            && self.hooks.is_empty()
            && self.intel_rdt.is_none()
            && self.additional_gids.is_empty()
    }

    pub(super) fn needed(&self) -> &'static str {
        let rdt = self.intel_rdt.as_ref();
        let newest_rdt =
            rdt.is_some_and(|rdt| rdt.schemata.is_some() || rdt.enable_monitoring.is_some());
        if !self.net_devices.is_empty() || newest_rdt {
            "1.1.0"
        } else if rdt.is_some() || !self.additional_gids.is_empty() {
            "0.7.0"
        } else if self
            .device_nodes
            .iter()
            .any(|node| node.host_path.is_some())
        {
            "0.5.0"
        } else if self.mounts.iter().any(|mount| mount.kind.is_some()) {
            "0.4.0"
        } else {
            "0.3.0"
        }
    }
}
