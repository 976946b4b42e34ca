//! Pools of the control plane: one limit with the arbiter, a maintenance window, and a machine that is lost during its
//! update.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use serde_json::{Value, json};

use super::{GROUP, NODES, Pools, annotation, audit, grants, held, protocol, rebooting};

/// The node that is lost; a budget blocks its drain before.
const LOST: &str = "two";
const ARBITER: &str = "three";
const BUDGET: &str = "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: guard}\n\
    spec: {minAvailable: 1, selector: {matchLabels: {app: guarded}}}\n";

/// A pool of the nodes with a role, which gets the MachineConfigs of the control plane.
fn pool(role: &str) -> String {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "MachineConfigPool",
        "metadata": {"name": role},
        "spec": {
            "machineConfigSelector": {"matchLabels": {(format!("{GROUP}/role")): "master"}},
            "nodeSelector": {"matchLabels": {(format!("node-role.kubernetes.io/{role}")): ""}},
        },
    })
    .to_string()
}

impl Pools {
    /// Nodes `one` and `two` in pool `master` and `three` in pool `arbiter`, all on a first config.
    fn of_control_plane() -> Self {
        let pools = Self::start();
        pools.move_to_worker(ARBITER);
        pools
            .cluster
            .kubectl(&["delete", "machineconfigpool", "edge"]);
        for (name, role) in NODES.iter().zip(["master", "master", "arbiter"]) {
            let label = format!("node-role.kubernetes.io/{role}=");
            pools.cluster.kubectl(&["label", "node", name, &label]);
        }
        for role in ["master", "arbiter"] {
            pools.cluster.apply(&pool(role));
        }
        pools.apply_config("10-control-plane", "master", &[rebooting("first\n")]);
        pools.install_controller();
        for pool in ["master", "arbiter"] {
            pools.wait_pool(pool, "FirstRollout", |pool| held(pool) == "FirstRollout");
            pools.resume(pool);
        }
        pools
    }

    fn granted_in_master(&self) -> Vec<String> {
        let record = grants(&self.pool("master"));
        let listed = record["grants"].as_array().cloned().unwrap_or_default();
        let nodes = listed.iter().filter_map(|it| it["node"].as_str());
        nodes.map(str::to_owned).collect()
    }
}

#[test]
fn the_control_plane_keeps_its_quorum_in_windows_and_when_a_machine_is_lost() {
    let pools = Pools::of_control_plane();
    one_limit_for_both_pools(&pools);
    nothing_begins_before_the_window(&pools);
    a_lost_machine_keeps_its_slot_until_it_is_released(&pools);
    assert_eq!(audit::refused(&pools.cluster), [""; 0]);
}

fn one_limit_for_both_pools(pools: &Pools) {
    pools.wait_node(ARBITER, "its grant", |node| {
        !annotation(node, "machinist.dev/grant").is_empty()
    });
    assert_eq!(pools.granted_in_master(), [ARBITER]);
    pools.wait_first_configs();
    for pool in ["master", "arbiter"] {
        pools.wait_rolled_out(pool);
    }
    assert_eq!(grants(&pools.pool("arbiter")), Value::Null);
    let updates = audit::Updates::of(&pools.cluster, 0, &[]);
    assert_eq!(updates.most_at_once(), 1, "{updates:#?}");
    let order = updates.order();
    assert_eq!((order.len(), order[2]), (3, ARBITER), "{order:?}");
}

fn nothing_begins_before_the_window(pools: &Pools) {
    let opening = Timestamp::now() + SignedDuration::from_mins(2);
    let start = opening
        .to_zoned(TimeZone::UTC)
        .strftime("%H:%M")
        .to_string();
    let windows = json!({"windows": [{"start": start, "duration": "4h"}]}).to_string();
    for pool in ["master", "arbiter"] {
        let setting = json!({"metadata": {"annotations": {"machinist.dev/windows": windows}}});
        pools.patch_pool(pool, &setting);
    }
    let (from, old) = (pools.cluster.audit().len(), pools.target("master"));
    pools.apply_config("10-control-plane", "master", &[rebooting("second\n")]);
    let target = pools.wait_rendered("master", &old);
    pools.wait_pool("master", "OutsideWindow", |pool| {
        held(pool) == "OutsideWindow"
    });
    let page = pools.command(&["explain", "--pool", "master"]);
    assert!(page.contains("OutsideWindow"), "{page}");
    pools.wait_node("one", "the config in the window", |node| {
        protocol(node, "currentConfig") == target
    });
    for pool in ["master", "arbiter"] {
        pools.wait_rolled_out(pool);
    }
    let updates = audit::Updates::of(&pools.cluster, from, &[]);
    assert_eq!(updates.most_at_once(), 1, "{updates:#?}");
    let minute = opening.as_second() / 60 * 60;
    assert!(updates.begun_after(minute), "{updates:#?}, {opening}");
}

fn a_lost_machine_keeps_its_slot_until_it_is_released(pools: &Pools) {
    pools.cluster.workload("guarded", LOST, 1);
    pools.cluster.apply(BUDGET);
    let (from, old) = (pools.cluster.audit().len(), pools.target("arbiter"));
    pools.apply_config("10-control-plane", "master", &[rebooting("third\n")]);
    let third = pools.wait_rendered("arbiter", &old);
    pools.wait_node(LOST, "a blocked drain", |node| {
        annotation(node, "machinist.dev/blocked-by").contains("guarded")
    });
    let refused = pools.command_with_code(1, &["release-grant", LOST]);
    assert_eq!(refused, "");
    pools.machine(LOST).kill();
    pools.cluster.kubectl(&["delete", "node", LOST]);
    pools.wait_pool("master", "one machine", |pool| {
        pool["status"]["machineCount"] == 1
    });
    // The controller has decided again when it has rendered the next config.
    pools.apply_config("10-control-plane", "master", &[rebooting("fourth\n")]);
    let target = pools.wait_rendered("arbiter", &third);
    assert_eq!(pools.granted_in_master(), [LOST]);
    let arbiter = pools.cluster.object("node", ARBITER).expect("the node");
    assert_eq!(protocol(&arbiter, "desiredConfig"), old);

    pools.command(&["release-grant", LOST]);
    for pool in ["master", "arbiter"] {
        pools.wait_rolled_out(pool);
    }
    let arbiter = pools.cluster.object("node", ARBITER).expect("the node");
    assert_eq!(protocol(&arbiter, "currentConfig"), target);
    let updates = audit::Updates::of(&pools.cluster, from, &[]);
    assert_eq!(updates.most_of(&["one", ARBITER]), 1, "{updates:#?}");
}
