//! The agent in a cluster: it applies the config that the Node's annotation names, on a real API
//! server.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::agent::{file, manifest};
use crate::support::installed::{other_user_agent, user_agent};
use crate::support::{Cluster, Machine, lab, wait};

const GROUP: &str = "machineconfiguration.openshift.io";

/// The MachineConfig CRD, as the installation ships it.
const CRD: &str = include_str!("../../packaging/kubernetes/crds/machineconfigs.yaml");

/// A machine whose agent takes its config from the cluster.
fn worker(cluster: &Cluster, name: &str) -> Machine {
    let user = format!("machinist-{name}");
    let kubeconfig = std::fs::read(cluster.kubeconfig(&user, "system:masters")).unwrap();
    let settings = format!(
        "source: cluster\ncluster: {{node: {name}, kubeconfig: /etc/machinist/kubeconfig}}\n"
    );
    Machine::build(name)
        .machinist()
        .file("/etc/machinist/kubeconfig", kubeconfig)
        .file("/etc/machinist/machinist.yaml", settings)
        .boot()
}

fn rendered(cluster: &Cluster, name: &str, files: Value) {
    cluster.apply(&manifest(name, json!({"files": files}), Value::Null));
}

fn wants(cluster: &Cluster, node: &str, config: &str) {
    let annotation = format!("{GROUP}/desiredConfig={config}");
    cluster.kubectl(&["annotate", "--overwrite", "node", node, &annotation]);
}

fn annotation<'a>(node: &'a Value, name: &str) -> &'a str {
    let annotations = &node["metadata"]["annotations"];
    annotations[format!("{GROUP}/{name}")]
        .as_str()
        .unwrap_or_default()
}

fn wait_done(cluster: &Cluster, node: &str, config: &str) -> Value {
    let what = format!("{config} and Done");
    cluster.wait_object("node", node, &what, wait::seconds(120), |node| {
        annotation(node, "currentConfig") == config && annotation(node, "state") == "Done"
    })
}

fn is_cordoned(node: &Value) -> bool {
    node["spec"]["unschedulable"] == true
}

/// The successful requests that cordon, uncordon or evict, in order.
fn moves(cluster: &Cluster, node: &str) -> Vec<&'static str> {
    let mut moves = Vec::new();
    for event in cluster.audit() {
        if event["stage"] != "ResponseComplete"
            || event["responseStatus"]["code"].as_u64() >= Some(300)
        {
            continue;
        }
        let object = &event["objectRef"];
        let body = event["requestObject"].to_string();
        match (event["verb"].as_str(), object["resource"].as_str()) {
            (Some("create"), _) if object["subresource"] == "eviction" => moves.push("evict"),
            (Some("patch"), Some("nodes"))
                if object["name"] == node
                    && object["subresource"].is_null()
                    && body.contains("/spec/unschedulable") =>
            {
                let op = if body.contains("\"value\":true") {
                    "cordon"
                } else {
                    "uncordon"
                };
                moves.push(op);
            }
            _ => {}
        }
    }
    moves
}

#[test]
fn a_node_drains_reboots_once_and_returns_on_its_desired_config() {
    let cluster = Cluster::start(&lab().version);
    cluster.apply(CRD);
    let machine = worker(&cluster, "worker");
    let other = worker(&cluster, "other");
    let node = cluster.join(&machine);
    cluster.join(&other);
    machine.start_agent();
    other.start_agent();
    machine.wait_status("the cluster", wait::seconds(30), |status| {
        status["mode"] == "cluster" && status["node"] == "worker"
    });

    // The first config from the cluster is an update like any other.
    rendered(
        &cluster,
        "rendered-worker-a",
        json!([file("/etc/motd", 0o644, "a\n")]),
    );
    for name in ["worker", "other"] {
        wants(&cluster, name, "rendered-worker-a");
    }
    for name in ["worker", "other"] {
        wait_done(&cluster, name, "rendered-worker-a");
    }

    let first = moves(&cluster, "worker").len();
    assert_eq!(moves(&cluster, "worker"), ["cordon", "uncordon"]);

    // A PodDisruptionBudget that allows no eviction blocks the drain.
    cluster.pod("guarded", "worker", &[]);
    cluster.wait_pod("guarded", "Running", wait::seconds(60));
    cluster.apply(
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: guard}\n\
         spec: {maxUnavailable: 0, selector: {matchLabels: {app: guarded}}}\n",
    );
    cluster.wait_object("pdb", "guard", "its status", wait::seconds(30), |budget| {
        budget["status"]["observedGeneration"] == 1
    });
    let content = file("/etc/example.conf", 0o640, "b\n");
    rendered(&cluster, "rendered-worker-b", json!([content]));
    let boot = machine.boot_id();
    let other_boot = other.boot_id();
    let before = machine.tree_digest(&["/etc"], &[]);
    let asked = Instant::now();
    wants(&cluster, "worker", "rendered-worker-b");
    machine.wait_status(
        "the blocking pod to be named",
        wait::seconds(20),
        |status| {
            let blockers = status["blockers"].as_array().unwrap();
            blockers.iter().any(|blocker| {
                let message = blocker["message"].as_str().unwrap_or_default();
                blocker["name"] == "guarded" && message.contains("guard")
            })
        },
    );
    println!(
        "lab: figure: the budget in the way is named {:.1?} after the annotation",
        asked.elapsed()
    );
    let object = node.object();
    assert!(is_cordoned(&object));
    assert_eq!(annotation(&object, "state"), "Working");
    assert_eq!(
        machine.tree_digest(&["/etc"], &[]),
        before,
        "nothing changes before the drain"
    );
    assert_eq!(moves(&cluster, "worker")[first..], ["cordon"]);

    let lifted = Instant::now();
    cluster.kubectl(&["delete", "pdb", "guard"]);
    let new_boot = machine.wait_new_boot(&boot, wait::seconds(120));
    println!(
        "lab: figure: rebooted {:.1?} after the budget was lifted",
        lifted.elapsed()
    );
    let object = wait_done(&cluster, "worker", "rendered-worker-b");
    println!(
        "lab: figure: Done {:.1?} after the budget was lifted",
        lifted.elapsed()
    );
    assert!(!is_cordoned(&object), "{object:#}");
    assert_eq!(machine.boot_id(), new_boot, "one reboot");
    assert_eq!(machine.read("/etc/example.conf"), b"b\n");
    assert_eq!(
        moves(&cluster, "worker")[first..],
        ["cordon", "evict", "uncordon"]
    );
    assert_eq!(other.boot_id(), other_boot, "the other node is left alone");
    let object = cluster.object("node", "other").expect("the node");
    assert_eq!(annotation(&object, "currentConfig"), "rendered-worker-a");
    assert_eq!(annotation(&object, "state"), "Done");
}

