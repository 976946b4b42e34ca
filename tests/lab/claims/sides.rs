//! A resource that changes sides.

use super::{DECLARED, FUSE, Stage, declaration};
use crate::devices::wait_allocatable;
use crate::support::wait;

/// From claims to a device plugin and back, without a restart: never both.
pub(super) fn both(stage: &Stage) {
    let (machine, node) = (&stage.machine, stage.node());
    machine.write(DECLARED, declaration("devicePlugin"));
    wait::until("no slice", wait::seconds(30), || stage.devices().is_empty());
    wait_allocatable(&node, FUSE, "2");
    machine.write(DECLARED, declaration("dra"));
    stage.wait_devices("the way back", 2, false);
    wait_allocatable(&node, FUSE, "0");
}
