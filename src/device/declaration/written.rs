//! The schema of a declaration file, with all fields; unknown fields are refused.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize,
    de::{self, Deserializer, SeqAccess, Visitor},
};

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
    pub(super) resource: String,
    #[serde(default)]
    pub(super) serve: crate::device::inventory::Serve,
    // With a default, so that validation reports an absent `match` with its field path.
    #[serde(rename = "match", default)]
    pub(super) matches: Vec<Match>,
    pub(super) group: Option<Group>,
    pub(super) share: Option<Share>,
    #[serde(default)]
    pub(super) container: Container,
    #[serde(default)]
    pub(super) capacity: BTreeMap<String, Amount>,
    pub(super) numa: Option<Numa>,
    pub(super) health: Option<Vec<Probe>>,
    pub(super) quiesce: Option<Quiesce>,
    pub(super) taint: Option<Taint>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Match {
    pub(super) path: Option<String>,
    pub(super) usb: Option<Usb>,
    pub(super) pci: Option<Pci>,
    pub(super) subsystem: Option<Subsystem>,
    pub(super) cdi: Option<Cdi>,
}

/// Defines structs that need neither a default nor a custom deserializer.
macro_rules! plain {
    ($($name:ident { $($(#[$meta:meta])* $field:ident: $type:ty),+ $(,)? })+) => {$(
        #[derive(Debug, Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub(super) struct $name { $($(#[$meta])* pub(super) $field: $type),+ }
    )+};
}

plain! {
    Usb { vendor: Option<String>, product: Option<String>, serial: Option<String> }
    Pci {
        vendor: Option<String>,
        device: Option<String>,
        class: Option<String>,
        driver: Option<String>,
        iommu_group: Option<String>,
    }
    Subsystem { name: String, #[serde(default)] attributes: BTreeMap<String, String> }
    Cdi { kind: String }
    Group { by: String }
    Sysfs { file: String, equals: String }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Taint {
    pub(super) key: String,
    #[serde(default)]
    pub(super) value: String,
    pub(super) effect: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Quiesce {
    pub(super) stop_units: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Share {
    #[serde(default = "one")]
    pub(super) replicas: u32,
    #[serde(default)]
    pub(super) policy: crate::device::inventory::SharePolicy,
    #[serde(default)]
    pub(super) strict: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Container {
    pub(super) nodes: Option<Vec<Node>>,
    pub(super) mounts: Vec<Mount>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Node {
    pub(super) path: String,
    #[serde(rename = "as")]
    pub(super) inside: Option<String>,
    #[serde(default = "Node::default_permissions")]
    pub(super) permissions: String,
}

impl Node {
    /// Reading and writing is the normal use of a device; creating nodes (`m`) must be requested.
    pub(super) fn default_permissions() -> String {
        "rw".to_owned()
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Mount {
    pub(super) from: String,
    pub(super) to: String,
    /// Read-only by default: a container may only change files of the host if the declaration allows
    /// it.
    #[serde(default = "yes")]
    pub(super) read_only: bool,
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) enum Probe {
    Exists,
    Sysfs(Sysfs),
    Unit(String),
}

/// A quantity, quoted or not: `8` is the same as `"8"`.
#[derive(Debug)]
pub(super) struct Amount(pub(super) String);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AmountVisitor)
    }
}

struct AmountVisitor;

impl Visitor<'_> for AmountVisitor {
    type Value = Amount;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an amount such as 40Gi, 8 or 500m")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Amount, E> {
        Ok(Amount(text.to_owned()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Amount, E> {
        Ok(Amount(number.to_string()))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Amount, E> {
        Ok(Amount(number.to_string()))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Amount, E> {
        Ok(Amount(number.to_string()))
    }
}

#[derive(Debug)]
pub(super) enum Numa {
    Word(String),
    Nodes(Vec<u32>),
}

impl<'de> Deserialize<'de> for Numa {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(NumaVisitor)
    }
}

struct NumaVisitor;

impl<'de> Visitor<'de> for NumaVisitor {
    type Value = Numa;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("auto, none or a list of NUMA nodes such as [0]")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Numa, E> {
        Ok(Numa::Word(word.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut nodes: A) -> Result<Numa, A::Error> {
        let mut all = Vec::new();
        while let Some(node) = nodes.next_element()? {
            all.push(node);
        }
        Ok(Numa::Nodes(all))
    }
}