#[test]
fn an_operators_cordon_survives_and_a_drain_resumes_after_power_loss() {
    let cluster = Cluster::start(&lab().version);
    cluster.apply(CRD);
    let mut machine = worker(&cluster, "kept");
    let node = cluster.join(&machine);
    machine.start_agent();
    let step = |config: &str, content: &str| {
        let file = file("/etc/example.conf", 0o640, content);
        rendered(&cluster, config, json!([file]));
        wants(&cluster, "kept", config);
    };
    step("rendered-worker-a", "a\n");
    wait_done(&cluster, "kept", "rendered-worker-a");

    // An operator has cordoned the node before, so the agent must not uncordon it.
    let before = moves(&cluster, "kept").len();
    cluster.kubectl(&["cordon", "kept"]);
    step("rendered-worker-b", "b\n");
    wait_done(&cluster, "kept", "rendered-worker-b");
    assert!(is_cordoned(&node.object()));
    assert_eq!(moves(&cluster, "kept")[before..], [""; 0]);
    cluster.kubectl(&["uncordon", "kept"]);

    // The power is cut while the drain waits for a pod: the drain is resumed, with the same cordon.
    node.wait_ready(wait::seconds(60));
    cluster.pod("guarded", "kept", &[]);
    cluster.wait_pod("guarded", "Running", wait::seconds(60));
    cluster.apply(
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: guard}\n\
         spec: {maxUnavailable: 0, selector: {matchLabels: {app: guarded}}}\n",
    );
    step("rendered-worker-c", "c\n");
    machine.wait_status("the drain", wait::seconds(60), |status| {
        status["phase"] == "Draining" && status["blockers"] != json!([])
    });
    machine.kill();
    machine.power_on();
    machine.wait_status("the drain again", wait::seconds(60), |status| {
        status["phase"] == "Draining" && status["blockers"] != json!([])
    });
    assert_eq!(machine.read("/etc/example.conf"), b"b\n");
    assert_eq!(moves(&cluster, "kept")[before..], ["cordon"]);

    // The program is replaced by another build, as a package's upgrade does it.
    let agent = machine.property("machinist", "MainPID");
    let old = user_agent().replace('.', "\\.");
    machine.sh(&format!(
        "cd /usr/bin && sed 's|{old}|{}|g' machinist >.new && chmod 0755 .new && ! cmp -s machinist .new \
         && mv .new machinist && systemctl restart machinist",
        other_user_agent()
    ));
    assert_ne!(machine.property("machinist", "MainPID"), agent);
    machine.wait_status("the drain by the new build", wait::seconds(60), |status| {
        status["phase"] == "Draining" && status["blockers"] != json!([])
    });
    assert_eq!(machine.read("/etc/example.conf"), b"b\n");
    assert_eq!(moves(&cluster, "kept")[before..], ["cordon"]);

    // An operator's request to keep the cordon is respected.
    cluster.kubectl(&[
        "annotate",
        "node",
        "kept",
        "machinist.dev/keep-cordoned=disk",
    ]);
    cluster.kubectl(&["delete", "pdb", "guard"]);
    let object = wait_done(&cluster, "kept", "rendered-worker-c");
    assert!(is_cordoned(&object), "{object:#}");
    assert_eq!(machine.read("/etc/example.conf"), b"c\n");
    assert_eq!(moves(&cluster, "kept")[before..], ["cordon", "evict"]);
    let log = cluster.audit();
    let mut evictions = log
        .iter()
        .filter(|event| event["objectRef"]["subresource"] == "eviction");
    let done = evictions.find(|event| event["responseStatus"]["code"].as_u64() < Some(300));
    assert_eq!(done.expect("the eviction")["userAgent"], other_user_agent());
    assert!(object["metadata"]["annotations"]["machinist.dev/cordoned"].is_null());
}
