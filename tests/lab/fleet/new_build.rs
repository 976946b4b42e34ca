//! Another build of the agent, rolled out while a drain is blocked.

use serde_json::{Value, json};

use super::{Fleet, USER, device_pod_reboot, foreign_changes};
use crate::chaos::checks::AgentAction;
use crate::support::{
    image,
    installed::{self, CONSOLE, InstalledMachine},
    wait,
};

/// A pod that ignores SIGTERM, so that it ends long after its eviction.
const SLOW: &str = "uses-fuse-slow";
const GRACE_SECONDS: u64 = 45;

/// The agent and its copy on the host are replaced while one evicted pod still runs and a
/// PodDisruptionBudget keeps the other. The new build continues the update: one cordon, one eviction
/// of each pod, one uncordon.
pub fn takes_over_a_blocked_drain(fleet: &Fleet) {
    let (place, _) = fleet.user().expect("the pod");
    assert_eq!(place, "first");
    let guarded = foreign_changes::name_of_the_pod(fleet);
    device_pod_reboot::keep_the_pod(fleet);
    slow_pod(fleet);
    let (from, boot) = (fleet.cluster.audit().len(), fleet.first.boot_id());
    fleet.ask("first", "rendered-first-z", "z\n", Value::Null);
    device_pod_reboot::wait_blocked(fleet);
    let begun = [AgentAction::Cordon, AgentAction::Evict(SLOW.to_owned())];
    wait::until("the first eviction", wait::seconds(60), || {
        fleet.agent_actions("first", from) == begun
    });

    let build = installed::another_build();
    let program = std::fs::read(&build.program).unwrap();
    for machine in [&fleet.first, &fleet.second] {
        build.import(machine);
        assert!(machine.read(CONSOLE) != program);
    }
    let mine = InstalledMachine {
        image: Some(&build.digest),
        ..InstalledMachine::default()
    };
    fleet.cluster.apply_overlay("vanilla", &mine);
    fleet.cluster.wait_rolled_out();
    fleet
        .first
        .wait_console("the drain again", wait::seconds(60), |status| {
            status["phase"] == "Draining" && status["blockers"].to_string().contains(&guarded)
        });
    for machine in [&fleet.first, &fleet.second] {
        assert!(machine.read(CONSOLE) == program, "{}", machine.name());
    }
    assert_eq!(fleet.agent_actions("first", from), begun);
    assert_eq!(fleet.first.read("/etc/example.conf"), b"b\n");

    fleet.cluster.kubectl(&["delete", "pdb", "guard"]);
    let node = fleet.wait_done("first", "rendered-first-z");
    assert!(node["spec"]["unschedulable"].is_null(), "{node:#}");
    assert_ne!(fleet.first.boot_id(), boot);
    assert_eq!(fleet.first.read("/etc/example.conf"), b"z\n");
    let rest = [AgentAction::Evict(guarded.clone()), AgentAction::Uncordon];
    let all = [&begun[..], &rest].concat();
    assert_eq!(fleet.agent_actions("first", from), all);
    let by = [
        (SLOW.to_owned(), installed::user_agent()),
        (guarded, installed::other_user_agent()),
    ];
    assert_eq!(evictions(fleet, from), by);
    // The copy of the new build has verified the boot.
    assert!(fleet.first.read(CONSOLE) == program);
    let guard = fleet.first.property("machinist-guard", "InvocationID");
    assert_ne!(guard, "", "the guard ran");
    foreign_changes::as_before(fleet);
}

fn slow_pod(fleet: &Fleet) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": SLOW, "labels": {"app": SLOW}},
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "automountServiceAccountToken": false,
            "nodeSelector": {"kubernetes.io/hostname": "first"},
            "containers": [{
                "name": "main", "image": image::PAUSE, "imagePullPolicy": "Never",
                // The kernel ignores SIGTERM for the first process of a container.
                "command": ["/bin/sleep", "86400"],
            }],
        },
    });
    fleet.cluster.apply(&pod.to_string());
    fleet.cluster.wait_pod(SLOW, "Running", wait::seconds(60));
}

/// The pods whose eviction the API server accepted, and the user agent that asked for it.
fn evictions(fleet: &Fleet, from: usize) -> Vec<(String, String)> {
    let log = fleet.cluster.audit();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let accepted = log[from..].iter().filter(|event| {
        let object = &event["objectRef"];
        event["responseStatus"]["code"].as_u64() < Some(300)
            && event["verb"] == "create"
            && object["subresource"] == "eviction"
            && text(&object["name"]).starts_with(USER)
    });
    let pairs =
        accepted.map(|event| (text(&event["objectRef"]["name"]), text(&event["userAgent"])));
    pairs.collect()
}
