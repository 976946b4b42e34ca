//! Devices that are selected by their attributes: over a root whose sysfs has the content that real
//! kernels write.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the kernel that makes these files"
)]

mod names;
mod specs;

use machinist_testkit::device_host;

use std::os::unix::fs::symlink;

use device_host::Machine;
use machinist_device::{Allowances, Resource, registry::check};
use machinist_rootfs::Root;

/// The PCI function of the USB controller.
const CONTROLLER: &str = "pci0000:00/0000:00:14.0";

/// A machine with sysfs.
struct Hardware {
    machine: Machine,
    numbers: std::cell::Cell<u32>,
}

impl Hardware {
    fn new() -> Self {
        let machine = Machine::new();
        for dir in [
            "sys/dev/char",
            "sys/dev/block",
            "sys/bus/pci/devices",
            "sys/bus/pci/drivers",
        ] {
            std::fs::create_dir_all(machine.path(dir)).unwrap();
        }
        Self {
            machine,
            numbers: std::cell::Cell::new(0),
        }
    }

    fn put(&self, device: &str, file: &str, text: &str) {
        let path = self.machine.path("sys/devices").join(device).join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }

    fn link(&self, device: &str, name: &str, target: &str) {
        let dir = self.machine.path("sys/devices").join(device);
        std::fs::create_dir_all(&dir).unwrap();
        symlink(target, dir.join(name)).unwrap();
    }

    /// A device node, in sysfs and below `/dev`.
    fn node(&self, device: &str, name: &str, subsystem: &str) {
        let number = self.numbers.replace(self.numbers.get() + 1);
        self.put(
            device,
            "uevent",
            &format!("MAJOR=240\nMINOR={number}\nDEVNAME={name}"),
        );
        self.link(device, "subsystem", &format!("../../class/{subsystem}"));
        let link = self
            .machine
            .path("sys/dev/char")
            .join(format!("240:{number}"));
        symlink(format!("../../devices/{device}"), link).unwrap();
        self.machine.plug(name);
    }

    fn usb(&self, port: &str, vendor: &str, product: &str, serial: Option<&str>) -> String {
        let device = format!("{CONTROLLER}/usb1/{port}");
        self.put(&device, "idVendor", vendor);
        self.put(&device, "idProduct", product);
        if let Some(serial) = serial {
            self.put(&device, "serial", serial);
        }
        self.node(
            &device,
            &format!("bus/usb/001/{}", port.replace(['-', '.'], "")),
            "usb",
        );
        device
    }

    fn pci(&self, address: &str, ids: (&str, &str), class: &str, driver: Option<&str>, group: u32) {
        let device = format!("pci0000:00/{address}");
        self.put(&device, "vendor", &format!("0x{}", ids.0));
        self.put(&device, "device", &format!("0x{}", ids.1));
        self.put(&device, "class", &format!("0x{class}"));
        self.put(&device, "numa_node", "1");
        if let Some(driver) = driver {
            self.link(
                &device,
                "driver",
                &format!("../../../bus/pci/drivers/{driver}"),
            );
        }
        self.link(
            &device,
            "iommu_group",
            &format!("../../../kernel/iommu_groups/{group}"),
        );
        let link = self.machine.path("sys/bus/pci/devices").join(address);
        symlink(format!("../../../devices/{device}"), link).unwrap();
    }

    fn by_id(&self, dir: &str, name: &str, target: &str) {
        let dir = self.machine.path("dev").join(dir);
        std::fs::create_dir_all(&dir).unwrap();
        symlink(target, dir.join(name)).unwrap();
    }

    fn declaration(spec: &str) -> String {
        format!(
            "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {{name: x}}\nspec:\n  \
             resource: acme.dev/x\n{spec}"
        )
    }

    /// The devices that a declaration finds, and the problems it reports.
    fn found(&self, spec: &str) -> (Resource, Vec<String>) {
        self.found_where(spec, &Allowances::default())
    }

