//! What a node is left with: by a config that it cannot live with, and by machinist itself.

use std::time::Instant;

use serde_json::{Value, json};

use super::{Fleet, GROUP, protocol};
use crate::rounds::judge::Deed;
use crate::support::{
    installed::{CONSOLE, Mine},
    wait,
};

/// Without a kubelet there is no pod of ours on the node: the guard on the host brings it back.
pub fn by_a_config_that_breaks_the_kubelet(fleet: &Fleet) {
    let node = &fleet.first;
    // Patience of the guard; a lab machine boots in seconds.
    node.write(
        "/etc/machinist/machinist.yaml",
        "update: {verifyTimeout: 15s}\n",
    );
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
            protocol(object, "reason").contains("MachineUnwell")
                && object["spec"]["unschedulable"].is_null()
        },
    );
    println!(
        "lab: figure: a kubelet that a config broke is back {:.0?} after the config was asked for, {} boots",
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
    let deeds = fleet.deeds("first", from);
    let count = |deed: &Deed| deeds.iter().filter(|known| *known == deed).count();
    assert_eq!(
        (count(&Deed::Cordon), count(&Deed::Uncordon)),
        (1, 1),
        "{deeds:?}"
    );
    assert_eq!(deeds.last(), Some(&Deed::Uncordon), "{deeds:?}");
    fleet.annotate("first", &format!("{GROUP}/desiredConfig=rendered-first-b"));
    fleet.wait_done("first", "rendered-first-b");
}

/// Taken off the nodes and out of the cluster as docs/install.md says.
pub fn without_a_trace(fleet: &Fleet) {
    let uninstall = Mine {
        components: &["uninstall"],
        ..Mine::default()
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
