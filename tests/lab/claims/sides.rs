//! A resource that moves between DRA and the device plugin, and one that is no longer advertised.

use serde_json::{Value, json};

use super::{DECLARED, FUSE, Stage, declaration};
use crate::devices::wait_allocatable;
use crate::support::wait;

/// Moves a resource from DRA to the device plugin and back without a restart: it is never offered
/// by both.
pub(super) fn both(stage: &Stage) {
    let (machine, node) = (&stage.machine, stage.node());
    machine.write(DECLARED, declaration("devicePlugin"));
    wait::until("no slice", wait::seconds(30), || stage.devices().is_empty());
    wait_allocatable(&node, FUSE, "2");
    machine.write(DECLARED, declaration("dra"));
    stage.wait_devices("the way back", 2, false);
    wait_allocatable(&node, FUSE, "0");
}

/// A resource that no plugin serves any more stays on the Node with a count of 0. The agent reports
/// that until the resource is served again.
pub(super) fn neither(stage: &Stage) {
    let machine = &stage.machine;
    let wait_for_zeros = |what: &str, zeros: &Value| {
        machine.wait_status(what, wait::seconds(30), |status| {
            status["orphanedResources"] == *zeros
        });
    };
    wait_for_zeros("devices in use are not leftovers", &json!([]));
    machine.sh(&format!("rm {DECLARED}"));
    wait_for_zeros("the leftover", &json!([FUSE]));
    let line = format!("{FUSE}: not advertised by machinist; its count on the Node is 0");
    for command in [&["devices", "list"][..], &["status"]] {
        let shown = machine.exec(&[&["/usr/bin/machinist"], command].concat());
        assert!(shown.contains(&line), "{shown}");
    }
    machine.write(DECLARED, declaration("dra"));
    stage.wait_devices("devices allocatable again", 2, false);
    wait_for_zeros("the end of it", &json!([]));
}
