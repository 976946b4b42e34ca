//! A pod with a device, on a node that has to reboot.

use std::{thread, time::Instant};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{FUSE, Fleet, USER, output_text};
use crate::chaos::checks::AgentAction;
use crate::support::{image, wait};

/// The longest time until a kubelet reports its resources, on a busy machine.
const REPORT: SignedDuration = SignedDuration::from_secs(15);

/// One pod with a share of the device, on the first node while that is schedulable; a
/// PodDisruptionBudget protects it.
pub fn workload(fleet: &Fleet) {
    let first = json!({"matchExpressions":
        [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["first"]}]});
    let prefers = json!([{"weight": 100, "preference": first}]);
    let pod = json!({
        "metadata": {"labels": {"app": USER}},
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 2,
            "automountServiceAccountToken": false,
            // Otherwise the cluster would evict the pod from a node that has been unreachable for
            // long.
            "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefers}},
            "containers": [{
                "name": "main", "image": image::PAUSE, "imagePullPolicy": "Never",
                "resources": {"limits": {FUSE: "1"}},
            }],
        },
    });
    let selector = json!({"matchLabels": {"app": USER}});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": USER},
        "spec": {"replicas": 1, "selector": selector, "template": pod},
    });
    fleet.cluster.apply(&deployment.to_string());
    keep_the_pod(fleet);
    let deployment = format!("deployment/{USER}");
    let status = ["rollout", "status", &deployment, "--timeout=60s"];
    fleet.cluster.kubectl(&status);
    fleet
        .cluster
        .wait_object("pdb", "guard", "its count", wait::seconds(30), |budget| {
            budget["status"]["currentHealthy"] == 1
        });
}

/// A PodDisruptionBudget that permits no eviction.
pub fn keep_the_pod(fleet: &Fleet) {
    let selector = json!({"matchLabels": {"app": USER}});
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "guard"},
        "spec": {"maxUnavailable": 0, "selector": selector},
    });
    fleet.cluster.apply(&budget.to_string());
}

/// Waits until the pod is reported as the one that blocks the drain.
pub fn wait_blocked(fleet: &Fleet) {
    fleet.wait_node("first", "the blocking pod to be named", |node| {
        let blocked = &node["metadata"]["annotations"]["machinist.dev/blocked-by"];
        blocked.as_str().is_some_and(|by| by.contains(USER))
    });
}

pub fn survives_a_planned_reboot_with_a_cancelled_update(fleet: &Fleet) {
    let (place, pod) = fleet.user().expect("the pod that uses the device");
    assert_eq!(place, "first");
    let boot = fleet.first.boot_id();
    let from = fleet.cluster.audit().len();

    let asked = Instant::now();
    fleet.ask("first", "rendered-first-b", "b\n", Value::Null);
    wait_blocked(fleet);
    println!(
        "lab: figure: blocked-by names the pod {:.1?} after the config was asked for",
        asked.elapsed()
    );
    is_shown_by_remote_commands(fleet);

    // Whatever is restarted meanwhile, the update stays in the same phase.
    let away = wait::seconds(5);
    fleet.cluster.stop_api();
    thread::sleep(away);
    stays_draining_during_an_api_server_outage(fleet);
    fleet.cluster.start_api();
    fleet.restart_agents();
    fleet
        .first
        .wait_console("the drain again", wait::seconds(60), |status| {
            status["phase"] == "Draining" && status["blockers"] != json!([])
        });
    assert_eq!(fleet.user(), Some(("first".to_owned(), pod.clone())));
    assert_eq!(fleet.first.read("/etc/example.conf"), b"a\n");
    assert_eq!(fleet.agent_actions("first", from), [AgentAction::Cordon]);

    is_cancelled_and_started_again(fleet, &pod);
    let from = fleet.cluster.audit().len();
    fleet.cluster.kubectl(&["delete", "pdb", "guard"]);
    let node = fleet.wait_done("first", "rendered-first-b");
    assert!(node["spec"]["unschedulable"].is_null(), "{node:#}");
    assert_ne!(fleet.first.boot_id(), boot);
    assert_eq!(fleet.first.read("/etc/example.conf"), b"b\n");
    let deeds = fleet.agent_actions("first", from);
    assert_eq!(deeds.len(), 2, "{deeds:?}");
    assert!(matches!(&deeds[0], AgentAction::Evict(_)), "{deeds:?}");
    assert_eq!(deeds[1], AgentAction::Uncordon);
    is_allocatable_again_after_the_uncordon(fleet, from);

    wait::until("the pod to be elsewhere", wait::seconds(60), || {
        fleet.user().is_some_and(|(place, _)| place == "second")
    });
    let pods = fleet.cluster.kubectl_json(&["get", "pods", "-A"]);
    assert!(
        !pods.to_string().contains("UnexpectedAdmissionError"),
        "{pods:#}"
    );
}

