//! Rollouts that wait: a drain that a budget blocks, a pool that is deleted in the middle, a budget that has not recovered.

use serde_json::{Value, json};

use super::{Pools, annotation, audit, condition, grants, held, protocol, rebooting};
use crate::support::wait;

/// Runs the pod that a budget protects.
const BLOCKED: &str = "one";
const OTHER: &str = "two";
const BUDGET: &str = "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: guard}\n\
    spec: {minAvailable: 1, selector: {matchLabels: {app: guarded}}}\n";

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
fn a_rollout_waits_for_a_budget_and_survives_its_pool() {
    let pools = Pools::rolled_out();
    a_blocked_node_keeps_its_grant_when_its_pool_is_deleted(&pools);
    a_blocked_node_steps_aside(&pools);
    the_next_node_waits_for_the_pods_of_the_last_one(&pools);
    a_node_that_is_created_again_during_its_drain_is_updated(&pools);
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
    let pool = pools.wait_pool("worker", "AllBlocked", |pool| held(pool) == "AllBlocked");
    let message = condition(&pool, "RolloutHeld")["message"].to_string();
    let budget = "PodDisruptionBudget default/guard (minAvailable 1): 0 disruptions allowed";
    assert!(message.contains(budget), "{message}");
    let node = pools.wait_node(BLOCKED, "service", |node| {
        node["spec"]["unschedulable"].is_null() && protocol(node, "state") == "Done"
    });
    assert_ne!(protocol(&node, "desiredConfig"), target);

    // Without the budget the rollout goes on by itself.
    pools
        .cluster
        .kubectl(&["delete", "poddisruptionbudget", "guard"]);
    pools.wait_rolled_out("worker");
    pools.cluster.kubectl(&deployment);
    let updates = audit::Updates::of(&pools.cluster, from, &[]);
    assert_eq!(updates.most_of(&[BLOCKED, OTHER]), 1, "{updates:#?}");
}

/// Its grant is free when it is deleted; its agent is still in the middle of the update.
fn a_node_that_is_created_again_during_its_drain_is_updated(pools: &Pools) {
    pools.cluster.workload("guarded", BLOCKED, 1);
    pools.cluster.apply(BUDGET);
    let old = pools.target("worker");
    pools.apply_config("10-worker", "worker", &[rebooting("fifth\n")]);
    let target = pools.wait_rendered("worker", &old);
    let blocked = |node: &Value| annotation(node, "machinist.dev/blocked-by").contains("guarded");
    pools.wait_node(BLOCKED, "a blocked drain", blocked);
    pools.wait_pool("worker", "the blocked drain in a condition", |pool| {
        let message = condition(pool, "Updating")["message"].as_str();
        message.is_some_and(|it| it.contains("drain blocked: one by default/guarded-"))
    });
    pools.cluster.kubectl(&["delete", "node", BLOCKED]);
    let machine = pools.machine(BLOCKED);
    machine.exec(&["systemctl", "restart", "kubelet"]);
    let budget = ["delete", "poddisruptionbudget", "guard"];
    pools.cluster.kubectl(&budget);
    pools.wait_node(BLOCKED, "the config of its second grant", |node| {
        protocol(node, "currentConfig") == target && protocol(node, "state") == "Done"
    });
    pools.wait_rolled_out("worker");
}

fn the_next_node_waits_for_the_pods_of_the_last_one(pools: &Pools) {
    const LABEL: &str = "example.com/home";
    let home = |value: &str| {
        let label = format!("{LABEL}{value}");
        pools.cluster.kubectl(&["label", "node", BLOCKED, &label]);
    };
    home("=here");
    pools.cluster.workload_on("evicted", LABEL, "here", 1);
    pools.cluster.workload("stays", OTHER, 1);
    pools.cluster.apply(
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: pair}\nspec:\n  minAvailable: 1\n  \
         selector: {matchExpressions: [{key: app, operator: In, values: [evicted, stays]}]}\n",
    );
    // The pod runs on; its replacement has no node.
    home("-");
    let (from, old) = (pools.cluster.audit().len(), pools.target("worker"));
    pools.apply_config("10-worker", "worker", &[rebooting("fourth\n")]);
    let target = pools.wait_rendered("worker", &old);
    let done = |node: &Value| protocol(node, "currentConfig") == target;
    pools.wait_node(BLOCKED, "the config", done);
    let pool = pools.wait_pool("worker", "GateClosed", |pool| held(pool) == "GateClosed");
    let message = condition(&pool, "RolloutHeld")["message"].to_string();
    let budget = "PodDisruptionBudget default/pair";
    assert!(message.contains(budget), "{message}");
    std::thread::sleep(wait::seconds(10));
    let updates = audit::Updates::of(&pools.cluster, from, &[]);
    assert_eq!(last_worker(&updates), Some(BLOCKED), "nothing else began");

    home("=here");
    pools.wait_rolled_out("worker");
    let updates = audit::Updates::of(&pools.cluster, from, &[]);
    assert_eq!(updates.most_of(&[BLOCKED, OTHER]), 1, "{updates:#?}");
}
