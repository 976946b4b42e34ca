//! Hardware properties from sysfs that declarations can select by.

use std::sync::Arc;

use machinist_base::abs_path::AbsPath;

/// A USB device. Numbers are four hexadecimal digits in lower case, as in sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsbFacts {
    /// The port: bus and ports, such as `1-1.2`. It is stable while the device stays plugged in
    /// there.
    pub port: String,
    /// `idVendor`.
    pub vendor: String,
    /// `idProduct`.
    pub product: String,
    /// Its serial number, if it has one.
    pub serial: Option<String>,
    /// Its directory in sysfs.
    pub sysfs: AbsPath,
}

/// A PCI function. Numbers are hexadecimal digits in lower case without `0x`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFacts {
    /// Domain, bus, device and function, such as `0000:03:00.0`.
    pub address: String,
    /// The vendor id, four digits.
    pub vendor: String,
    /// The device id, four digits.
    pub device: String,
    /// Six digits: class, subclass, programming interface.
    pub class: String,
    /// Its kernel driver, if one is bound.
    pub driver: Option<String>,
    /// Its IOMMU group: the functions that can only be passed through together.
    pub iommu_group: Option<u32>,
    /// Its NUMA node, if it has one.
    pub numa: Vec<u32>,
    /// Its directory in sysfs.
    pub sysfs: AbsPath,
}

/// A device node and the hardware it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// The kernel's name for it, below `/dev`.
    pub node: AbsPath,
    /// Links to it that stay the same when the kernel's name changes: by-id first, then by-path.
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
    /// Whether it is the node of the USB device as a whole, and not of one of its functions.
    pub fn is_usb_device(&self) -> bool {
        let usb = self.usb.as_ref();
        usb.is_some_and(|usb| usb.sysfs == self.sysfs)
    }

    /// The host path by which it is passed to containers. For USB this is the link by port: of two
    /// devices with the same id, the by-id link leads to the one that was plugged in last.
    pub fn stable(&self) -> &AbsPath {
        let by_path = |link: &&AbsPath| link.as_str().contains("/by-path/");
        let link = match self.usb {
            Some(_) => self.links.iter().find(by_path),
            None => self.links.first(),
        };
        link.unwrap_or(&self.node)
    }
}
