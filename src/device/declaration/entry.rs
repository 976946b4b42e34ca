//! One entry of `match`: hardware as a declaration names it.

use std::collections::BTreeMap;

use crate::device::{
    facts::{NodeFacts, PciFacts, UsbFacts},
    glob::{Glob, component_matches},
};

/// A pattern for one word: `*`, `?` and `[a-z]` stand for what they stand for in shells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word(pub(super) String);

impl Word {
    /// Whether `text` is one that this pattern means.
    pub fn matches(&self, text: &str) -> bool {
        component_matches(&self.0, text)
    }
}

/// A USB device. What is not said matches anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usb {
    /// `idVendor`.
    pub vendor: Option<Word>,
    /// `idProduct`.
    pub product: Option<Word>,
    /// The serial number; a device without one matches only where it is not asked for.
    pub serial: Option<Word>,
}

impl Usb {
    /// Whether this is one.
    pub fn matches(&self, facts: &UsbFacts) -> bool {
        said(self.vendor.as_ref(), Some(&facts.vendor))
            && said(self.product.as_ref(), Some(&facts.product))
            && said(self.serial.as_ref(), facts.serial.as_deref())
    }
}

/// A PCI function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pci {
    /// Its vendor.
    pub vendor: Option<Word>,
    /// Its device id.
    pub device: Option<Word>,
    /// The first two, four or all six digits of its class.
    pub class: Option<String>,
    /// Who drives it.
    pub driver: Option<Word>,
    /// All functions of its IOMMU group are one device.
    pub whole_group: bool,
}

impl Pci {
    /// Whether this is one.
    pub fn matches(&self, facts: &PciFacts) -> bool {
        let class = self.class.as_ref();
        said(self.vendor.as_ref(), Some(&facts.vendor))
            && said(self.device.as_ref(), Some(&facts.device))
            && said(self.driver.as_ref(), facts.driver.as_deref())
            && class.is_none_or(|class| facts.class.starts_with(class.as_str()))
    }
}

fn said(wanted: Option<&Word>, is: Option<&str>) -> bool {
    wanted.is_none_or(|wanted| is.is_some_and(|is| wanted.matches(is)))
}

/// Nodes of one of the kernel's subsystems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subsystem {
    /// Its name, as below `/sys/class` and `/sys/bus`.
    pub name: Word,
    /// Files in the node's directory of sysfs, and what they say.
    pub attributes: BTreeMap<String, Word>,
}

/// What one entry finds; all of it must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// What stands at these paths, whatever it is.
    Path(Glob),
    /// Nodes that the kernel knows.
    Hardware(Box<Hardware>),
    /// All devices of one kind (`vendor/class`) of the container device interface.
    Cdi(String),
}

/// Nodes by what they are and what they hang on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// The paths they may be found at, links included.
    pub path: Option<Glob>,
    /// The USB device.
    pub usb: Option<Usb>,
    /// The PCI function.
    pub pci: Option<Pci>,
    /// The subsystem.
    pub subsystem: Option<Subsystem>,
}

impl Hardware {
    /// Whether whole PCI functions are meant, with all their nodes, and not single nodes.
    pub fn is_function(&self) -> bool {
        self.pci.is_some() && self.path.is_none() && self.usb.is_none() && self.subsystem.is_none()
    }

    /// Whether this node is one; `attribute` reads a file of its directory in sysfs.
    pub fn matches(&self, facts: &NodeFacts, attribute: impl Fn(&str) -> Option<String>) -> bool {
        let path = self.path.as_ref().is_none_or(|path| {
            path.matches(&facts.node) || facts.links.iter().any(|link| path.matches(link))
        });
        let usb = self.usb.as_ref().is_none_or(|usb| {
            // A stick's own node, unless its functions are asked for.
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

/// What makes several nodes one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// The USB port they hang on.
    UsbPath,
    /// The PCI function they belong to.
    PciAddress,
}

/// What a device must be, besides there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A file in its directory of sysfs says just this.
    Sysfs {
        /// Relative to the device's directory.
        file: String,
        /// Without the white space around it.
        equals: String,
    },
    /// A unit of the host is active.
    Unit(String),
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn word(text: &str) -> Option<Word> {
        Some(Word(text.to_owned()))
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
    fn a_stick_is_its_own_node_unless_its_functions_are_asked_for() {
        let usb = Usb {
            vendor: word("0403"),
            ..Usb::default()
        };
        let alone = Hardware {
            usb: Some(usb.clone()),
            ..Hardware::default()
        };
        let tty = Hardware {
            subsystem: Some(Subsystem {
                name: Word("tty".into()),
                attributes: BTreeMap::from([("dev".into(), Word("188:*".into()))]),
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
    fn a_serial_that_is_asked_for_must_be_there() {
        let serial = Usb {
            serial: word("A5*"),
            ..Usb::default()
        };
        for (is, expected) in [(Some("A5XK3RJT"), true), (Some("B5"), false), (None, false)] {
            let facts = stick("1-1", is, "/dev/bus/usb/001/002");
            assert_eq!(serial.matches(facts.usb.as_ref().unwrap()), expected);
        }
    }

    #[test]
    fn a_class_is_given_by_its_first_digits() {
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
            let pci = Pci {
                class: Some(class.into()),
                driver: word(driver),
                ..Pci::default()
            };
            assert_eq!(pci.matches(&facts), expected, "{class} {driver}");
        }
    }
}