/// Asserts that the agent is alive, stays in the phase `Draining` and keeps its devices registered.
pub fn stays_draining_during_an_api_server_outage(fleet: &Fleet) {
    let livez = fleet.first.probe("/livez");
    assert_eq!(livez, Some((200, "ok".to_owned())));
    let status = fleet.first.console_status().expect("the agent");
    assert_eq!(status["phase"], "Draining", "{status:#}");
    let devices = &status["devices"][0];
    assert_eq!(devices["registered"], true, "{status:#}");
    let second = fleet.second.console_status().expect("the agent");
    let allocated = &second["devices"][0];
    assert_eq!(allocated["registered"], true, "{second:#}");
    assert_eq!(allocated["devices"][0]["health"], "Healthy", "{second:#}");
}

/// Asserts that the node, its pool and the reason are visible with only a kubeconfig.
fn is_shown_by_remote_commands(fleet: &Fleet) {
    let node = fleet.laptop(&["status", "--node", "first"]);
    let text = output_text(&node);
    assert_eq!(node.status.code(), Some(0), "{text}");
    for word in ["rendered-first-b", "Working", USER] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let text = output_text(&fleet.laptop(&["explain", "--node", "first"]));
    assert!(
        text.contains(USER) && text.contains("DrainBudgetNeverAllows"),
        "{text}"
    );
    let pool = fleet.laptop(&["status", "--pool", "worker", "-o", "json"]);
    let pool: Value = serde_json::from_slice(&pool.stdout).unwrap();
    let observed = &pool["pools"][0]["observed"];
    assert_eq!(observed["name"], "worker", "{pool:#}");
    assert_eq!(observed["machineCount"], 2, "{pool:#}");
    assert_eq!(observed["unavailableMachineCount"], 1, "{pool:#}");
}

/// Cancels the update: the node accepts pods and its devices are allocatable as before. Then the
/// update is started again.
fn is_cancelled_and_started_again(fleet: &Fleet, pod: &str) {
    let from = fleet.cluster.audit().len();
    let cancelled = fleet.laptop(&["cancel", "first"]);
    let text = output_text(&cancelled);
    assert!(cancelled.status.success(), "{text}");
    assert_eq!(text, "node/first update to rendered-first-b cancelled\n");
    // The cancel command returns before gates that may delay the uncordon have opened.
    fleet.wait_node("first", "schedulable", |node| {
        node["spec"]["unschedulable"].is_null()
    });
    fleet.wait_advertised("first", "2");
    assert_eq!(fleet.user(), Some(("first".to_owned(), pod.to_owned())));
    assert_eq!(fleet.first.read("/etc/example.conf"), b"a\n");
    // An agent restart does not start it either.
    fleet.restart_agents();
    fleet
        .first
        .wait_console("the cancelled update", wait::seconds(30), |status| {
            status["blockers"][0]["reason"] == "Cancelled"
        });
    assert_eq!(fleet.agent_actions("first", from), [AgentAction::Uncordon]);

    let undone = fleet.laptop(&["cancel", "--undo", "first"]);
    assert!(undone.status.success(), "{}", output_text(&undone));
    wait_blocked(fleet);
    assert_eq!(
        fleet.agent_actions("first", from),
        [AgentAction::Uncordon, AgentAction::Cordon]
    );
}

/// The kubelet counts the device as allocatable again at the uncordon – the agent's ListAndWatch
/// update reaches it –, and reports it in its next status update, at most ten seconds later: until
/// then the scheduler places no pod.
fn is_allocatable_again_after_the_uncordon(fleet: &Fleet, from: usize) {
    let log = fleet.cluster.audit();
    let of_first = |event: &&Value| {
        event["objectRef"]["resource"] == "nodes" && event["objectRef"]["name"] == "first"
    };
    let patches: Vec<_> = log[from..].iter().filter(of_first).collect();
    let when = |what: &dyn Fn(&Value) -> bool| -> Timestamp {
        let event = patches.iter().rfind(|event| what(event)).expect("a patch");
        let time = event["stageTimestamp"].as_str().unwrap();
        time.parse().unwrap()
    };
    let boot = fleet.first.boot_id();
    let back = when(&|event| event["requestObject"]["status"]["nodeInfo"]["bootID"] == *boot);
    let allocated = when(&|event| event["requestObject"]["status"]["allocatable"][FUSE] == "2");
    let uncordon = when(&|event| {
        let body = event["requestObject"].to_string();
        event["objectRef"]["subresource"].is_null() && body.contains("\"/spec/unschedulable\"")
    });
    assert!(back <= allocated, "booted {back}, allocatable {allocated}");
    let late = allocated.duration_since(uncordon);
    println!(
        "lab: figure: the Node counts the device {} ms after the uncordon; less than 0: before it",
        late.as_millis()
    );
    assert!(
        late < REPORT,
        "allocatable {allocated}, uncordoned {uncordon}"
    );
}
