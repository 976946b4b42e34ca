//! The objects of a small cluster, as its API server returns them.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::fleet::api::Api;

pub(crate) const GROUP: &str = "machineconfiguration.openshift.io";
pub(crate) const OLD: &str = "rendered-worker-0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a";
pub(crate) const NEW: &str = "rendered-worker-1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b";

/// A time so long ago that the seconds of a test do not change the displayed age.
pub(crate) fn ago(hours: i64, minutes: i64) -> Timestamp {
    Timestamp::now() - SignedDuration::from_secs(hours * 3600 + minutes * 60 + 20)
}

fn list(kind: &str, version: &str, items: &[Value]) -> Value {
    json!({"kind": format!("{kind}List"), "apiVersion": version, "metadata": {}, "items": items})
}

fn node(name: &str, current: &str, desired: &str, state: &str) -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": name, "uid": name, "labels": {"node-role.kubernetes.io/worker": ""},
            "annotations": {
                format!("{GROUP}/currentConfig"): current,
                format!("{GROUP}/desiredConfig"): desired,
                format!("{GROUP}/state"): state,
                "kubectl.kubernetes.io/last-applied-configuration": "{\"token\":\"hunter2\"}",
            }},
        "spec": {},
        "status": {
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "machinist.dev/Ready", "status": "True", "reason": "Ok",
                    "message": "all gates are open", "lastHeartbeatTime": ago(0, 2),
                    "lastTransitionTime": ago(22, 0)},
            ],
            "capacity": {"cpu": "4", "acme.dev/fpga": "2", "hugepages-2Mi": "0"},
            "allocatable": {"cpu": "4", "acme.dev/fpga": "1", "hugepages-2Mi": "0"},
        },
    })
}

/// A node during its drain, with a pod that blocks it.
fn draining(name: &str) -> Value {
    let mut node = node(name, OLD, NEW, "Working");
    node["spec"]["unschedulable"] = json!(true);
    let annotations = &mut node["metadata"]["annotations"];
    annotations["machinist.dev/cordoned"] = json!(NEW);
    annotations["machinist.dev/blocked-by"] = json!("shop/db-0 (DrainBlockedByBudget)");
    node["status"]["conditions"][1]["reason"] = json!("DrainBlockedByBudget");
    node["status"]["conditions"][1]["status"] = json!("False");
    node["status"]["conditions"][1]["message"] =
        json!("Pod shop/db-0: budget db needs 2 healthy pods and has 2\u{1b}[31m");
    node
}

fn step(kind: &str, status: &str, message: &str, since: Timestamp) -> Value {
    json!({"type": kind, "status": status, "reason": kind, "message": message,
        "lastTransitionTime": since})
}

fn pool(name: &str, spec: Value, status: Value) -> Value {
    json!({"kind": "MachineConfigPool", "apiVersion": format!("{GROUP}/v1"),
        "metadata": {"name": name, "creationTimestamp": ago(22, 30)}, "spec": spec, "status": status})
}

fn selects(role: &str) -> Value {
    json!({"matchLabels": {format!("node-role.kubernetes.io/{role}"): ""}})
}

/// Two workers of which one is updated, and the pools of a small cluster.
pub(crate) async fn cluster() -> Api {
    let api = Api::with([]).await;
    let nodes = [node("worker-1", NEW, NEW, "Done"), draining("worker-2")];
    for node in &nodes {
        let path = format!(
            "/api/v1/nodes/{}",
            node["metadata"]["name"].as_str().unwrap()
        );
        api.put(&path, node.clone());
    }
    api.put("/api/v1/nodes", list("Node", "v1", &nodes));
    let worker = json!({"nodeSelector": selects("worker"), "configuration": {"name": NEW}});
    let written = json!({"configuration": {"name": OLD}, "machineCount": 3, "readyMachineCount": 1,
        "updatedMachineCount": 1, "degradedMachineCount": 0, "unavailableMachineCount": 1,
        "conditions": [{"type": "Updated", "status": "False"}, {"type": "Updating", "status": "True"},
            {"type": "Degraded", "status": "False"}]});
    let pools = [
        pool(
            "master",
            json!({"nodeSelector": selects("master")}),
            json!({}),
        ),
        pool("worker", worker, written),
    ];
    let path = |plural: &str| format!("/apis/{GROUP}/v1/{plural}");
    let version = format!("{GROUP}/v1");
    api.put(
        &path("machineconfigpools"),
        list("MachineConfigPool", &version, &pools),
    );
    let progress = json!({
        "kind": "MachineConfigNode", "apiVersion": version, "metadata": {"name": "worker-2"},
        "status": {"configVersion": {"current": OLD, "desired": NEW}, "conditions": [
            step("UpdatePrepared", "True", "done", ago(0, 30)),
            step("UpdateExecuted", "Unknown", "in progress", ago(0, 29)),
            step("Cordoned", "True", "done", ago(0, 29)),
            step("Drained", "Unknown", "shop/db-0: budget db needs 2 healthy pods and has 2", ago(0, 28)),
            step("Updated", "False", "", ago(0, 30)),
        ]},
    });
    let nodes = path("machineconfignodes");
    api.put(&format!("{nodes}/worker-2"), progress.clone());
    api.put(&nodes, list("MachineConfigNode", &version, &[progress]));
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    api.put(events, list("Event", "events.k8s.io/v1", &happened()));
    api
}

fn micro(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Two events of ours and one of another component.
fn happened() -> Vec<Value> {
    let event = |reason: &str, by: &str, minutes, count: i32| {
        json!({"kind": "Event", "apiVersion": "events.k8s.io/v1",
            "metadata": {"name": reason, "namespace": "default"}, "type": "Normal",
            "eventTime": micro(ago(0, minutes)), "reason": reason, "reportingController": by,
            "note": "a note", "series": {"count": count, "lastObservedTime": micro(ago(0, minutes))}})
    };
    let ours = "machinist.dev/agent";
    vec![
        event("Cordon", ours, 29, 1),
        event("DrainBlocked", ours, 27, 3),
        event("NodeNotReady", "node-controller", 20, 1),
    ]
}
