//! An API server outage of ten minutes during a drain; only with `--long`.

use std::thread;

use serde_json::Value;

use super::{Fleet, device_pod_reboot, foreign_changes, protocol};
use crate::chaos::checks::AgentAction;
use crate::support::wait;

/// The cluster itself may evict the pod afterwards: its node was unreachable, so it counts as
/// unready, and unready pods may be evicted. The test accepts that; the update must finish, once.
pub fn of_ten_minutes_only_delays_the_update(fleet: &Fleet) {
    device_pod_reboot::keep_the_pod(fleet);
    let (boot, reboots) = (fleet.first.boot_id(), fleet.first.reboots().len());
    let from = fleet.cluster.audit().len();
    fleet.ask("first", "rendered-first-d", "d\n", Value::Null);
    device_pod_reboot::wait_blocked(fleet);
    fleet.cluster.stop_api();
    for _ in 0..10 {
        thread::sleep(wait::seconds(60));
        device_pod_reboot::stays_draining_during_an_api_server_outage(fleet);
        assert_eq!(fleet.first.read("/etc/example.conf"), b"b\n");
    }
    fleet.cluster.start_api();
    fleet
        .first
        .wait_console("the API server again", wait::seconds(120), |status| {
            let unreachable =
                |blocker: &Value| blocker["reason"].as_str() == Some("ApiServerUnreachable");
            let blockers = status["blockers"].as_array().unwrap();
            !blockers.iter().any(unreachable)
        });
    let budget = ["delete", "pdb", "guard", "--ignore-not-found"];
    fleet.cluster.kubectl(&budget);
    let node = fleet.wait_done("first", "rendered-first-d");
    assert!(node["spec"]["unschedulable"].is_null(), "{node:#}");
    assert_ne!(fleet.first.boot_id(), boot);
    assert_eq!(fleet.first.reboots().len(), reboots + 1);
    let deeds = fleet.agent_actions("first", from);
    let count = |deed: &AgentAction| deeds.iter().filter(|known| *known == deed).count();
    assert_eq!(
        (count(&AgentAction::Cordon), count(&AgentAction::Uncordon)),
        (1, 1),
        "{deeds:?}"
    );
    assert_eq!(deeds.last(), Some(&AgentAction::Uncordon), "{deeds:?}");
    println!(
        "lab: figure: ten minutes without an API server in a drain: one cordon, one reboot, one uncordon"
    );
    foreign_changes::as_before(fleet);
    assert_eq!(protocol(&fleet.node("first"), "reason"), "");
}
