//! The schema of a declaration file, with all fields; unknown fields are refused.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize,
    de::{self, Deserializer, SeqAccess, Visitor},
};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DeclarationDoc {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: MetadataDoc,
    pub(super) spec: DeclarationSpecDoc,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct MetadataDoc {
    pub(super) name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DeclarationSpecDoc {
    pub(super) resource: String,
    #[serde(default)]
    pub(super) serve: crate::inventory::ServeMode,
    // With a default, so that validation reports an absent `match` with its field path.
    #[serde(rename = "match", default)]
    pub(super) matches: Vec<MatchDoc>,
    pub(super) group: Option<Group>,
    pub(super) share: Option<ShareDoc>,
    #[serde(default)]
    pub(super) container: ContainerDoc,
    #[serde(default)]
    pub(super) capacity: BTreeMap<String, QuantityDoc>,
    pub(super) numa: Option<NumaDoc>,
    pub(super) health: Option<Vec<ProbeDoc>>,
    pub(super) quiesce: Option<QuiesceDoc>,
    pub(super) taint: Option<TaintDoc>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct MatchDoc {
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
pub(super) struct TaintDoc {
    pub(super) key: String,
    #[serde(default)]
    pub(super) value: String,
    pub(super) effect: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct QuiesceDoc {
    pub(super) stop_units: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ShareDoc {
    #[serde(default = "one")]
    pub(super) replicas: u32,
    #[serde(default)]
    pub(super) policy: crate::inventory::SharePolicy,
    #[serde(default)]
    pub(super) strict: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ContainerDoc {
    pub(super) nodes: Option<Vec<NodeDoc>>,
    pub(super) mounts: Vec<MountDoc>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct NodeDoc {
    pub(super) path: String,
    #[serde(rename = "as")]
    pub(super) inside: Option<String>,
    #[serde(default = "NodeDoc::default_permissions")]
    pub(super) permissions: String,
}

impl NodeDoc {
    /// Reading and writing is the normal use of a device; creating nodes (`m`) must be requested.
    pub(super) fn default_permissions() -> String {
        "rw".to_owned()
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct MountDoc {
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
pub(super) enum ProbeDoc {
    Exists,
    Sysfs(Sysfs),
    Unit(String),
}

/// A quantity, quoted or not: `8` is the same as `"8"`.
#[derive(Debug)]
pub(super) struct QuantityDoc(pub(super) String);

impl<'de> Deserialize<'de> for QuantityDoc {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(QuantityVisitor)
    }
}

struct QuantityVisitor;

impl Visitor<'_> for QuantityVisitor {
    type Value = QuantityDoc;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an amount such as 40Gi, 8 or 500m")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<QuantityDoc, E> {
        Ok(QuantityDoc(text.to_owned()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<QuantityDoc, E> {
        Ok(QuantityDoc(number.to_string()))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<QuantityDoc, E> {
        Ok(QuantityDoc(number.to_string()))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<QuantityDoc, E> {
        Ok(QuantityDoc(number.to_string()))
    }
}

#[derive(Debug)]
pub(super) enum NumaDoc {
    Word(String),
    Nodes(Vec<u32>),
}

impl<'de> Deserialize<'de> for NumaDoc {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(NumaVisitor)
    }
}

struct NumaVisitor;

impl<'de> Visitor<'de> for NumaVisitor {
    type Value = NumaDoc;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("auto, none or a list of NUMA nodes such as [0]")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<NumaDoc, E> {
        Ok(NumaDoc::Word(word.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut nodes: A) -> Result<NumaDoc, A::Error> {
        let mut all = Vec::new();
        while let Some(node) = nodes.next_element()? {
            all.push(node);
        }
        Ok(NumaDoc::Nodes(all))
    }
}
