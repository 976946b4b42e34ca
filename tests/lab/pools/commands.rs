//! The commands that hold a rollout up and leave a node out of it.

use super::{Pools, annotation, condition, held, protocol};
use crate::support::agent::file;

/// Pauses pool `edge` with nodes `two` and `three` before a new config, and leaves `three` out of its rollout.
pub(super) fn pause_and_skip(pools: &Pools) {
    pools.command(&["pause", "--pool", "edge", "--reason", "freeze of the lab"]);
    let old = pools.target("edge");
    // It restarts one unit: nothing is drained.
    let setting = file(
        "/etc/sysctl.d/90-lab.conf",
        0o644,
        "net.ipv4.ip_forward=1\n",
    );
    pools.apply_config("30-edge", "edge", &[setting]);
    let new = pools.wait_rendered("edge", &old);
    let pool = pools.wait_pool("edge", "the pause", |pool| held(pool) == "Paused");
    let hold = condition(&pool, "RolloutHeld")["message"].to_string();
    assert!(hold.contains("freeze of the lab"), "{hold}");
    let shown = pools.command(&["explain", "--pool", "edge"]);
    assert!(shown.contains("freeze of the lab"), "{shown}");

    pools.command(&["skip", "three"]);
    pools.resume("edge");
    let is_updated = |node: &serde_json::Value| {
        protocol(node, "currentConfig") == new && protocol(node, "state") == "Done"
    };
    pools.wait_node("two", "the new config", is_updated);
    pools.wait_pool("edge", "the node that is left out", |pool| {
        held(pool) == "NodesSkipped"
            && condition(pool, "RolloutHeld")["message"]
                .to_string()
                .contains("three")
    });
    let three = pools.cluster.object("node", "three").expect("the node");
    assert_eq!(protocol(&three, "currentConfig"), old);
    assert_eq!(annotation(&three, "machinist.dev/skip-rollout"), new);

    pools.command(&["skip", "three", "--undo"]);
    pools.wait_rolled_out("edge");
    let path = "/etc/sysctl.d/90-lab.conf";
    assert_eq!(
        pools.machine("three").read(path),
        b"net.ipv4.ip_forward=1\n"
    );
}
