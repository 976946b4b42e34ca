//! The ids of devices, and devices that have several names.

use std::os::unix::fs::{MetadataExt as _, symlink};

use machinist_device::status::DevicesStatus;
use nix::sys::stat::{major, minor};

use crate::device_hardware::Hardware;

/// A machine with one device, which sysfs lists under the number that its node has here.
fn with_links(names: &[&str]) -> Hardware {
    let hardware = Hardware::new();
    hardware.node("virtual/acme/a0", "a0", "acme");
    let node = std::fs::metadata(hardware.machine.path("dev/a0")).unwrap();
    let (major, minor) = (major(node.rdev()), minor(node.rdev()));
    let link = hardware.machine.path("sys/dev/char");
    let link = link.join(format!("{major}:{minor}"));
    symlink("../../devices/virtual/acme/a0", link).unwrap();
    for name in names {
        hardware.by_id("acme", name, "../a0");
    }
    hardware
}

#[test]
fn a_device_with_several_links_is_advertised_once() {
    let hardware = with_links(&["one", "two"]);
    let spec = "  match: [{path: /dev/acme/*}, {subsystem: {name: acme}}]\n";
    assert_eq!(hardware.device_lines(spec), ["acme-one: /dev/acme/one"]);
    let (_, problems) = hardware.found(spec);
    let told = |name: &str| {
        let told = format!("{name} is another name of acme-one; ignoring {name}");
        problems.iter().any(|one| one.contains(&told))
    };
    assert!(told("acme-two") && told("a0"), "{problems:?}");
}

#[tokio::test]
async fn an_advertised_device_keeps_its_id_when_more_links_appear() {
    let hardware = with_links(&["two"]);
    let spec = "  match: [{path: /dev/acme/*}]\n";
    let write = || {
        let text = Hardware::declaration(spec);
        hardware.machine.write("x.yaml", &text);
    };
    write();
    let ids = |status: &DevicesStatus| -> Vec<String> {
        let devices = status.devices.iter().flat_map(|one| &one.devices);
        let told = devices.map(|one| format!("{}={}", one.id, one.health));
        told.collect()
    };
    let agent = hardware.machine.agent();
    agent
        .until("found", |status| ids(status) == ["acme-two=Healthy"])
        .await;
    // As udev adds a link later whose name sorts first.
    hardware.by_id("acme", "one", "../a0");
    let first =
        |status: &DevicesStatus| status.problems.len() == 1 && ids(status) == ["acme-two=Healthy"];
    agent.until("the refusal to be reported", first).await;
    agent.stop().await;
    let agent = hardware.machine.agent();
    agent.until("the next agent", first).await;
    agent.stop().await;
}

#[test]
fn device_indexes_follow_the_kernels_numeric_order() {
    let hardware = Hardware::new();
    let device = hardware.usb("1-2", "0403", "6011", None);
    for name in ["v9", "v10"] {
        hardware.node(
            &format!("{device}/1-2:1.0/video4linux/{name}"),
            name,
            "video4linux",
        );
    }
    assert_eq!(
        hardware.device_lines("  match: [{subsystem: {name: video4linux}}]\n"),
        [
            "usb-1-2-1.0-video4linux0: /dev/v9",
            "usb-1-2-1.0-video4linux1: /dev/v10"
        ]
    );
}
