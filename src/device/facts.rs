//! What the kernel says of hardware: the part of sysfs that declarations go by.

use std::sync::Arc;

use crate::path::AbsPath;

/// A USB device. Numbers are four hexadecimal digits in lower case, as sysfs writes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsbFacts {
    /// Where it is plugged in: bus, ports, such as `1-1.2`. Stable while it stays there.
    pub port: String,
    /// `idVendor`.
    pub vendor: String,
    /// `idProduct`.
    pub product: String,
    /// Its serial number, where it has one.
    pub serial: Option<String>,
    /// Its directory in sysfs.
    pub sysfs: AbsPath,
}

/// A PCI function. Numbers are hexadecimal digits in lower case without `0x`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFacts {
    /// Domain, bus, device and function, such as `0000:03:00.0`.
    pub address: String,
    /// Four digits.
    pub vendor: String,
    /// Four digits.
    pub device: String,
    /// Six digits: class, subclass, programming interface.
    pub class: String,
    /// Who drives it, where somebody does.
    pub driver: Option<String>,
    /// Which functions can only be given away together.
    pub iommu_group: Option<u32>,
    /// The NUMA node it is on, where there is one.
    pub numa: Vec<u32>,
    /// Its directory in sysfs.
    pub sysfs: AbsPath,
}

/// A device node, and what it hangs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// The kernel's name for it, below `/dev`.
    pub node: AbsPath,
    /// Links to it that keep their names when the kernel's changes: by what it is, then by where.
    pub links: Vec<AbsPath>,
    /// Its directory in sysfs.
    pub sysfs: AbsPath,
    /// Its subsystem, such as `tty`.
    pub subsystem: String,
    /// The USB device it belongs to.
    pub usb: Option<Arc<UsbFacts>>,
    /// The PCI function it belongs to.
    pub pci: Option<Arc<PciFacts>>,
}

impl NodeFacts {
    /// Whether it stands for the USB device as a whole, and not for one of its functions.
    pub fn is_usb_device(&self) -> bool {
        let usb = self.usb.as_ref();
        usb.is_some_and(|usb| usb.sysfs == self.sysfs)
    }

    /// The path by which it is handed out. On USB by where it is plugged in: names by what it is are those of
    /// whichever of two equal sticks came last.
    pub fn stable(&self) -> &AbsPath {
        let by_path = |link: &&AbsPath| link.as_str().contains("/by-path/");
        let link = match self.usb {
            Some(_) => self.links.iter().find(by_path),
            None => self.links.first(),
        };
        link.unwrap_or(&self.node)
    }
}
