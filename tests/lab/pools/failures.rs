//! A node that fails after its reboot: the rollout stops, names it, and is rolled back and resumed by commands.

use serde_json::json;

use super::{NODES, Pools, audit, condition, held, protocol, rebooting};
use crate::support::{agent::file, wait};

/// Fails the service of the config on a machine with this file.
const FAULT: &str = "/etc/fault";
/// How long a node waits for failed units after its reboot. The guard outside the agent's pod reads it from the host.
const VERIFY: &str = "update: {verifyTimeout: 15s}\n";

/// A MachineConfig of both pools whose service fails where the fault is.
fn failing_config() -> String {
    let unit = format!(
        "[Unit]\nDescription=Checks the machine\n[Service]\nType=oneshot\nRemainAfterExit=yes\n\
         ExecStart=/bin/sh -c '! test -e {FAULT}'\n[Install]\nWantedBy=multi-user.target\n"
    );
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {
            "name": "30-check",
            "labels": {"machineconfiguration.openshift.io/role": "worker"},
        },
        "spec": {"config": {
            "ignition": {"version": "3.5.0"},
            "storage": {"files": [rebooting("checked\n")]},
            "systemd": {"units": [{"name": "check.service", "enabled": true, "contents": unit}]},
        }},
    })
    .to_string()
}

/// The node that fails.
const FAULTY: &str = "one";

#[test]
fn a_failed_node_stops_the_rollout_until_it_is_rolled_back_or_resumed() {
    let pools = Pools::rolled_out();
    for name in NODES {
        pools
            .machine(name)
            .write("/etc/machinist/machinist.yaml", VERIFY);
    }
    pools.machine(FAULTY).write(FAULT, "");
    let old = pools.target("worker");
    let from = pools.cluster.audit().len();
    pools.cluster.apply(&failing_config());
    // It is the canary, unless the leader runs on it; two nodes allow one failure.
    let pool = pools.wait_pool("worker", "a stopped rollout", |pool| {
        matches!(held(pool), "CanaryFailed" | "StoppedAfterFailures")
    });
    let hold = condition(&pool, "RolloutHeld");
    let message = hold["message"].as_str().unwrap();
    assert!(message.contains(FAULTY), "{message}");
    let node = pools.wait_node(FAULTY, "the earlier config", |node| {
        protocol(node, "currentConfig") == old && node["spec"]["unschedulable"].is_null()
    });
    assert_eq!(protocol(&node, "state"), "Degraded", "{node:#}");
    let page = pools.command(&["explain", "--pool", "worker"]);
    for part in [
        hold["reason"].as_str().unwrap(),
        FAULTY,
        "resume --pool worker",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let updates = audit::Updates::of(&pools.cluster, from, &[]);
    let mut workers = updates.order().into_iter().filter(|it| *it != "three");
    assert_eq!(workers.next_back(), Some(FAULTY), "nothing began later");

    is_rolled_back(&pools, &old);

    // The cause is removed, and the newest config rolled out after all.
    pools.machine(FAULTY).exec(&["rm", FAULT]);
    pools.resume("worker");
    for pool in ["worker", "edge"] {
        pools.wait_rolled_out(pool);
    }
    for name in NODES {
        assert_eq!(pools.machine(name).read("/etc/example.conf"), b"checked\n");
    }
    let updates = audit::Updates::of(&pools.cluster, from, &[]);
    assert_eq!(updates.most_of(&["one", "two"]), 1, "{updates:#?}");
    is_refused(&pools);
    assert_eq!(audit::refused(&pools.cluster), [""; 0]);
}

/// Rolls out a config that every node refuses before it changes anything: the first node stops the rollout of its pool at
/// once, and all of them stay in service.
fn is_refused(pools: &Pools) {
    let boots = pools.boots();
    pools.apply_config("31-refused", "worker", &[file("/etc/passwd/x", 0o644, "x")]);
    let begun = std::time::Instant::now();
    for name in ["worker", "edge"] {
        let canary = |pool: &serde_json::Value| held(pool) == "CanaryFailed";
        let pool = pools.wait_pool(name, "a refused config", canary);
        let message = condition(&pool, "RolloutHeld")["message"].as_str().unwrap();
        assert!(NODES.iter().any(|node| message.contains(node)), "{message}");
        assert_eq!(pool["status"]["degradedMachineCount"], 1, "{pool:#}");
    }
    println!(
        "lab: figure: refused configs stop two pools after {:.1?}",
        begun.elapsed()
    );
    for name in NODES {
        pools.wait_node(name, "to be schedulable", |node| {
            node["spec"]["unschedulable"].is_null()
        });
    }
    pools
        .cluster
        .kubectl(&["delete", "machineconfig", "31-refused"]);
    for pool in ["worker", "edge"] {
        pools.wait_rolled_out(pool);
    }
    assert_eq!(pools.boots(), boots);
}

/// Rolls the pool back to the config that the failed node runs again, which heals the node without a reboot.
fn is_rolled_back(pools: &Pools, old: &str) {
    let boot = pools.machine(FAULTY).boot_id();
    let newest = pools.target("worker");
    pools.command(&["rollback", "--pool", "worker", "--yes"]);
    pools.wait_pool("worker", "the pin", |pool| {
        condition(pool, "Pinned")["status"] == "True"
    });
    let pool = pools.wait_pool("worker", "all nodes on the earlier config", |pool| {
        condition(pool, "Updating")["reason"] == "Pinned"
    });
    assert_eq!(
        pool["spec"]["configuration"]["name"],
        newest.as_str(),
        "{pool:#}"
    );
    assert_eq!(pool["status"]["degradedMachineCount"], 0, "{pool:#}");
    let node = pools.wait_node(FAULTY, "Done", |node| protocol(node, "state") == "Done");
    assert_eq!(protocol(&node, "desiredConfig"), old);
    assert_eq!(pools.machine(FAULTY).boot_id(), boot);
    wait::until("no grants", wait::seconds(60), || {
        super::grants(&pools.pool("worker"))["grants"]
            .as_array()
            .is_none_or(Vec::is_empty)
    });
}
