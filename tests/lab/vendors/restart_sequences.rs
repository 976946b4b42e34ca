//! Restarts in quick succession, and a power loss: a pod keeps its device as long as the machine
//! runs.

use serde_json::Value;

use super::{CARD, FOUND, OFFERED, Stage, healths};
use crate::devices::wait_allocatable;
use crate::support::{Dice, Node, rounds, wait};

/// Every service that takes part in allocating a device.
const UNITS: [&str; 4] = ["kubelet", "machinist", "acme", "containerd"];
const HOLDERS: [&str; 3] = ["finder", "taker", "player"];
const COUNTS: [(&str, &str); 3] = [(FOUND, "2"), (CARD, "1"), (OFFERED, "2")];

/// The id that differs between two runs of a container.
fn run_of(stage: &Stage, pod: &str) -> Value {
    let pod = stage.cluster.object("pod", pod).expect("the pod");
    pod["status"]["containerStatuses"][0]["containerID"].clone()
}

fn wait_advertised(stage: &Stage, node: &Node<'_>) {
    let machine = &stage.machine;
    machine.wait_status("everything registered", wait::seconds(60), |status| {
        let resources = status["devices"].as_array().unwrap();
        resources.len() >= COUNTS.len() && resources.iter().all(|one| one["registered"] == true)
    });
    for (resource, count) in COUNTS {
        machine.wait(resource, wait::seconds(60), || {
            let devices = healths(machine, resource);
            !devices.is_empty() && devices.iter().all(|(health, _)| health == "Healthy")
        });
        wait_allocatable(node, resource, count);
    }
}

/// Every order of two restarts, or a random selection in short runs.
pub fn every_order_of_two(stage: &Stage, node: &Node<'_>) {
    let pairs = UNITS.iter().flat_map(|first| {
        let others = UNITS.iter().filter(move |second| *second != first);
        others.map(move |second| (*first, *second))
    });
    let mut pairs: Vec<_> = pairs.collect();
    let mut dice = Dice::new();
    while pairs.len() > rounds(3, 12) {
        pairs.swap_remove(dice.pick(pairs.len()));
    }
    let runs = HOLDERS.map(|pod| run_of(stage, pod));
    for (first, second) in pairs {
        println!("lab: {first} restarts, then {second}");
        for unit in [first, second] {
            stage.machine.exec(&["systemctl", "restart", unit]);
        }
        node.wait_ready(wait::seconds(60));
        wait_advertised(stage, node);
        assert_eq!(
            HOLDERS.map(|pod| run_of(stage, pod)),
            runs,
            "{first}, then {second}"
        );
        let open = "exec 3<>/dev/fuse && echo open";
        assert_eq!(stage.inside("finder", open), "open\n", "{first}, {second}");
    }
}

/// Running pods may fail after a power loss; every device can be allocated again.
pub fn a_power_loss(stage: &mut Stage) {
    stage
        .machine
        .exec(&["systemctl", "enable", "--quiet", "acme"]);
    stage.machine.kill();
    stage.machine.power_on();
    let machine = &stage.machine;
    machine.sh("ln -sf fuse /dev/acme0; ln -sf net/tun /dev/acme1");
    machine.exec(&["systemctl", "restart", "acme"]);
    let node = stage.cluster.node(machine);
    node.wait_ready(wait::seconds(90));
    wait_advertised(stage, &node);
    let everybody = ["delete", "pods", "--all", "--wait=true", "--timeout=60s"];
    stage.cluster.kubectl(&everybody);
    stage.run("next-finder", FOUND);
    stage.run("next-taker", OFFERED);
    let open = "exec 3<>/dev/fuse && echo open";
    assert_eq!(stage.inside("next-finder", open), "open\n");
}
