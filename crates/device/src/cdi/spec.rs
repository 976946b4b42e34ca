//! Parses one spec file, with the same rules as the CDI library that runtimes use.

use std::{collections::BTreeMap, sync::Arc};

use serde::Deserialize;

use super::{
    CdiKind,
    edits::{CdiEdits, without_nulls},
    is_word, yaml,
};
use crate::Refusal;
use machinist_base::{abs_path::AbsPath, reason::Reason};

/// The maximum size in bytes. Specs of machines with hundreds of partitions have some hundred KiB.
pub const MAX_SPEC_BYTES: usize = 4 * 1024 * 1024;

/// The versions of the specification, oldest first.
const SPEC_VERSIONS: [&str; 8] = [
    "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0",
];

/// A CDI spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CdiSpec {
    /// The kind of all its devices.
    pub kind: CdiKind,
    /// Its devices, in the order of the file.
    pub devices: Vec<CdiSpecDevice>,
}

/// One device of a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CdiSpecDevice {
    /// The part of its qualified name after the `=`.
    pub name: String,
    /// The host paths of its own nodes, without those of the file's `containerEdits`.
    pub nodes: Vec<AbsPath>,
    /// Why a path of its nodes is invalid.
    pub unusable: Option<String>,
    /// The file and the qualified name, for messages.
    pub(super) place: String,
    /// The edits of the file, which apply before those of the device.
    pub(super) of_all: Arc<CdiEdits>,
    /// The edits of the device.
    pub(super) own: CdiEdits,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct CdiSpecDoc {
    cdi_version: String,
    kind: String,
    annotations: BTreeMap<String, Option<String>>,
    #[serde(deserialize_with = "without_nulls")]
    devices: Vec<CdiDeviceDoc>,
    container_edits: CdiEdits,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct CdiDeviceDoc {
    name: String,
    annotations: BTreeMap<String, Option<String>>,
    container_edits: CdiEdits,
}

/// Parses a spec in JSON or YAML. Errors name `file`.
pub fn parse(file: &str, text: &str) -> Result<CdiSpec, Refusal> {
    let refused = |message: String| Refusal::new(Reason::ValueInvalid, message).file(file);
    if text.len() > MAX_SPEC_BYTES {
        return Err(refused(format!(
            "the spec has {} bytes, limit {MAX_SPEC_BYTES}",
            text.len()
        )));
    }
    let read: Result<CdiSpecDoc, String> = yaml::read(text);
    read.and_then(|written| checked(file, written))
        .map_err(refused)
}

fn checked(file: &str, written: CdiSpecDoc) -> Result<CdiSpec, String> {
    let kind = CdiKind::new(&written.kind).map_err(|error| error.to_string())?;
    let needs = needed(&written);
    let place = |version: &str| SPEC_VERSIONS.iter().position(|known| *known == version);
    let version = written.cdi_version.as_str();
    let Some(declared) = place(version.strip_prefix('v').unwrap_or(version)) else {
        let (given, known) = (&written.cdi_version, SPEC_VERSIONS.join(", "));
        return Err(format!(
            "cdiVersion {given:?} is not supported; expected one of {known}"
        ));
    };
    if place(needs).is_some_and(|needs| needs > declared) {
        let given = &written.cdi_version;
        return Err(format!(
            "it uses fields of cdiVersion {needs}, but declares {given}"
        ));
    }
    if written.devices.is_empty() {
        return Err("it has no devices".to_owned());
    }
    written.container_edits.check()?;
    let of_all = Arc::new(written.container_edits);
    let mut devices: Vec<CdiSpecDevice> = Vec::new();
    for device in written.devices {
        let name = device.name;
        if !is_word(&name, &['-', '_', '.', ':']) {
            return Err(format!("{name:?} is not a valid device name"));
        }
        if devices.iter().any(|known| known.name == name) {
            return Err(format!("duplicate device name {name:?}"));
        }
        if device.container_edits.is_empty() {
            return Err(format!("{name:?} has no containerEdits"));
        }
        device
            .container_edits
            .check()
            .map_err(|why| format!("{name:?}: {why}"))?;
        let (mut nodes, mut unusable) = (Vec::new(), None);
        for node in &device.container_edits.device_nodes {
            match AbsPath::new(node.host_path.as_ref().unwrap_or(&node.path).as_str()) {
                Ok(path) => nodes.push(path),
                Err(error) => unusable = Some(format!("a node of {kind}={name}: {error}")),
            }
        }
        devices.push(CdiSpecDevice {
            place: format!("{file}: {kind}={name}"),
            name,
            nodes,
            unusable,
            of_all: Arc::clone(&of_all),
            own: device.container_edits,
        });
    }
    Ok(CdiSpec { kind, devices })
}

/// The oldest version that supports all features that the spec uses.
fn needed(written: &CdiSpecDoc) -> &'static str {
    let digit = |name: &str| name.starts_with(|c: char| c.is_ascii_digit());
    let class = written.kind.split_once('/').map_or("", |(_, class)| class);
    let devices = &written.devices;
    let annotated =
        !written.annotations.is_empty() || devices.iter().any(|one| !one.annotations.is_empty());
    let last = devices.len().saturating_sub(1);
    let edits = devices.iter().enumerate();
    let edits = edits.map(|(at, device)| match device.container_edits.needed() {
        // Of all devices the library looks for the fields of these two versions in the last one only: its module
        // declares Go 1.19, where the variable of the loop is one for all rounds (specs-go/version.go).
        "0.4.0" | "0.5.0" if at != last => "0.3.0",
        needed => needed,
    });
    let needed = edits
        .chain([written.container_edits.needed()])
        .chain((annotated || class.contains('.')).then_some("0.6.0"))
        .chain(
            devices
                .iter()
                .any(|one| digit(&one.name))
                .then_some("0.5.0"),
        );
    // This compares the versions as texts, which works because each number has one digit.
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
    fn a_cdi_spec_is_parsed_for_devices_and_nodes() {
        let spec = parse("gpu.yaml", GPU).unwrap();
        assert_eq!(spec.kind.as_str(), "acme.dev/gpu");
        assert_eq!(spec.devices[0].name, "0");
        assert_eq!(spec.devices[0].nodes, ["/dev/acme/gpu0".parse().unwrap()]);
    }

    #[test]
    fn a_newer_field_counts_in_the_last_device_and_in_the_edits_of_all() {
        let host = "deviceNodes: [{path: /dev/a, hostPath: /dev/h}]";
        let plain = "deviceNodes: [{path: /dev/a}]";
        let mount = "mounts: [{hostPath: /a, containerPath: /a, type: bind}]";
        for (first, last, all, accepted) in [
            (host, plain, plain, true),
            (mount, plain, plain, true),
            (plain, host, plain, false),
            (plain, mount, plain, false),
            (plain, plain, host, false),
        ] {
            let text = format!(
                "cdiVersion: \"0.3.0\"\nkind: a/b\ndevices:\n- {{name: one, containerEdits: {{{first}}}}}\n\
                 - {{name: two, containerEdits: {{{last}}}}}\ncontainerEdits: {{{all}}}\n"
            );
            assert_eq!(parse("a.yaml", &text).is_ok(), accepted, "{text}");
        }
    }

    #[test]
    fn fields_outside_the_specification_are_rejected() {
        for (from, to, why) in [
            (
                "permissions: rw",
                "permission: rw",
                "devices[0].containerEdits.deviceNodes[0].permission: unknown field",
            ),
            ("\"0.6.0\"", "\"0.5.0\"", "fields of cdiVersion 0.6.0"),
            ("\"0.6.0\"", "\"0.9.9\"", "\"0.9.9\" is not supported"),
            (
                "env: [ACME=1]",
                "additionalGids: [5]",
                "fields of cdiVersion 0.7.0",
            ),
            ("name: \"0\"", "name: \"-\"", "not a valid device name"),
            ("acme.dev/gpu", "gpu", "not a valid CDI kind"),
        ] {
            assert!(GPU.contains(from), "{from}");
            let refusal = parse("gpu.yaml", &GPU.replacen(from, to, 1)).unwrap_err();
            let message = refusal.to_string();
            assert!(
                message.starts_with("gpu.yaml") && message.contains(why),
                "{message}"
            );
        }
        assert!(parse("x", &" ".repeat(MAX_SPEC_BYTES + 1)).is_err());
    }

    /// Parses a spec with one device that has these edits.
    fn with(version: &str, edits: &str) -> Result<CdiSpec, Refusal> {
        let text = format!(
            r#"{{"cdiVersion": "{version}", "kind": "acme.dev/gpu", "devices": [{{"name": "0", "containerEdits": {edits}}}]}}"#
        );
        parse("gpu.json", &text)
    }

    #[test]
    fn nulls_octal_numbers_and_versions_with_a_v_are_accepted_as_by_the_library() {
        let null = r#"{"cdiVersion":"0.6.0","kind":"acme.dev/gpu","annotations":null,"containerEdits":null,"devices":[{"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/gpu0"}],"hooks":null}}]}"#;
        let octal = "cdiVersion: 0.6.0\nkind: acme.dev/gpu\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/gpu0\n      fileMode: 0666\n";
        for text in [null, octal] {
            assert_eq!(parse("gpu", text).unwrap().devices.len(), 1, "{text}");
        }
        let octal = parse("gpu", octal).unwrap();
        assert_eq!(octal.devices[0].own.device_nodes[0].file_mode, Some(0o666));
        assert!(with("v0.6.0", r#"{"env": ["A=1"]}"#).is_ok());
        assert!(with("vv0.6.0", r#"{"env": ["A=1"]}"#).is_err());
    }

    #[test]
    fn cdi_edits_rejected_by_the_go_library_are_rejected() {
        for edits in [
            r#"{"env": ["FOO"]}"#,
            r#"{"env": ["=1"]}"#,
            r#"{"deviceNodes": [{"path": "/dev/gpu0", "permissions": "rwx"}]}"#,
            r#"{"deviceNodes": [{"path": "/dev/gpu0", "type": "d"}]}"#,
            r#"{"deviceNodes": [{"path": ""}]}"#,
            r#"{"deviceNodes": [null]}"#,
            r#"{"mounts": [{"hostPath": "/a"}]}"#,
            r#"{"hooks": [{"hookName": "never", "path": "/a"}]}"#,
            r#"{"hooks": [{"hookName": "prestart", "path": "/a", "env": ["A"]}]}"#,
            r#"{"intelRdt": {"closID": "a/b"}}"#,
            r#"{"intelRdt": {"enableCMT": true}}"#,
            r#"{"netDevices": [{"hostInterfaceName": "a", "name": "b"}, {"hostInterfaceName": "c", "name": "b"}]}"#,
            "{}",
        ] {
            assert!(with("1.1.0", edits).is_err(), "{edits}");
        }
    }

    #[test]
    fn an_unreadable_node_affects_only_its_own_device() {
        let spec = with("0.6.0", r#"{"deviceNodes": [{"path": "gpu0"}]}"#).unwrap();
        assert!(spec.devices[0].nodes.is_empty());
        let why = spec.devices[0].unusable.as_deref().unwrap();
        assert!(why.contains("gpu0"), "{why}");
    }
}
