//! One spec file, read strictly: what is not in the specification is refused, so that nothing is offered that
//! the runtime would refuse.

use std::{collections::BTreeMap, sync::Arc};

use serde::Deserialize;

use super::{Kind, edits::Edits, is_word};
use crate::{device::Refusal, path::AbsPath, reason::Reason};

/// Specs of machines with hundreds of partitions have some hundred KiB.
pub const LARGEST: usize = 4 * 1024 * 1024;

/// Versions of the specification, oldest first.
const VERSIONS: [&str; 8] = [
    "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0",
];

/// What a spec offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The kind of all its devices.
    pub kind: Kind,
    /// In the order of the file.
    pub devices: Vec<SpecDevice>,
}

/// One device of a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecDevice {
    /// What follows the `=` of its qualified name.
    pub name: String,
    /// The nodes on the host that it comes with, those for the whole file left out.
    pub nodes: Vec<AbsPath>,
    /// Where it is written.
    pub(super) place: String,
    /// What a container gets with any device of the file, and before that of the device itself.
    pub(super) of_all: Arc<Edits>,
    /// What a container gets with it.
    pub(super) own: Edits,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    cdi_version: String,
    kind: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    devices: Vec<WrittenDevice>,
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenDevice {
    name: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    container_edits: Edits,
}

/// Reads one spec, JSON or YAML. `file` is named in the refusal.
pub fn parse(file: &str, text: &str) -> Result<Spec, Refusal> {
    let refused = |message: String| Refusal::new(Reason::ValueInvalid, message).file(file);
    if text.len() > LARGEST {
        return Err(refused(format!(
            "the spec has {} bytes, {LARGEST} at most",
            text.len()
        )));
    }
    let json = text.trim_start().starts_with('{');
    let read: Result<Written, String> = if json {
        serde_json::from_str(text).map_err(|error| error.to_string())
    } else {
        serde_saphyr::from_str(text).map_err(|error| error.to_string())
    };
    read.and_then(|written| checked(file, written))
        .map_err(refused)
}

fn checked(file: &str, written: Written) -> Result<Spec, String> {
    let kind = Kind::new(&written.kind).map_err(|error| error.to_string())?;
    let needs = needed(&written);
    let place = |version: &str| VERSIONS.iter().position(|known| *known == version);
    let Some(said) = place(&written.cdi_version) else {
        let (given, known) = (&written.cdi_version, VERSIONS.join(", "));
        return Err(format!("cdiVersion {given:?} is not known: {known} are"));
    };
    if place(needs).is_some_and(|needs| needs > said) {
        let given = &written.cdi_version;
        return Err(format!(
            "it uses what came with cdiVersion {needs} and says {given}"
        ));
    }
    if written.devices.is_empty() {
        return Err("it has no devices".to_owned());
    }
    let of_all = Arc::new(written.container_edits);
    let mut devices: Vec<SpecDevice> = Vec::new();
    for device in written.devices {
        let name = device.name;
        if !is_word(&name, &['-', '_', '.', ':']) {
            return Err(format!("{name:?} is no name of a device"));
        }
        if devices.iter().any(|known| known.name == name) {
            return Err(format!("{name:?} is there twice"));
        }
        if device.container_edits.is_empty() {
            return Err(format!("{name:?} has no containerEdits"));
        }
        let nodes = device.container_edits.device_nodes.iter().map(|node| {
            let path = node.host_path.as_ref().unwrap_or(&node.path);
            AbsPath::new(path.as_str()).map_err(|error| format!("a node of {name:?}: {error}"))
        });
        let nodes = nodes.collect::<Result<_, _>>()?;
        devices.push(SpecDevice {
            place: format!("{file}: {kind}={name}"),
            name,
            nodes,
            of_all: Arc::clone(&of_all),
            own: device.container_edits,
        });
    }
    Ok(Spec { kind, devices })
}

/// The oldest version that has all that is used.
fn needed(written: &Written) -> &'static str {
    let digit = |name: &str| name.starts_with(|c: char| c.is_ascii_digit());
    let class = written.kind.split_once('/').map_or("", |(_, class)| class);
    let devices = &written.devices;
    let annotated =
        !written.annotations.is_empty() || devices.iter().any(|one| !one.annotations.is_empty());
    let edits = devices.iter().map(|device| &device.container_edits);
    let needed = edits
        .chain([&written.container_edits])
        .map(Edits::needed)
        .chain((annotated || class.contains('.')).then_some("0.6.0"))
        .chain(
            devices
                .iter()
                .any(|one| digit(&one.name))
                .then_some("0.5.0"),
        );
    // Versions of one digit each compare as texts do.
    needed.max().unwrap_or("0.3.0")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = r#"
cdiVersion: "0.6.0"
kind: acme.dev/gpu
annotations: {acme.dev/made-by: toolkit}
devices:
- name: "0"
  containerEdits:
    deviceNodes: [{path: /dev/gpu0, hostPath: /dev/acme/gpu0, permissions: rw}]
    hooks: [{hookName: createContainer, path: /usr/bin/acme, args: [acme, hook]}]
containerEdits:
  env: [ACME=1]
  deviceNodes: [{path: /dev/acmectl}]
"#;

    #[test]
    fn a_spec_is_read_for_its_devices_and_their_nodes() {
        let spec = parse("gpu.yaml", GPU).unwrap();
        assert_eq!(spec.kind.as_str(), "acme.dev/gpu");
        assert_eq!(spec.devices[0].name, "0");
        assert_eq!(spec.devices[0].nodes, ["/dev/acme/gpu0".parse().unwrap()]);
    }

    #[test]
    fn what_the_specification_does_not_have_is_refused() {
        for (from, to, why) in [
            (
                "permissions: rw",
                "permission: rw",
                "unknown field `permission`",
            ),
            ("\"0.6.0\"", "\"0.5.0\"", "came with cdiVersion 0.6.0"),
            ("\"0.6.0\"", "\"0.9.9\"", "\"0.9.9\" is not known"),
            (
                "env: [ACME=1]",
                "additionalGids: [5]",
                "came with cdiVersion 0.7.0",
            ),
            ("name: \"0\"", "name: \"-\"", "no name of a device"),
            ("hostPath: /dev/acme/gpu0", "hostPath: gpu0", "gpu0"),
            ("acme.dev/gpu", "gpu", "no kind of CDI device"),
        ] {
            assert!(GPU.contains(from), "{from}");
            let refusal = parse("gpu.yaml", &GPU.replacen(from, to, 1)).unwrap_err();
            let told = refusal.to_string();
            assert!(told.starts_with("gpu.yaml") && told.contains(why), "{told}");
        }
        assert!(parse("x", &" ".repeat(LARGEST + 1)).is_err());
    }
}
