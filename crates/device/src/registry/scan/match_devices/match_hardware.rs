//! Finds devices by their properties in sysfs.

use std::sync::Arc;

use super::{DeviceCandidate, DeviceFinder, NodeIdentity};
use crate::{
    SmallMap,
    declaration::HardwareSelector,
    discovery::DiscoveredDevice,
    inventory::DeviceNode,
    registry::scan::{attribute, numa_of},
    resource_name::device_id,
    sysfs_facts::{NodeFacts, PciFacts, UsbFacts},
};
use machinist_base::{abs_path::AbsPath, text::is_misleading};

/// The kernel driver that passes a whole function to a userspace driver, such as a virtual machine.
const VFIO_DRIVER: &str = "vfio-pci";
/// Drivers that do not prevent passing through the other functions of an IOMMU group; a function
/// without a driver does not either.
const PASSTHROUGH_SAFE_DRIVERS: [&str; 2] = [VFIO_DRIVER, "pci-stub"];
/// The class of PCI bridges, which are members of groups but are not passed through.
const PCI_BRIDGE_CLASS: &str = "06";

impl DeviceFinder<'_> {
    pub(super) fn hardware(&mut self, wanted: &HardwareSelector) {
        if wanted.is_function() {
            return self.functions(wanted);
        }
        let (sysfs, root) = (self.sysfs, self.scanner.root.clone());
        let found = sysfs
            .nodes
            .values()
            .filter(|facts| wanted.matches(facts, |file| attribute(&root, &facts.sysfs, file)));
        for facts in found {
            let node = DeviceNode {
                host: facts.stable().clone(),
                inside: facts.node.clone(),
            };
            let candidate = DeviceCandidate {
                id: self.id_of(facts),
                discovered: DiscoveredDevice {
                    nodes: vec![node],
                    numa: numa_of(&root, &facts.sysfs),
                    attributes: attributes(facts.usb.as_deref(), facts.pci.as_deref()),
                    ..DiscoveredDevice::default()
                },
                sysfs: Some(facts.sysfs.clone()),
                identities: vec![NodeIdentity::Sysfs(facts.sysfs.clone())],
                port: facts.usb.as_ref().map(|usb| usb.port.clone()),
                address: facts.pci.as_ref().map(|pci| pci.address.clone()),
                nodes_checked: false,
            };
            self.candidates.push(candidate);
        }
    }

    /// The device id. It is derived from the port or address, which the kernel knows at once: links
    /// are created later, and several devices may have the same serial number. A device whose id
    /// changed would be advertised a second time under the new id.
    fn id_of(&self, facts: &NodeFacts) -> String {
        let Some(usb) = &facts.usb else {
            return match &facts.pci {
                Some(pci) => {
                    let (address, name) = (pci.address.replace(':', "-"), facts.node.file_name());
                    device_id(&format!("pci-{address}-{name}"))
                }
                None => device_id(facts.node.as_str()),
            };
        };
        if facts.is_usb_device() {
            return device_id(&format!("usb-{}", usb.port));
        }
        // Kernel names depend on the order of plugging; the index among similar nodes of the
        // interface does not.
        let interface = interface_of(usb, facts);
        let same = |other: &&NodeFacts| {
            other.subsystem == facts.subsystem
                && other.usb.as_ref() == Some(usb)
                && interface_of(usb, other) == interface
        };
        // `video10` sorts after `video9`.
        let key = |one: &NodeFacts| (one.node.as_str().len(), one.node.clone());
        let nodes = self.sysfs.nodes.values().filter(same);
        let index = nodes.filter(|other| key(other) < key(facts)).count();
        let (port, subsystem) = (&usb.port, &facts.subsystem);
        device_id(&format!("usb-{port}-{interface}-{subsystem}{index}"))
    }

    fn functions(&mut self, wanted: &HardwareSelector) {
        let sysfs = self.sysfs;
        let meant = sysfs.functions.values().filter(|facts| {
            let pci = wanted.pci.as_ref();
            pci.is_some_and(|pci| pci.matches(facts))
        });
        let is_complete = wanted.pci.as_ref().is_some_and(|pci| pci.whole_group);
        for facts in meant {
            let candidate = if is_complete || facts.driver.as_deref() == Some(VFIO_DRIVER) {
                self.iommu_group(facts)
            } else {
                self.function(facts)
            };
            self.candidates.push(candidate);
        }
    }

    /// A function with all its nodes, except those of USB devices behind it.
    fn function(&self, facts: &Arc<PciFacts>) -> DeviceCandidate {
        let belongs = |node: &&NodeFacts| node.usb.is_none() && node.pci.as_ref() == Some(facts);
        let all = self.sysfs.nodes.values().filter(belongs);
        let identities = all.clone();
        let identities = identities.map(|node| NodeIdentity::Sysfs(node.sysfs.clone()));
        let identities = identities.collect();
        let nodes: Vec<_> = all
            .map(|node| DeviceNode {
                host: node.stable().clone(),
                inside: node.node.clone(),
            })
            .collect();
        let address = &facts.address;
        DeviceCandidate {
            id: format!("pci-{}", address.replace(':', "-")),
            discovered: DiscoveredDevice {
                wrong: nodes.is_empty().then(|| match &facts.driver {
                    Some(driver) => {
                        format!("kernel driver {driver} creates no device node for {address}")
                    }
                    None => format!("no kernel driver is bound to {address}"),
                }),
                nodes,
                numa: facts.numa.clone(),
                attributes: attributes(None, Some(facts)),
                recipe: None,
            },
            sysfs: Some(facts.sysfs.clone()),
            identities,
            port: None,
            address: Some(address.clone()),
            nodes_checked: false,
        }
    }

    /// The IOMMU group of a function; unhealthy while another driver uses a function of the group.
    fn iommu_group(&self, facts: &Arc<PciFacts>) -> DeviceCandidate {
        let Some(group) = facts.iommu_group else {
            let mut alone = self.function(facts);
            alone.discovered.wrong = Some(format!("{} is in no IOMMU group", facts.address));
            return alone;
        };
        let members = self.sysfs.functions.values();
        let members: Vec<_> = members
            .filter(|one| one.iommu_group == Some(group))
            .collect();
        let keeps = |one: &&&Arc<PciFacts>| {
            let driver = one.driver.as_deref();
            driver.is_some_and(|driver| !PASSTHROUGH_SAFE_DRIVERS.contains(&driver))
                && !one.class.starts_with(PCI_BRIDGE_CLASS)
        };
        let foreign = members.iter().find(keeps);
        let names: Vec<_> = members.iter().map(|one| one.address.as_str()).collect();
        let node = |path: String| AbsPath::new(path).ok().map(DeviceNode::from);
        let mut attributes = attributes(None, Some(facts));
        attributes.insert("functions".to_owned(), names.join(","));
        DeviceCandidate {
            id: format!("iommu-group-{group}"),
            discovered: DiscoveredDevice {
                nodes: node(format!("/dev/vfio/{group}"))
                    .into_iter()
                    // The container node of VFIO, which every group needs.
                    .chain(node("/dev/vfio/vfio".to_owned()))
                    .collect(),
                numa: facts.numa.clone(),
                attributes,
                wrong: foreign.map(|one| {
                    let driver = one.driver.as_deref().unwrap_or("nothing");
                    format!(
                        "{} of its IOMMU group is bound to {driver}, not to {VFIO_DRIVER}",
                        one.address
                    )
                }),
                recipe: None,
            },
            sysfs: Some(facts.sysfs.clone()),
            identities: Vec::new(),
            port: None,
            address: Some(facts.address.clone()),
            nodes_checked: false,
        }
    }
}

