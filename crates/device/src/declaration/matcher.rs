//! The selectors of a declaration: one entry of `match` for each.

use std::collections::BTreeMap;

use crate::{
    glob::{Glob, component_matches},
    sysfs_facts::{NodeFacts, PciFacts, UsbFacts},
};

/// A pattern for one word, with the shell wildcards `*`, `?` and `[a-z]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobWord(pub(super) String);

impl GlobWord {
    /// Whether `text` matches this pattern.
    pub fn matches(&self, text: &str) -> bool {
        component_matches(&self.0, text)
    }
}

/// Selects a USB device. An absent field matches anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsbSelector {
    /// `idVendor`.
    pub vendor: Option<GlobWord>,
    /// `idProduct`.
    pub product: Option<GlobWord>,
    /// The serial number; a device without one only matches if this is absent.
    pub serial: Option<GlobWord>,
}

impl UsbSelector {
    /// Whether this USB device matches.
    pub fn matches(&self, facts: &UsbFacts) -> bool {
        matches_glob(self.vendor.as_ref(), Some(&facts.vendor))
            && matches_glob(self.product.as_ref(), Some(&facts.product))
            && matches_glob(self.serial.as_ref(), facts.serial.as_deref())
    }
}

/// Selects a PCI function. An absent field matches anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciSelector {
    /// The vendor id.
    pub vendor: Option<GlobWord>,
    /// The device id.
    pub device: Option<GlobWord>,
    /// The first two, four or all six digits of the class.
    pub class: Option<String>,
    /// The kernel driver.
    pub driver: Option<GlobWord>,
    /// Whether all functions of its IOMMU group are one device.
    pub whole_group: bool,
}

impl PciSelector {
    /// Whether this PCI function matches.
    pub fn matches(&self, facts: &PciFacts) -> bool {
        let class = self.class.as_ref();
        matches_glob(self.vendor.as_ref(), Some(&facts.vendor))
            && matches_glob(self.device.as_ref(), Some(&facts.device))
            && matches_glob(self.driver.as_ref(), facts.driver.as_deref())
            && class.is_none_or(|class| facts.class.starts_with(class.as_str()))
    }
}

fn matches_glob(wanted: Option<&GlobWord>, is: Option<&str>) -> bool {
    wanted.is_none_or(|wanted| is.is_some_and(|is| wanted.matches(is)))
}

/// Selects device nodes of a kernel subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemSelector {
    /// The name, as in `/sys/class` and `/sys/bus`.
    pub name: GlobWord,
    /// Files in the node's sysfs directory and patterns for their content.
    pub attributes: BTreeMap<String, GlobWord>,
}

/// One entry of `match`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSelector {
    /// Any device nodes at these paths.
    Path(Glob),
    /// Device nodes or PCI functions with these properties in sysfs.
    Hardware(Box<HardwareSelector>),
    /// All devices of one CDI kind (`vendor/class`).
    Cdi(String),
}

/// Selects device nodes by their properties in sysfs; all conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HardwareSelector {
    /// The path of the node, or of a link to it.
    pub path: Option<Glob>,
    /// The USB device that the node belongs to.
    pub usb: Option<UsbSelector>,
    /// The PCI function that the node belongs to.
    pub pci: Option<PciSelector>,
    /// The subsystem of the node.
    pub subsystem: Option<SubsystemSelector>,
}

impl HardwareSelector {
    /// Whether it selects whole PCI functions with all their nodes, instead of single nodes.
    pub fn is_function(&self) -> bool {
        self.pci.is_some() && self.path.is_none() && self.usb.is_none() && self.subsystem.is_none()
    }

    /// Whether this node matches; `attribute` reads a file of the node's sysfs directory.
    pub fn matches(&self, facts: &NodeFacts, attribute: impl Fn(&str) -> Option<String>) -> bool {
        let path = self.path.as_ref().is_none_or(|path| {
            path.matches(&facts.node) || facts.links.iter().any(|link| path.matches(link))
        });
        let usb = self.usb.as_ref().is_none_or(|usb| {
            // With `usb` alone, only the node of the whole USB device matches, not those of its
            // functions.
            let meant = self.subsystem.is_some() || self.path.is_some() || facts.is_usb_device();
            meant && facts.usb.as_ref().is_some_and(|facts| usb.matches(facts))
        });
        let pci = self
            .pci
            .as_ref()
            .is_none_or(|pci| facts.pci.as_ref().is_some_and(|facts| pci.matches(facts)));
        path && usb
            && pci
            && self.subsystem.as_ref().is_none_or(|subsystem| {
                let mut attributes = subsystem.attributes.iter();
                subsystem.name.matches(&facts.subsystem)
                    && attributes
                        .all(|(file, wanted)| attribute(file).is_some_and(|is| wanted.matches(&is)))
            })
    }
}