    fn found_where(&self, spec: &str, allowances: &Allowances) -> (Resource, Vec<String>) {
        let root = Root::open(self.machine.root()).unwrap();
        let file = "/etc/machinist/devices.d/x.yaml".parse().unwrap();
        let text = Self::declaration(spec);
        let found = check(&root, (&file, "x.yaml"), &text, allowances).unwrap();
        let problems = found.problems.iter().map(ToString::to_string).collect();
        let resource = found.resources.into_values().next().unwrap();
        ((*resource).clone(), problems)
    }

    /// Each device as `id: host nodes`, with the reason if it is unhealthy.
    fn device_lines(&self, spec: &str) -> Vec<String> {
        let (resource, _) = self.found(spec);
        let devices = resource.devices.iter();
        devices
            .map(|(id, device)| {
                let nodes: Vec<_> = device.nodes.iter().map(|node| node.host.as_str()).collect();
                let reason = device.reason.as_ref().map(|why| format!(" ({why})"));
                format!("{id}: {}{}", nodes.join(" "), reason.unwrap_or_default())
            })
            .collect()
    }
}

#[test]
fn a_usb_device_is_matched_by_serial_and_identified_by_port() {
    let hardware = Hardware::new();
    hardware.usb("1-1", "0403", "6001", Some("A5XK3RJT"));
    hardware.usb("1-2", "0403", "6001", Some("B6"));
    hardware.usb("1-3.1", "1d6b", "0104", None);
    hardware.usb("1-3.2", "1d6b", "0104", None);
    assert_eq!(
        hardware.device_lines("  match: [{usb: {vendor: \"0403\", serial: \"A5*\"}}]\n"),
        ["usb-1-1: /dev/bus/usb/001/11"]
    );
    assert_eq!(
        hardware.device_lines("  match: [{usb: {vendor: 1D6B}}]\n"),
        [
            "usb-1-3.1: /dev/bus/usb/001/131",
            "usb-1-3.2: /dev/bus/usb/001/132"
        ]
    );
    hardware.usb("1-4", "0403", "6001", Some("A5XK3RJT"));
    assert_eq!(
        hardware.device_lines("  match: [{usb: {serial: \"A5*\"}}]\n"),
        [
            "usb-1-1: /dev/bus/usb/001/11",
            "usb-1-4: /dev/bus/usb/001/14"
        ]
    );
}

#[test]
fn usb_functions_are_allocated_by_stable_link_under_the_kernel_name() {
    let hardware = Hardware::new();
    let stick = hardware.usb("1-1", "0403", "6001", Some("A5"));
    hardware.node(&format!("{stick}/1-1:1.0/tty/ttyUSB0"), "ttyUSB0", "tty");
    hardware.node("virtual/tty/tty9", "tty9", "tty");
    hardware.by_id("serial/by-path", "pci-0-usb-1", "../../ttyUSB0");
    hardware.by_id("serial/by-id", "usb-FTDI_A5-if00", "../../ttyUSB0");
    let spec = "  match: [{usb: {vendor: \"0403\"}, subsystem: {name: tty}}]\n";
    let (resource, problems) = hardware.found(spec);
    assert!(problems.is_empty(), "{problems:?}");
    let device = &resource.devices["usb-1-1-1.0-tty0"];
    assert_eq!(
        device.nodes[0].host.as_str(),
        "/dev/serial/by-path/pci-0-usb-1"
    );
    let by_link = "  match: [{usb: {vendor: \"0403\"}, path: \"/dev/serial/by-id/*\"}]\n";
    assert_eq!(hardware.device_lines(by_link).len(), 1, "any link names it");
    assert_eq!(device.nodes[0].inside.as_str(), "/dev/ttyUSB0");
    assert_eq!(device.attributes[&"serial".to_owned()], "A5");
    assert_eq!(resource.devices.len(), 1, "tty9 hangs on nothing");
}