/// The interface of a USB device that a node belongs to, such as `1.0`.
fn interface_of<'a>(usb: &UsbFacts, facts: &'a NodeFacts) -> &'a str {
    let below = facts.sysfs.as_str().strip_prefix(usb.sysfs.as_str());
    let first = below.and_then(|below| below.trim_start_matches('/').split('/').next());
    first
        .and_then(|name| name.split_once(':'))
        .map_or("", |(_, interface)| interface)
}

fn attributes(usb: Option<&UsbFacts>, pci: Option<&PciFacts>) -> SmallMap<String> {
    let mut all = SmallMap::default();
    // The values come from the device's firmware, so values with misleading characters are left out.
    let mut add = |key: &str, value: &str| {
        if !value.contains(is_misleading) {
            all.insert(key.to_owned(), value.to_owned());
        }
    };
    if let Some(usb) = usb {
        add("usbPath", &usb.port);
        add("vendor", &usb.vendor);
        add("product", &usb.product);
        if let Some(serial) = &usb.serial {
            add("serial", serial);
        }
    } else if let Some(pci) = pci {
        add("pciAddress", &pci.address);
        add("vendor", &pci.vendor);
        add("device", &pci.device);
        add("class", &pci.class);
        if let Some(driver) = &pci.driver {
            add("driver", driver);
        }
    }
    all
}