/// How nodes are grouped into devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// By the USB port to which they are connected.
    UsbPath,
    /// By the PCI function to which they belong.
    PciAddress,
}

/// A health probe of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthProbe {
    /// A sysfs attribute must have this value.
    Sysfs {
        /// The file, relative to the device's sysfs directory.
        file: String,
        /// The expected value, without the white space around it.
        equals: String,
    },
    /// This systemd unit must be active.
    Unit(String),
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn word(text: &str) -> Option<GlobWord> {
        Some(GlobWord(text.to_owned()))
    }

    fn stick(port: &str, serial: Option<&str>, node: &str) -> NodeFacts {
        let sysfs = |name: &str| format!("/sys/devices/{port}{name}").parse().unwrap();
        NodeFacts {
            node: node.parse().unwrap(),
            links: Vec::new(),
            sysfs: sysfs(if node.starts_with("/dev/bus") {
                ""
            } else {
                "/tty"
            }),
            subsystem: if node.starts_with("/dev/bus") {
                "usb"
            } else {
                "tty"
            }
            .into(),
            usb: Some(Arc::new(UsbFacts {
                port: port.into(),
                vendor: "0403".into(),
                product: "6001".into(),
                serial: serial.map(Into::into),
                sysfs: sysfs(""),
            })),
            pci: None,
        }
    }

    #[test]
    fn a_usb_device_is_its_own_node_unless_functions_are_selected() {
        let usb = UsbSelector {
            vendor: word("0403"),
            ..UsbSelector::default()
        };
        let alone = HardwareSelector {
            usb: Some(usb.clone()),
            ..HardwareSelector::default()
        };
        let tty = HardwareSelector {
            subsystem: Some(SubsystemSelector {
                name: GlobWord("tty".into()),
                attributes: BTreeMap::from([("dev".into(), GlobWord("188:*".into()))]),
            }),
            ..alone.clone()
        };
        let (own, function) = (
            stick("1-1", None, "/dev/bus/usb/001/002"),
            stick("1-1", None, "/dev/ttyUSB0"),
        );
        let dev = |file: &str| (file == "dev").then(|| "188:0".to_owned());
        assert!(alone.matches(&own, dev) && !alone.matches(&function, dev));
        assert!(!tty.matches(&own, dev) && tty.matches(&function, dev));
        assert!(
            !tty.matches(&function, |_| None),
            "the attribute is not there"
        );
    }

    #[test]
    fn a_selected_serial_must_exist() {
        let serial = UsbSelector {
            serial: word("A5*"),
            ..UsbSelector::default()
        };
        for (is, expected) in [(Some("A5XK3RJT"), true), (Some("B5"), false), (None, false)] {
            let facts = stick("1-1", is, "/dev/bus/usb/001/002");
            assert_eq!(serial.matches(facts.usb.as_ref().unwrap()), expected);
        }
    }

    #[test]
    fn a_pci_class_matches_by_prefix() {
        let facts = PciFacts {
            address: "0000:03:00.0".into(),
            vendor: "10de".into(),
            device: "2236".into(),
            class: "030200".into(),
            driver: Some("vfio-pci".into()),
            iommu_group: Some(12),
            numa: Vec::new(),
            sysfs: "/sys/devices/x".parse().unwrap(),
        };
        for (class, driver, expected) in [
            ("03", "vfio-*", true),
            ("0302", "vfio-pci", true),
            ("0300", "vfio-pci", false),
            ("0302", "nvidia", false),
        ] {
            let pci = PciSelector {
                class: Some(class.into()),
                driver: word(driver),
                ..PciSelector::default()
            };
            assert_eq!(pci.matches(&facts), expected, "{class} {driver}");
        }
    }
}