#[test]
fn nodes_of_one_card_form_one_device_and_are_allocated_together() {
    let hardware = Hardware::new();
    for port in ["1-1", "1-2"] {
        let card = hardware.usb(port, "2e8a", "0005", None);
        let n = port.trim_start_matches("1-");
        hardware.node(
            &format!("{card}/c/acme/ctl{n}"),
            &format!("acme-ctl{n}"),
            "acme",
        );
        hardware.node(
            &format!("{card}/d/acme/data{n}"),
            &format!("acme-data{n}"),
            "acme",
        );
    }
    hardware.node("virtual/acme/none", "acme-none", "acme");
    let spec = "  match: [{subsystem: {name: acme}}]\n  group: {by: usbPath}\n  \
                container: {env: {NODES: \"{node}\"}}\n";
    assert_eq!(
        hardware.device_lines(spec),
        [
            "usb-1-1: /dev/acme-ctl1 /dev/acme-data1",
            "usb-1-2: /dev/acme-ctl2 /dev/acme-data2"
        ]
    );
    let (resource, problems) = hardware.found(spec);
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].contains("acme-none is not on a USB port"),
        "{problems:?}"
    );
    let inventory = machinist_device::Inventory::default();
    let ids = ["usb-1-2".to_owned()];
    let grant = machinist_device::allocation::allocate(&inventory, &resource, &ids).unwrap();
    assert_eq!(grant.nodes.len(), 2);
    assert_eq!(grant.env["NODES"], "/dev/acme-ctl2,/dev/acme-data2");
}

#[test]
fn a_function_has_its_own_nodes_and_not_those_of_child_devices() {
    let hardware = Hardware::new();
    hardware.pci("0000:03:00.0", ("10de", "2236"), "030200", Some("acme"), 12);
    hardware.node("pci0000:00/0000:03:00.0/drm/card0", "dri/card0", "drm");
    hardware.node(
        "pci0000:00/0000:03:00.0/drm/renderD128",
        "dri/renderD128",
        "drm",
    );
    hardware.node("pci0000:00/0000:03:00.0/usb1/1-1/tty/ttyX", "ttyX", "tty");
    hardware.put("pci0000:00/0000:03:00.0/usb1/1-1", "idVendor", "0403");
    hardware.put("pci0000:00/0000:03:00.0/usb1/1-1", "idProduct", "6001");
    hardware.pci("0000:04:00.0", ("10de", "2236"), "030200", None, 13);
    assert_eq!(
        hardware.device_lines("  match: [{pci: {vendor: 10de, class: \"0302\"}}]\n"),
        [
            "pci-0000-03-00.0: /dev/dri/card0 /dev/dri/renderD128",
            "pci-0000-04-00.0:  (no kernel driver is bound to 0000:04:00.0)"
        ]
    );
    let (resource, _) = hardware.found("  match: [{pci: {vendor: 10de}}]\n");
    assert_eq!(resource.devices["pci-0000-03-00.0"].numa, [1]);
}

#[test]
fn an_iommu_group_is_allocated_as_a_whole_or_rejected() {
    let hardware = Hardware::new();
    hardware.pci(
        "0000:05:00.0",
        ("10de", "2236"),
        "030200",
        Some("vfio-pci"),
        12,
    );
    hardware.pci(
        "0000:05:00.1",
        ("10de", "1aef"),
        "040300",
        Some("snd_hda_intel"),
        12,
    );
    hardware.pci(
        "0000:06:00.0",
        ("10de", "2236"),
        "030200",
        Some("vfio-pci"),
        13,
    );
    hardware.pci(
        "0000:06:01.0",
        ("8086", "0001"),
        "060400",
        Some("pcieport"),
        13,
    );
    hardware.machine.plug("vfio/vfio");
    hardware.machine.plug("vfio/12");
    hardware.machine.plug("vfio/13");
    let spec = "  match: [{pci: {device: \"2236\", driver: vfio-pci, iommuGroup: whole}}]\n";
    assert_eq!(
        hardware.device_lines(spec),
        [
            "iommu-group-12: /dev/vfio/12 /dev/vfio/vfio (0000:05:00.1 of its IOMMU group is bound to snd_hda_intel, not to vfio-pci)",
            "iommu-group-13: /dev/vfio/13 /dev/vfio/vfio"
        ]
    );
}

