//! The schema and validation of `containerEdits` in CDI specs.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer};

const HOOK_NAMES: [&str; 6] = [
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
];

/// The changes to a container's OCI config.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct CdiEdits {
    #[serde(deserialize_with = "without_nulls")]
    pub(super) env: Vec<String>,
    pub(super) device_nodes: Vec<Node>,
    pub(super) net_devices: Vec<NetDevice>,
    pub(super) mounts: Vec<Mount>,
    pub(super) hooks: Vec<Hook>,
    pub(super) intel_rdt: Option<Rdt>,
    #[serde(deserialize_with = "without_nulls")]
    pub(super) additional_gids: Vec<u32>,
}

/// Deserializes a list of scalars. Like the CDI library, it ignores null items.
pub(super) fn without_nulls<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let all = Vec::<Option<T>>::deserialize(from)?;
    Ok(all.into_iter().flatten().collect())
}

/// Deserializes a text. Like the CDI library, it treats an empty text as absent.
fn not_empty<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(from)?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Defines structs that refuse unknown fields.
macro_rules! shapes {
    ($($name:ident { $($(#[$meta:meta])* $field:ident: $type:ty),+ $(,)? })+) => {$(
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
        pub(super) struct $name { $($(#[$meta])* pub(super) $field: $type),+ }
    )+};
}

shapes! {
    Node {
        path: String,
        #[serde(deserialize_with = "not_empty")]
        host_path: Option<String>,
        #[serde(rename = "type", deserialize_with = "not_empty")]
        kind: Option<String>,
        major: Option<i64>,
        minor: Option<i64>,
        file_mode: Option<u32>,
        #[serde(deserialize_with = "not_empty")]
        permissions: Option<String>,
        uid: Option<u32>,
        gid: Option<u32>,
    }
    NetDevice { host_interface_name: String, name: String }
    Mount {
        host_path: String,
        container_path: String,
        #[serde(deserialize_with = "without_nulls")]
        options: Vec<String>,
        #[serde(rename = "type", deserialize_with = "not_empty")]
        kind: Option<String>,
    }
    Hook {
        hook_name: String,
        path: String,
        #[serde(deserialize_with = "without_nulls")]
        args: Vec<String>,
        #[serde(deserialize_with = "without_nulls")]
        env: Vec<String>,
        timeout: Option<i64>,
    }
    Rdt {
        #[serde(rename = "closID")]
        clos_id: String,
        #[serde(rename = "l3CacheSchema")]
        l3_cache_schema: String,
        #[serde(rename = "memBwSchema")]
        mem_bw_schema: String,
        #[serde(deserialize_with = "list_that_is_there")]
        schemata: Option<Vec<String>>,
        enable_monitoring: bool,
    }
}

fn list_that_is_there<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    without_nulls(from).map(Some)
}

impl CdiEdits {
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
        let newest_rdt = rdt.is_some_and(|rdt| rdt.schemata.is_some() || rdt.enable_monitoring);
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

    /// Applies the CDI library's validation.
    pub(super) fn check(&self) -> Result<(), String> {
        check_env(&self.env)?;
        self.device_nodes.iter().try_for_each(Node::check)?;
        self.hooks.iter().try_for_each(Hook::check)?;
        let no_place =
            |mount: &Mount| mount.host_path.is_empty() || mount.container_path.is_empty();
        if self.mounts.iter().any(no_place) {
            return Err("mount requires hostPath and containerPath".to_owned());
        }
        if let Some(rdt) = &self.intel_rdt {
            rdt.check()?;
        }
        let (mut hosts, mut names) = (BTreeSet::new(), BTreeSet::new());
        let is_free = |device: &NetDevice| {
            let NetDevice {
                host_interface_name: host,
                name,
            } = device;
            let named = !host.is_empty() && !name.is_empty();
            named && hosts.insert(host.clone()) && names.insert(name.clone())
        };
        match self.net_devices.iter().all(is_free) {
            true => Ok(()),
            false => Err("network device name is missing or a duplicate".to_owned()),
        }
    }
}

fn check_env(env: &[String]) -> Result<(), String> {
    let wrong = env.iter().find(|text| text.find('=').unwrap_or(0) == 0);
    wrong.map_or(Ok(()), |text| {
        Err(format!(
            "{text:?} is not an environment variable; expected NAME=VALUE"
        ))
    })
}

impl Node {
    fn check(&self) -> Result<(), String> {
        let path = &self.path;
        if path.is_empty() {
            return Err("device node requires a path".to_owned());
        }
        if let Some(kind) = &self.kind
            && !["b", "c", "u", "p"].contains(&kind.as_str())
        {
            return Err(format!(
                "device node {path:?}: unknown type {kind:?}; expected b, c, u or p"
            ));
        }
        match self.permissions.as_deref() {
            Some(other) if other != "none" && !other.chars().all(|c| "rwm".contains(c)) => {
                Err(format!(
                    "device node {path:?}: invalid permissions {other:?}; expected letters of rwm, or none"
                ))
            }
            _ => Ok(()),
        }
    }
}

impl Hook {
    fn check(&self) -> Result<(), String> {
        let name = &self.hook_name;
        if !HOOK_NAMES.contains(&name.as_str()) {
            return Err(format!(
                "{name:?} is not a hook name; expected one of {}",
                HOOK_NAMES.join(", ")
            ));
        }
        if self.path.is_empty() {
            return Err(format!("hook {name} requires a path"));
        }
        check_env(&self.env)
    }
}

impl Rdt {
    /// Checks the class of service, which is the name of a directory in resctrl; `/` is the default
    /// class.
    fn check(&self) -> Result<(), String> {
        let id = self.clos_id.as_str();
        let wrong = id.len() >= 4096 || matches!(id, "." | "..") || id.contains(['/', '\n']);
        match id != "/" && wrong {
            true => Err(format!("{id:?} is not a valid closID")),
            false => Ok(()),
        }
    }
}
