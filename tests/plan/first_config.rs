//! The plan of a first config, compared with the config that another daemon has recorded for the
//! machine.

use machinist_base::reason::Reason;
use machinist_ignition::{ClusterBaseline, MachineConfig, declared};
use machinist_plan::{BaseConfig, Plan, Policies};
use machinist_update::observe::CallerFacts;
use serde_json::{Value, json};

use super::support::{LIVE, Tree, config, observed_machine};

fn object(image: &str, device: &str) -> Value {
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {"name": "rendered-worker-1"},
        "spec": {
            "config": {"ignition": {"version": "3.4.0"}, "storage": {
                "disks": [{"device": device, "partitions": [{"label": "var", "number": 0}]}],
            }},
            "baseOSExtensionsContainerImage": image, "extensions": ["usbguard"],
        },
    })
}

fn image(digit: char) -> String {
    format!("quay.io/extensions@sha256:{}", digit.to_string().repeat(64))
}

/// The plan of a first config on a node, from this base.
fn planned(to: &Value, base: BaseConfig) -> Plan {
    let to = MachineConfig {
        before: ClusterBaseline::Node(None),
        ..config(&to.to_string())
    };
    let (from, policies, tree) = (MachineConfig::default(), Policies::default(), Tree::new());
    let known = CallerFacts {
        base,
        ..CallerFacts::default()
    };
    let observed = observed_machine(&tree.root, (&from, &to), &policies, known);
    machinist_plan::between(&from, &to, &observed, &policies, LIVE)
        .unwrap_or_else(|refusals| Plan::refused(&from, &to, refusals))
}

fn base(object: &Value) -> BaseConfig {
    BaseConfig::Declared(Box::new(declared(object.to_string().as_bytes()).unwrap()))
}

#[test]
fn a_first_config_equal_to_the_previous_one_is_accepted() {
    let to = object(&image('a'), "/dev/sda");
    let mut spelled = to.clone();
    // The API server keeps empty fields; they make no difference.
    spelled["spec"]["config"]["storage"]["raid"] = json!([]);
    spelled["spec"]["config"]["storage"]["disks"][0]["wipeTable"] = json!(null);
    spelled["spec"]["kernelType"] = json!("");
    let plan = planned(&to, base(&spelled));
    assert!(plan.refusals.is_empty(), "{}", plan.to_text(false));
    assert!(!plan.to_text(false).contains("NotChecked"));
}

#[test]
fn a_first_config_that_changes_unsupported_fields_is_rejected() {
    let before = base(&object(&image('a'), "/dev/sda"));
    let plan = planned(&object(&image('b'), "/dev/sda"), before.clone());
    let reasons: Vec<Reason> = plan.refusals.iter().map(|it| it.reason).collect();
    assert_eq!(reasons, [Reason::NoProviderForOSImage]);
    let plan = planned(&object(&image('a'), "/dev/sdb"), before);
    let reasons: Vec<Reason> = plan.refusals.iter().map(|it| it.reason).collect();
    assert_eq!(reasons, [Reason::FeatureUnsupported]);
}

#[test]
fn an_unknown_previous_config_gives_one_warning_about_disks() {
    let mut to = object("", "/dev/sda");
    to["spec"]["extensions"] = json!([]);
    to["spec"]["config"]["storage"]["luks"] = json!([{"name": "root", "device": "/dev/sda4"}]);
    let plan = planned(&to, BaseConfig::Unknown);
    assert!(plan.refusals.is_empty(), "{}", plan.to_text(false));
    let message = plan.warnings.iter().filter(|it| it.contains("NotChecked"));
    assert_eq!(message.count(), 1, "{:?}", plan.warnings);
}