#[test]
fn a_sysfs_health_probe_reports_the_value_it_read() {
    let hardware = Hardware::new();
    hardware.node("virtual/acme/a0", "a0", "acme");
    hardware.node("virtual/acme/a1", "a1", "acme");
    hardware.node("virtual/acme/a2", "a2", "acme");
    hardware.put("virtual/acme/a0", "state", "ok");
    hardware.put("virtual/acme/a1", "state", "burnt");
    let spec = "  match: [{subsystem: {name: acme}}]\n  \
                health: [exists, {sysfs: {file: state, equals: ok}}]\n";
    assert_eq!(
        hardware.device_lines(spec),
        [
            "a0: /dev/a0",
            "a1: /dev/a1 (state is \"burnt\", expected \"ok\")",
            "a2: /dev/a2 (state cannot be read in /sys/devices/virtual/acme/a2)"
        ]
    );
}

#[test]
fn two_paths_with_one_device_id_are_reported_and_the_first_kept() {
    let hardware = Hardware::new();
    hardware.machine.plug("a-b");
    hardware.machine.plug("a/b");
    let spec = "  match: [{path: /dev/a-b}, {path: /dev/a/b}]\n";
    assert_eq!(hardware.device_lines(spec), ["a-b: /dev/a-b"]);
    let twice = "  match: [{path: /dev/a-b}, {path: \"/dev/a-?\"}]\n";
    assert_eq!(hardware.device_lines(twice), ["a-b: /dev/a-b"]);
    assert_eq!(
        hardware.found(twice).1.len(),
        0,
        "one device found twice is one"
    );
    let (_, problems) = hardware.found(spec);
    let message = "/dev/a/b and /dev/a-b have the same id \"a-b\"; the first is ignored";
    assert!(problems[0].contains(message), "{problems:?}");
}

#[tokio::test]
async fn a_removed_device_stays_listed_and_an_unmatched_one_is_dropped() {
    let hardware = Hardware::new();
    hardware.node("virtual/acme/a0", "a0", "acme");
    hardware.node("virtual/acme/b0", "b0", "bcme");
    let write = |subsystem: &str| {
        let spec = format!("  match: [{{subsystem: {{name: {subsystem}}}}}]\n");
        hardware
            .machine
            .write("x.yaml", &Hardware::declaration(&spec));
    };
    write("acme");
    let agent = hardware.machine.agent();
    let ids = |status: &machinist_device::status::DevicesStatus| -> Vec<String> {
        let devices = status.devices.iter().flat_map(|one| &one.devices);
        devices
            .map(|one| format!("{}={}", one.id, one.health))
            .collect()
    };
    agent
        .until("found", |status| ids(status) == ["a0=Healthy"])
        .await;
    std::fs::remove_dir_all(hardware.machine.path("sys/devices/virtual/acme/a0")).unwrap();
    hardware.machine.unplug("a0");
    agent
        .until("kept", |status| ids(status) == ["a0=Unhealthy"])
        .await;
    write("bcme");
    agent
        .until("dropped", |status| ids(status) == ["b0=Healthy"])
        .await;
    agent.stop().await;
}

#[tokio::test]
async fn device_health_follows_its_systemd_unit() {
    let hardware = Hardware::new();
    hardware.node("virtual/acme/a0", "a0", "acme");
    let spec = "  match: [{path: /dev/a0}]\n  health: [{unit: acme-firmware.service}]\n";
    hardware
        .machine
        .write("x.yaml", &Hardware::declaration(spec));
    let agent = hardware.machine.agent();
    let is = |status: &machinist_device::status::DevicesStatus, health: &str| {
        let device = status.devices.first().and_then(|one| one.devices.first());
        device.is_some_and(|device| device.health == health)
    };
    agent.until("well", |status| is(status, "Healthy")).await;
    let inventory = agent.handle.inventory();
    assert!(
        inventory
            .borrow()
            .probed_units
            .contains("acme-firmware.service")
    );
    let set_active = |active: bool| {
        let states = [("acme-firmware.service".to_owned(), active)];
        agent.units.send_replace(states.into());
    };
    set_active(false);
    let status = agent.until("ill", |status| is(status, "Unhealthy")).await;
    let reason = status.devices[0].devices[0].reason.clone();
    assert_eq!(
        reason.as_deref(),
        Some("acme-firmware.service is not active")
    );
    set_active(true);
    agent
        .until("well again", |status| is(status, "Healthy"))
        .await;
    agent.stop().await;
}
