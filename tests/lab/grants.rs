//! A node whose updates a controller has to grant, with the controller's requests made by hand, on a real API server.

use serde_json::{Value, json};

use crate::support::agent::{file, manifest};
use crate::support::{Cluster, Machine, lab, wait};

const GROUP: &str = "machineconfiguration.openshift.io";
const CRD: &str = include_str!("../../packaging/kubernetes/crds/machineconfigs.yaml");
const LEASE: &str = "apiVersion: coordination.k8s.io/v1\nkind: Lease\n\
    metadata: {name: machinist-controller, namespace: machinist-system}\n\
    spec: {holderIdentity: by-hand}\n";

/// A machine whose agent takes its config from the cluster.
fn worker(cluster: &Cluster) -> Machine {
    let kubeconfig = cluster.kubeconfig("machinist-worker", "system:masters");
    let settings =
        "source: cluster\ncluster: {node: worker, kubeconfig: /etc/machinist/kubeconfig}\n";
    Machine::build("worker")
        .machinist()
        .file(
            "/etc/machinist/kubeconfig",
            std::fs::read(kubeconfig).unwrap(),
        )
        .file("/etc/machinist/machinist.yaml", settings)
        .boot()
}

fn annotation<'a>(node: &'a Value, name: &str) -> &'a str {
    let text = node["metadata"]["annotations"][name].as_str();
    text.unwrap_or_default()
}

/// Gives the node a grant and the desired config in one request, as the controller does.
fn place(cluster: &Cluster, id: &str, config: &str) {
    let node = cluster.object("node", "worker").unwrap();
    let grant = json!({
        "id": id, "kind": "Config", "pool": "worker", "node": "worker",
        "uid": node["metadata"]["uid"], "target": config, "time": "2026-11-21T12:00:00Z",
    });
    let change = json!({"metadata": {"annotations": {
        "machinist.dev/grant": grant.to_string(),
        "machinist.dev/grant-acknowledged": null,
        (format!("{GROUP}/desiredConfig")): config,
    }}});
    let change = change.to_string();
    cluster.kubectl(&["patch", "node", "worker", "--type=merge", "-p", &change]);
}

/// Waits until the grant with this ID has ended, and returns its end mark.
fn wait_end(cluster: &Cluster, id: &str) -> Value {
    let ends = |node: &Value| -> Vec<Value> {
        serde_json::from_str(annotation(node, "machinist.dev/grant-ends")).unwrap_or_default()
    };
    let has_ended = |node: &Value| {
        let ended = ends(node).last().is_some_and(|end| end["id"] == id);
        ended && annotation(node, "machinist.dev/grant").is_empty()
    };
    let node = cluster.wait_object("node", "worker", id, wait::seconds(120), has_ended);
    ends(&node).pop().unwrap()
}

/// The successful requests that acknowledge a grant.
fn acknowledgements(cluster: &Cluster) -> Vec<Value> {
    let audit = cluster.audit();
    let patches = audit.into_iter().filter(|event| {
        event["stage"] == "ResponseComplete"
            && event["verb"] == "patch"
            && event["objectRef"]["resource"] == "nodes"
            && event["responseStatus"]["code"] == 200
    });
    let bodies = patches.map(|event| event["requestObject"].clone());
    let acknowledges = |operation: &Value| {
        let path = operation["path"].as_str().unwrap_or_default();
        operation["op"] == "add" && path.ends_with("/machinist.dev~1grant-acknowledged")
    };
    bodies
        .filter(|body| {
            body.as_array()
                .is_some_and(|all| all.iter().any(acknowledges))
        })
        .collect()
}

#[test]
fn a_node_updates_when_the_controller_grants_it_and_ends_its_grant() {
    let cluster = Cluster::start(&lab().version);
    cluster.apply(CRD);
    cluster.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: machinist-system}\n");
    let machine = worker(&cluster);
    cluster.join(&machine);
    machine.start_agent();
    let motd = |text: &str| json!({"files": [file("/etc/motd", 0o644, text)]});
    let remote = json!({"path": "/etc/x", "contents": {"source": "https://example.com/x"}});
    for (name, content) in [
        ("rendered-worker-a", motd("a\n")),
        ("rendered-worker-b", motd("b\n")),
        ("rendered-worker-c", json!({"files": [remote]})),
    ] {
        cluster.apply(&manifest(name, content, Value::Null));
    }

    // A controller takes over. A config that another client sets waits, and the node stays in service.
    cluster.apply(LEASE);
    let desired = format!("{GROUP}/desiredConfig=rendered-worker-a");
    cluster.kubectl(&["annotate", "node", "worker", &desired]);
    let waits =
        |node: &Value| annotation(node, &format!("{GROUP}/reason")).starts_with("AwaitingGrant:");
    let node = cluster.wait_object("node", "worker", "the wait", wait::seconds(60), waits);
    assert!(node["spec"]["unschedulable"].is_null());
    assert!(acknowledgements(&cluster).is_empty());

    place(&cluster, "g1", "rendered-worker-a");
    let end = wait_end(&cluster, "g1");
    assert_eq!(
        (&end["outcome"], &end["target"]),
        (&json!("Done"), &json!("rendered-worker-a"))
    );
    let node = cluster.object("node", "worker").unwrap();
    assert_eq!(
        annotation(&node, &format!("{GROUP}/currentConfig")),
        "rendered-worker-a"
    );
    assert_eq!(annotation(&node, &format!("{GROUP}/state")), "Done");
    assert!(node["spec"]["unschedulable"].is_null());
    assert_eq!(machine.read("/etc/motd"), b"a\n");
    // The acknowledgement is part of the request that cordons.
    let acknowledged = acknowledgements(&cluster);
    assert_eq!(acknowledged.len(), 1);
    let request = acknowledged[0].to_string();
    assert!(request.contains("/spec/unschedulable"), "{request}");

    // A config that this machine refuses ends the grant as a failure, without a cordon.
    place(&cluster, "g2", "rendered-worker-c");
    let end = wait_end(&cluster, "g2");
    assert_eq!(
        (&end["outcome"], &end["reason"]),
        (&json!("Failed"), &json!("SourceRemote"))
    );
    assert_eq!(acknowledgements(&cluster).len(), 1);

    // A restart of the agent in the middle changes nothing: the grant is on the Node.
    place(&cluster, "g3", "rendered-worker-b");
    // A machine that reboots for the update already refuses the restart.
    let _ = machine.try_exec(&["systemctl", "restart", "machinist"]);
    let end = wait_end(&cluster, "g3");
    assert_eq!(end["outcome"], "Done");
    assert_eq!(machine.read("/etc/motd"), b"b\n");

    // Without a controller the desired config alone decides, as before.
    cluster.kubectl(&[
        "delete",
        "-n",
        "machinist-system",
        "lease",
        "machinist-controller",
    ]);
    let desired = format!("{GROUP}/desiredConfig=rendered-worker-a");
    cluster.kubectl(&["annotate", "--overwrite", "node", "worker", &desired]);
    cluster.wait_object("node", "worker", "the update", wait::seconds(120), |node| {
        annotation(node, &format!("{GROUP}/currentConfig")) == "rendered-worker-a"
            && annotation(node, &format!("{GROUP}/state")) == "Done"
    });
    assert_eq!(machine.read("/etc/motd"), b"a\n");
}
