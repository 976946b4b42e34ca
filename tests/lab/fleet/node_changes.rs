//! Changes of a node that the agent did not initiate.

use serde_json::Value;

use super::{Fleet, GROUP, protocol};
use crate::support::{
    installed::{CONSOLE, InstalledMachine},
    wait,
};

const TAINT: &str = "machinist.dev/not-ready";

/// A controller that cordons, drains and uncordons, acted out with kubectl: the agent requests and
/// waits.
pub fn drain_is_done_by_a_controller(fleet: &Fleet) {
    let by_controller = InstalledMachine {
        settings: "drain: {by: controller}\n",
        ..InstalledMachine::default()
    };
    fleet.with_settings(&by_controller);
    let kubectl = |arguments: &[&str]| fleet.cluster.kubectl(arguments);
    let acknowledge = |request: &str| {
        fleet.annotate("second", &format!("{GROUP}/lastAppliedDrain={request}"));
    };
    let asks = |request: &str| {
        fleet.wait_node("second", request, |node| {
            protocol(node, "desiredDrain") == request
        })
    };
    let boot = fleet.second.boot_id();
    let from = fleet.cluster.audit().len();
    assert_eq!(fleet.user().expect("the pod").0, "second");

    fleet.ask("second", "rendered-second-b", "b\n", Value::Null);
    let node = asks("drain-rendered-second-b");
    assert!(node["spec"]["unschedulable"].is_null(), "{node:#}");
    fleet.wait_advertised("second", "0");
    let flags = ["--ignore-daemonsets", "--force", "--timeout=60s"];
    kubectl(&[&["drain", "second"][..], &flags].concat());
    assert_eq!(fleet.second.boot_id(), boot);
    assert_eq!(fleet.second.read("/etc/example.conf"), b"a\n");

    acknowledge("drain-rendered-second-b");
    let node = asks("uncordon-rendered-second-b");
    assert_eq!(node["spec"]["unschedulable"], true, "{node:#}");
    assert_eq!(protocol(&node, "state"), "Working");
    assert_ne!(fleet.second.boot_id(), boot);
    assert_eq!(fleet.second.read("/etc/example.conf"), b"b\n");
    kubectl(&["uncordon", "second"]);
    acknowledge("uncordon-rendered-second-b");
    fleet.wait_done("second", "rendered-second-b");
    fleet.wait_advertised("second", "2");
    assert_eq!(
        fleet.agent_actions("second", from),
        [],
        "all of it was the controller's"
    );
    wait::until("the pod to be elsewhere", wait::seconds(60), || {
        fleet.user().is_some_and(|(place, _)| place == "first")
    });
}

/// For each of the agents' patches of the Node's taints: whether our taint is present after it.
fn taints(fleet: &Fleet, node: &str, from: usize) -> Vec<bool> {
    let log = fleet.cluster.audit();
    let patches = log[from..].iter().filter_map(|event| {
        let user = event["user"]["username"].as_str()?;
        let ours = user.starts_with("system:serviceaccount:machinist-system:")
            && event["objectRef"]["name"] == node
            && event["responseStatus"]["code"].as_u64() < Some(300);
        let patch = event["requestObject"].as_array().filter(|_| ours)?;
        let taints = patch.iter().rfind(|op| {
            op["path"]
                .as_str()
                .is_some_and(|path| path.starts_with("/spec/taints"))
        })?;
        Some(taints["op"] != "test" && taints["value"].to_string().contains(TAINT))
    });
    patches.collect()
}

/// An operator on the node's console rolls back to the previous config, and later lets the node
/// follow the cluster again.
pub fn operator_pins_the_previous_config(fleet: &Fleet) {
    fleet.with_settings(&InstalledMachine::default());
    let second = &fleet.second;
    for (command, config, content) in [
        ("rollback", "rendered-second-a", "a\n"),
        ("apply", "rendered-second-b", "b\n"),
    ] {
        let boot = second.boot_id();
        // The reboot may end the command, too.
        let asked = second.try_exec(&[CONSOLE, command, "--yes"]);
        second.wait_new_boot(&boot, wait::seconds(120));
        let node = fleet.wait_done("second", config);
        assert!(
            node["spec"]["unschedulable"].is_null(),
            "{asked:?} {node:#}"
        );
        assert_eq!(protocol(&node, "desiredConfig"), "rendered-second-b");
        assert_eq!(second.read("/etc/example.conf"), content.as_bytes());
    }
}

/// The Node object is deleted and registered again by its kubelet: the agent restores its own
/// fields, and pods are scheduled only after that.
pub fn node_is_registered_again(fleet: &Fleet) {
    let of_the_pool = InstalledMachine {
        pool: Some(("pool.worker.yaml", "readiness: {startupTaint: true}\n")),
        ..InstalledMachine::default()
    };
    fleet.with_settings(&of_the_pool);
    let pod = fleet.cluster.agent_pod("second").expect("an agent's pod");
    let pod = pod["metadata"]["name"].as_str().unwrap();
    let inside = ["exec", "-n", "machinist-system", pod, "--", "/machinist"];
    let shown = ["--root", "/host", "--config", "/etc/machinist", "settings"];
    let shown = fleet.cluster.kubectl(&[&inside[..], &shown].concat());
    let line = shown.lines().find(|line| line.contains("startupTaint"));
    assert!(
        line.is_some_and(|line| line.contains("pool.worker.yaml")),
        "{shown}"
    );

    let from = fleet.cluster.audit().len();
    let boot = fleet.second.boot_id();
    fleet.cluster.kubectl(&["delete", "node", "second"]);
    fleet.cluster.node(&fleet.second).restart_kubelet();
    fleet.wait_done("second", "rendered-second-b");
    fleet.wait_advertised("second", "2");
    let node = fleet.wait_node("second", "no taint of ours", |node| {
        !node["spec"]["taints"].to_string().contains(TAINT)
    });
    assert!(node["spec"]["unschedulable"].is_null(), "{node:#}");
    let mut taints = taints(fleet, "second", from);
    // The device's taint is changed by a request of its own, which repeats the value.
    taints.dedup();
    assert_eq!(taints, [true, false]);
    assert_eq!(fleet.agent_actions("second", from), []);
    assert_eq!(fleet.second.boot_id(), boot);
}
