//! The custom resource definitions match those of OpenShift.

use std::{fs, process::Command};

use machinist_kube_api::{NodeConditionKind, keys};
use serde_json::Value;

use super::{documents, resources, shipped};

fn printed() -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_machinist"))
        .arg("crds")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    documents(&String::from_utf8(output.stdout).unwrap())
}

fn of(kind: &str) -> Value {
    let found = printed()
        .into_iter()
        .find(|one| one["spec"]["names"]["kind"] == kind);
    found.unwrap_or_else(|| panic!("no definition of {kind}"))
}

fn columns(kind: &str, wide: bool) -> Vec<String> {
    let definition = of(kind);
    let all = definition["spec"]["versions"][0]["additionalPrinterColumns"].as_array();
    let shown = all
        .unwrap()
        .iter()
        .filter(|one| wide || one["priority"].is_null());
    shown
        .map(|one| one["name"].as_str().unwrap().to_uppercase())
        .collect()
}

#[test]
fn crds_command_prints_the_kustomizations_crds() {
    let files: Vec<_> = resources("crds")
        .iter()
        .map(|name| {
            let text = fs::read_to_string(shipped("crds").join(name)).unwrap();
            assert!(
                text.starts_with("# For clusters without OpenShift"),
                "{name}"
            );
            documents(&text).remove(0)
        })
        .collect();
    assert_eq!(printed(), files);
    let there = fs::read_dir(shipped("crds")).unwrap().count();
    assert_eq!(there, files.len() + 1, "a file that nothing applies");
}

/// Kind, plural, group, short name, and whether there is a status.
const KINDS: [(&str, &str, &str, &str, bool); 8] = [
    ("MachineConfig", "machineconfigs", keys::GROUP, "mc", false),
    (
        "MachineConfigPool",
        "machineconfigpools",
        keys::GROUP,
        "mcp",
        true,
    ),
    (
        "MachineConfigNode",
        "machineconfignodes",
        keys::GROUP,
        "",
        true,
    ),
    (
        "MachineConfiguration",
        "machineconfigurations",
        keys::OPERATOR_GROUP,
        "",
        true,
    ),
    ("PinnedImageSet", "pinnedimagesets", keys::GROUP, "", true),
    ("KubeletConfig", "kubeletconfigs", keys::GROUP, "", true),
    (
        "ContainerRuntimeConfig",
        "containerruntimeconfigs",
        keys::GROUP,
        "ctrcfg",
        true,
    ),
    (
        "ControllerConfig",
        "controllerconfigs",
        keys::GROUP,
        "",
        true,
    ),
];

#[test]
fn crd_groups_versions_scopes_and_short_names_match_openshift() {
    assert_eq!(printed().len(), KINDS.len());
    for (kind, plural, group, short, status) in KINDS {
        let definition = of(kind);
        let spec = &definition["spec"];
        assert_eq!(definition["metadata"]["name"], format!("{plural}.{group}"));
        assert_eq!(spec["group"], group, "{kind}");
        assert_eq!(spec["scope"], "Cluster", "{kind}");
        assert_eq!(spec["names"]["plural"], plural);
        let shorts = spec["names"]["shortNames"].as_array();
        let shorts: Vec<_> = shorts.into_iter().flatten().collect();
        match short {
            "" => assert!(shorts.is_empty(), "{kind}"),
            short => assert_eq!(shorts, [short], "{kind}"),
        }
        let versions = spec["versions"].as_array().unwrap();
        assert_eq!(versions.len(), 1, "{kind}");
        assert_eq!(versions[0]["name"], "v1");
        assert_eq!(
            versions[0]["subresources"].get("status").is_some(),
            status,
            "{kind}"
        );
    }
}

#[test]
fn the_crd_accepts_the_image_names_that_the_agent_accepts() {
    let definition = of("PinnedImageSet");
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let images = &schema["properties"]["spec"]["properties"]["pinnedImages"];
    let pattern = &images["items"]["properties"]["name"]["pattern"];
    let pattern = regex::Regex::new(pattern.as_str().unwrap()).unwrap();
    let digest = format!("sha256:{}", "0a".repeat(32));
    for (name, is_accepted) in [
        ("quay.io/a/b", true),
        ("Registry.example:5000/a.b/c__d_e/f--g", true),
        ("quay.io/Team/b", false),
        ("quay.io/a..b", false),
        ("quay.io/a-/b", false),
        ("quay.io/a:1", false),
    ] {
        let image = format!("{name}@{digest}");
        assert_eq!(pattern.is_match(&image), is_accepted, "{image}");
        assert_eq!(machinist_cri::is_by_digest(&image), is_accepted, "{image}");
    }
}

#[test]
fn crd_printer_columns_match_those_of_openshift() {
    let shown = "CONFIG UPDATED UPDATING DEGRADED MACHINECOUNT READYMACHINECOUNT \
                 UPDATEDMACHINECOUNT DEGRADEDMACHINECOUNT AGE";
    assert_eq!(columns("MachineConfigPool", true).join(" "), shown);
    assert_eq!(
        columns("MachineConfig", true).join(" "),
        "GENERATEDBYCONTROLLER IGNITIONVERSION AGE"
    );
    assert_eq!(
        columns("MachineConfigNode", false).join(" "),
        "POOLNAME DESIREDCONFIG CURRENTCONFIG UPDATED AGE"
    );
}

#[test]
fn crd_columns_show_conditions_that_the_agent_writes() {
    let definition = of("MachineConfigNode");
    let columns = definition["spec"]["versions"][0]["additionalPrinterColumns"].as_array();
    let paths = columns
        .unwrap()
        .iter()
        .map(|one| one["jsonPath"].as_str().unwrap());
    let conditions: Vec<_> = paths.filter_map(|path| path.split('"').nth(1)).collect();
    assert_eq!(conditions.len(), 11, "{conditions:?}");
    for condition in conditions {
        assert!(
            NodeConditionKind::ALL
                .iter()
                .any(|kind| kind.as_str() == condition),
            "{condition}"
        );
    }
}

#[test]
fn crds_preserve_unknown_fields_only_for_foreign_schemas() {
    let kept = |kind: &str, path: &str| {
        let definition = of(kind);
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let field = schema.pointer(path).unwrap_or_else(|| panic!("{path}"));
        field["x-kubernetes-preserve-unknown-fields"] == true
    };
    assert!(kept("MachineConfig", "/properties/spec/properties/config"));
    assert!(kept(
        "KubeletConfig",
        "/properties/spec/properties/kubeletConfig"
    ));
    assert!(!kept("MachineConfig", "/properties/spec"));
    assert!(!kept("MachineConfigPool", "/properties/spec"));
    assert!(!kept("MachineConfigNode", "/properties/status"));
}
