//! The end of an update that breaks the kubelet, and the end of machinist itself.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Fleet, GROUP, USER, device_pod_reboot, protocol};
use crate::chaos::checks::{self, AgentAction};
use crate::support::{
    installed::{CONSOLE, InstalledMachine},
    wait,
};

/// How long a PodDisruptionBudget may block a drain here.
const PATIENCE: Duration = wait::seconds(10);

/// Without a kubelet no agent pod runs on the node, so the guard on the host rolls back. The
/// update's drain is forced, since a PodDisruptionBudget blocks it permanently.
pub fn config_is_rolled_back_and_its_drain_forced(fleet: &Fleet) {
    let node = &fleet.first;
    // The guard's timeout; a lab machine boots in seconds.
    node.write(
        "/etc/machinist/machinist.yaml",
        "update: {verifyTimeout: 15s}\n",
    );
    assert_eq!(fleet.user().expect("the pod").0, "first");
    device_pod_reboot::keep_the_pod(fleet);
    let settings = format!("drain: {{forceAfter: {}s}}\n", PATIENCE.as_secs());
    fleet.with_settings(&InstalledMachine {
        settings: &settings,
        ..InstalledMachine::default()
    });
    let (boot, reboots) = (node.boot_id(), node.reboots().len());
    let from = fleet.cluster.audit().len();
    let broken = "[Service]\nExecStart=\nExecStart=/bin/false\n";
    let dropin = json!({"name": "90-broken.conf", "contents": broken});
    let unit = json!({"name": "kubelet.service", "dropins": [dropin]});
    let asked = Instant::now();
    fleet.ask("first", "rendered-first-c", "c\n", json!({"units": [unit]}));
    let object = fleet.cluster.wait_object(
        "node",
        "first",
        "the config before, and why",
        wait::seconds(240),
        |object| {
            protocol(object, "reason").contains("HealthRegressed")
                && object["spec"]["unschedulable"].is_null()
        },
    );
    println!(
        "lab: figure: a kubelet broken by a config runs again {:.0?} after the config was requested, {} boots",
        asked.elapsed(),
        node.reboots().len() - reboots
    );
    assert_ne!(node.boot_id(), boot);
    assert_eq!(node.read("/etc/example.conf"), b"b\n");
    assert_eq!(protocol(&object, "currentConfig"), "rendered-first-b");
    assert!(
        protocol(&object, "reason").contains("kubelet"),
        "{object:#}"
    );
    is_forced_in_time(fleet, from);
    let deeds = fleet.agent_actions("first", from);
    let count = |deed: &AgentAction| deeds.iter().filter(|known| *known == deed).count();
    assert_eq!(
        (count(&AgentAction::Cordon), count(&AgentAction::Uncordon)),
        (1, 1),
        "{deeds:?}"
    );
    assert_eq!(deeds.last(), Some(&AgentAction::Uncordon), "{deeds:?}");
    fleet.annotate("first", &format!("{GROUP}/desiredConfig=rendered-first-b"));
    fleet.wait_done("first", "rendered-first-b");
}

/// Asserts the time from the cordon to the deletion, in the API server's audit log.
fn is_forced_in_time(fleet: &Fleet, from: usize) {
    let deeds = checks::agent_actions(&fleet.cluster.audit(), from, "first", USER);
    let span = |of: fn(&AgentAction) -> bool| deeds.iter().find(|(_, deed)| of(deed)).unwrap().0;
    let cordon = span(|deed| *deed == AgentAction::Cordon);
    let forced = span(|deed| matches!(deed, AgentAction::Evict(_)));
    let waited = forced.since(cordon);
    println!("lab: figure: deleted {waited:.2?} after the cordon, drain.forceAfter {PATIENCE:?}");
    // Not earlier; how much later depends on the host's other load as well.
    assert!(
        waited >= PATIENCE && waited < PATIENCE + wait::seconds(30),
        "{waited:?}"
    );
}

/// Uninstalls machinist from the nodes and the cluster as described in docs/install.md.
pub fn uninstall_leaves_nothing_behind(fleet: &Fleet) {
    let uninstall = InstalledMachine {
        components: &["uninstall"],
        ..InstalledMachine::default()
    };
    fleet.cluster.apply_overlay("vanilla", &uninstall);
    fleet.cluster.wait_rolled_out();
    for machine in [&fleet.first, &fleet.second] {
        let name = machine.name();
        let units = "/etc/systemd/system/machinist-";
        let left = machine.sh(&format!("ls -d {CONSOLE} {units}* 2>/dev/null; true"));
        assert_eq!(left, "", "{name}");
        assert_eq!(machine.read("/etc/example.conf"), b"b\n", "{name}");
        let object = fleet.node(name);
        let annotations = object["metadata"]["annotations"].as_object().unwrap();
        let ours = |key: &&String| key.starts_with("machinist.dev/");
        assert_eq!(annotations.keys().find(ours), None, "{name}");
        let labels = object["metadata"]["labels"].as_object().unwrap();
        assert_eq!(labels.keys().find(ours), None, "{name}");
        let conditions = object["status"]["conditions"].as_array().unwrap();
        let ours = |condition: &&Value| condition["type"].to_string().contains("machinist.dev/");
        assert_eq!(conditions.iter().find(ours), None, "{name}");
        assert!(object["spec"]["taints"].is_null(), "{object:#}");
        assert!(object["spec"]["unschedulable"].is_null(), "{object:#}");
        assert_eq!(protocol(&object, "state"), "Done", "{name}");
        assert_eq!(fleet.cluster.object("machineconfignode", name), None);
    }
    let overlay = fleet.cluster.overlay();
    fleet.cluster.kubectl(&[
        "delete",
        "-k",
        &overlay,
        "--ignore-not-found",
        "--timeout=120s",
    ]);
    let kinds = fleet.cluster.kubectl(&["get", "crd", "-o", "name"]);
    assert!(!kinds.contains("machineconfig"), "{kinds}");
    assert_eq!(fleet.cluster.object("namespace", "machinist-system"), None);
}
