//! Changes by others to a node during its drain.

use serde_json::{Value, json};

use super::{FUSE, Fleet, GROUP, USER, device_pod_reboot, protocol};
use crate::chaos::checks::AgentAction;
use crate::support::wait;

const FORCE: &str = "machinist.dev/force-drain";
const WHY: &str = "the lab cannot wait";

/// The first node's config, the config's name, the cordon and the drain limit are changed while a
/// PodDisruptionBudget keeps its pod. In the end the node is on the config, and cordoned, since the
/// operator requested both.
pub fn during_a_blocked_drain(fleet: &Fleet) {
    assert_eq!(fleet.user().expect("the pod").0, "first");
    device_pod_reboot::keep_the_pod(fleet);
    let from = fleet.cluster.audit().len();
    fleet.ask("first", "rendered-first-x", "x\n", Value::Null);
    device_pod_reboot::wait_blocked(fleet);
    desire_a_missing_config(fleet);
    rename_the_config(fleet);
    assert_eq!(fleet.agent_actions("first", from), [AgentAction::Cordon]);
    uncordon_twice(fleet);
    is_forced(fleet);
    fleet.cluster.kubectl(&["uncordon", "first"]);
    as_before(fleet);
}

fn desire_a_missing_config(fleet: &Fleet) {
    fleet.annotate("first", &format!("{GROUP}/desiredConfig=nosuch"));
    fleet.wait_node("first", "what is wrong with its name", |node| {
        protocol(node, "reason").contains("ConfigNotFound")
    });
    let status = fleet.first.console_status().expect("the agent");
    assert_eq!(status["phase"], "Draining", "{status:#}");
    fleet.annotate("first", &format!("{GROUP}/desiredConfig=rendered-first-x"));
    let node = fleet.wait_node("first", "nothing wrong with its name", |node| {
        !protocol(node, "reason").contains("ConfigNotFound")
    });
    assert_eq!(protocol(&node, "state"), "Working");
}

fn rename_the_config(fleet: &Fleet) {
    fleet.ask("first", "rendered-first-y", "x\n", Value::Null);
    let status = fleet
        .first
        .wait_console("the new name", wait::seconds(30), |status| {
            status["config"]["desired"] == "rendered-first-y" && status["blockers"] != json!([])
        });
    assert_eq!(status["phase"], "Draining", "{status:#}");
}

pub fn name_of_the_pod(fleet: &Fleet) -> String {
    let pods = fleet.cluster.pods_of(USER);
    let name = pods[0]["metadata"]["name"].as_str();
    name.unwrap().to_owned()
}

/// An event on the Node names the pod and the reason.
fn forced_deletion_event_is_emitted(fleet: &Fleet, pod: &str) {
    let of = "involvedObject.kind=Node,involvedObject.name=first,reason=DrainForced";
    let query = ["get", "events", "-A", "--field-selector", of];
    wait::until("an event of force", wait::seconds(30), || {
        let events = fleet.cluster.kubectl_json(&query);
        let mut events = events["items"].as_array().into_iter().flatten();
        events.any(|event| {
            let note = event["message"].as_str().unwrap_or_default();
            note.contains(pod) && note.contains(WHY)
        })
    });
}

/// Deletes the pod; its controller creates it again on the node that it prefers.
fn back_to_the_first(fleet: &Fleet) {
    let app = format!("app={USER}");
    fleet.cluster.kubectl(&["delete", "pods", "-l", &app]);
    wait::until("the pod to be back", wait::seconds(60), || {
        fleet.user().is_some_and(|(place, _)| place == "first")
    });
}

/// After the first uncordon by an operator the agent cordons again; after the second it waits for
/// the operator.
fn uncordon_twice(fleet: &Fleet) {
    let from = fleet.cluster.audit().len();
    fleet.cluster.kubectl(&["uncordon", "first"]);
    fleet.wait_node("first", "the cordon again", |node| {
        node["spec"]["unschedulable"] == true
    });
    assert_eq!(fleet.agent_actions("first", from), [AgentAction::Cordon]);
    fleet.cluster.kubectl(&["uncordon", "first"]);
    fleet.wait_node("first", "that it was uncordoned twice", |node| {
        let blocked = &node["metadata"]["annotations"]["machinist.dev/blocked-by"];
        blocked
            .as_str()
            .is_some_and(|by| by.contains("Node first (NodeUncordoned)"))
    });
    assert_eq!(
        fleet.agent_actions("first", from),
        [AgentAction::Cordon],
        "not fought"
    );
    fleet.cluster.kubectl(&["cordon", "first"]);
    fleet.wait_node("first", "only the pod in the way", |node| {
        let blocked = &node["metadata"]["annotations"]["machinist.dev/blocked-by"];
        blocked
            .as_str()
            .is_some_and(|by| by.contains(USER) && !by.contains("NodeUncordoned"))
    });
}

/// The pod is deleted despite its PodDisruptionBudget, and the operator's cordon is kept.
fn is_forced(fleet: &Fleet) {
    let (from, boot) = (fleet.cluster.audit().len(), fleet.first.boot_id());
    let pod = name_of_the_pod(fleet);
    fleet.annotate("first", &format!("{FORCE}={WHY}"));
    forced_deletion_event_is_emitted(fleet, &pod);
    let node = fleet.wait_done("first", "rendered-first-y");
    assert_eq!(node["spec"]["unschedulable"], true, "a person's: {node:#}");
    assert!(node["metadata"]["annotations"][FORCE].is_null(), "{node:#}");
    assert_ne!(fleet.first.boot_id(), boot);
    assert_eq!(fleet.first.read("/etc/example.conf"), b"x\n");
    let deeds = fleet.agent_actions("first", from);
    assert!(matches!(deeds[..], [AgentAction::Evict(_)]), "{deeds:?}");
}

/// Asserts that the first node is on the previous config and runs the pod.
pub fn as_before(fleet: &Fleet) {
    fleet.annotate("first", &format!("{GROUP}/desiredConfig=rendered-first-b"));
    let node = fleet.wait_done("first", "rendered-first-b");
    assert!(node["spec"]["unschedulable"].is_null(), "{node:#}");
    fleet.wait_node("first", &format!("{FUSE} again"), |node| {
        node["status"]["allocatable"][FUSE] == "2"
    });
    back_to_the_first(fleet);
}
