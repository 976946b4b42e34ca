//! Rollouts that stop or wait: a drain that a budget blocks, a node that fails after its reboot, a pool that is
//! deleted in the middle.

use serde_json::{Value, json};

use super::{Pools, annotation, audit, condition, held, protocol, rebooting};
use crate::support::wait;

/// Runs the pod that a budget protects.
const BLOCKED: &str = "one";
const FAULTY: &str = "one";
const OTHER: &str = "two";
const BUDGET: &str = "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: guard}\n\
    spec: {minAvailable: 1, selector: {matchLabels: {app: guarded}}}\n";
/// Fails on a machine with this file.
const FAULT: &str = "/etc/fault";

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

fn grants(pool: &Value) -> Value {
    serde_json::from_str(annotation(pool, "machinist.dev/grants")).unwrap_or_default()
}

impl Pools {
    fn set(&self, pool: &str, setting: &str, value: &str) {
        let setting = format!("machinist.dev/{setting}");
        self.patch_pool(
            pool,
            &json!({"metadata": {"annotations": {setting: value}}}),
        );
    }
}

/// The node of pool `worker` that began its update last.
fn last_worker(updates: &audit::Updates) -> Option<&str> {
    let mut order = updates.order().into_iter();
    order.rfind(|node| *node != "three")
}

#[test]
fn a_rollout_waits_for_budgets_stops_at_a_failure_and_survives_its_pool() {
    let pools = Pools::rolled_out();
    a_blocked_node_keeps_its_grant_when_its_pool_is_deleted(&pools);
    a_blocked_node_steps_aside(&pools);
    a_failed_node_stops_the_rollout_and_returns_when_the_config_is_withdrawn(&pools);
    assert_eq!(audit::refused(&pools.cluster), [""; 0]);
}

fn a_blocked_node_keeps_its_grant_when_its_pool_is_deleted(pools: &Pools) {
    pools.cluster.workload("guarded", BLOCKED, 1);
    pools.cluster.apply(BUDGET);
    let (from, old) = (pools.cluster.audit().len(), pools.target("worker"));
    pools.apply_config("10-worker", "worker", &[rebooting("second\n")]);
    let target = pools.wait_rendered("worker", &old);
    let blocked = |node: &Value| annotation(node, "machinist.dev/blocked-by").contains("guarded");
    pools.wait_node(BLOCKED, "a blocked drain", blocked);
    let pool = pools.pool("worker");
    assert_eq!(held(&pool), "", "one node updates");
    assert_eq!(grants(&pool)["grants"][0]["node"], BLOCKED, "{pool:#}");

    let manifest = pools
        .cluster
        .kubectl_json(&["get", "machineconfigpool", "worker"]);
    pools
        .cluster
        .kubectl(&["delete", "machineconfigpool", "worker"]);
    let manifest = json!({
        "apiVersion": manifest["apiVersion"], "kind": manifest["kind"],
        "metadata": {"name": "worker"},
        "spec": {
            "machineConfigSelector": manifest["spec"]["machineConfigSelector"],
            "nodeSelector": manifest["spec"]["nodeSelector"],
            "maxUnavailable": 1,
        },
    });
    pools.cluster.apply(&manifest.to_string());
    let pool = pools.wait_pool("worker", "its grants again", |pool| {
        held(pool) == "FirstRollout" && grants(pool)["grants"][0]["node"] == BLOCKED
    });
    assert_eq!(pool["spec"]["configuration"]["name"], target.as_str());
    pools.resume("worker");
    let pool = pools.wait_pool("worker", "the start", |pool| held(pool).is_empty());
    assert_eq!(grants(&pool)["grants"][0]["node"], BLOCKED, "{pool:#}");
    let updates = audit::Updates::of(&pools.cluster, from, &[]);
    assert_eq!(last_worker(&updates), Some(BLOCKED), "nothing else began");

    pools
        .cluster
        .kubectl(&["delete", "poddisruptionbudget", "guard"]);
    pools.wait_rolled_out("worker");
    let updates = audit::Updates::of(&pools.cluster, from, &[]);
    let mut updated = updates.order();
    updated.sort_unstable();
    assert_eq!(updated, ["one", "three", "two"], "each once");
    assert_eq!(updates.most_of(&[BLOCKED, OTHER]), 1, "{updates:#?}");
}

fn a_blocked_node_steps_aside(pools: &Pools) {
    let deployment = [
        "delete",
        "deployment",
        "guarded",
        "--ignore-not-found",
        "--timeout=60s",
    ];
    pools.cluster.kubectl(&deployment);
    pools.cluster.workload("guarded", BLOCKED, 1);
    pools.cluster.apply(BUDGET);
    // Longer than the budget of the controllers blocks the other node, until the replica that was evicted is ready again.
    pools.set("worker", "step-aside-after", "60s");
    pools.set("worker", "canary", "0");
    let (from, old) = (pools.cluster.audit().len(), pools.target("worker"));
    pools.apply_config("10-worker", "worker", &[rebooting("third\n")]);
    let target = pools.wait_rendered("worker", &old);
    let done = |node: &Value| protocol(node, "currentConfig") == target;
    pools.wait_node(OTHER, "the config before the blocked node", done);
    pools.wait_pool(
        "worker",
        "a rollout that waits for the blocked node",
        |pool| {
            let message = condition(pool, "RolloutHeld")["message"].as_str();
            held(pool) == "NodesNotEligible"
                && message.is_some_and(|it| it.contains("node one was tried"))
        },
    );
    let node = pools.wait_node(BLOCKED, "service", |node| {
        node["spec"]["unschedulable"].is_null() && protocol(node, "state") == "Done"
    });
    assert_ne!(protocol(&node, "desiredConfig"), target);

    pools
        .cluster
        .kubectl(&["delete", "poddisruptionbudget", "guard"]);
    pools.cluster.kubectl(&deployment);
    pools.resume("worker");
    pools.wait_rolled_out("worker");
    let updates = audit::Updates::of(&pools.cluster, from, &[]);
    assert_eq!(updates.most_of(&[BLOCKED, OTHER]), 1, "{updates:#?}");
}

fn a_failed_node_stops_the_rollout_and_returns_when_the_config_is_withdrawn(pools: &Pools) {
    for pool in ["worker", "edge"] {
        pools.wait_rolled_out(pool);
    }
    pools.machine(FAULTY).write(FAULT, "");
    let (old, boots) = (pools.target("worker"), pools.boots());
    let from = pools.cluster.audit().len();
    pools.cluster.apply(&failing_config());
    let stopped = |pool: &Value| held(pool) == "StoppedAfterFailures";
    let pool = pools.wait_pool("worker", "a stopped rollout", stopped);
    let message = condition(&pool, "RolloutHeld")["message"].as_str().unwrap();
    assert!(message.contains(FAULTY), "{message}");
    let node = pools.wait_node(FAULTY, "the earlier config", |node| {
        protocol(node, "currentConfig") == old && node["spec"]["unschedulable"].is_null()
    });
    assert_eq!(protocol(&node, "state"), "Degraded", "{node:#}");
    let updates = audit::Updates::of(&pools.cluster, from, &[]);
    assert_eq!(last_worker(&updates), Some(FAULTY), "nothing began later");

    pools
        .cluster
        .kubectl(&["delete", "machineconfig", "30-check"]);
    for pool in ["worker", "edge"] {
        pools.wait_rolled_out(pool);
    }
    assert_eq!(pools.target("worker"), old);
    assert_ne!(pools.boots(), boots);
    for name in [FAULTY, OTHER] {
        pools.wait_node(name, "Done", |node| protocol(node, "state") == "Done");
        assert_eq!(pools.machine(name).read("/etc/example.conf"), b"third\n");
    }
    wait::until("no grants", wait::seconds(30), || {
        let grants = grants(&pools.pool("worker"));
        grants["grants"].as_array().is_none_or(Vec::is_empty)
    });
}
