//! Validates the selectors of a declaration: paths, hardware and CDI kinds.

use super::{
    super::{
        matcher::{
            DeviceSelector, GlobWord, GroupBy, HardwareSelector, PciSelector, SubsystemSelector,
            UsbSelector,
        },
        schema,
    },
    DeclarationValidator,
};
use crate::{cdi, glob::Glob};
use machinist_base::reason::Reason;

/// The maximum number of selectors. One declaration describes one kind of device; a longer list is
/// generated and could be a pattern instead.
const MAX_MATCHES: usize = 64;
/// The maximum length of a word pattern. A sysfs attribute has at most one page; real patterns are
/// far shorter.
const MAX_GLOB_WORD_LEN: usize = 256;

impl DeclarationValidator<'_> {
    pub(super) fn matches(&mut self, given: Vec<schema::MatchDoc>) -> Vec<DeviceSelector> {
        if given.is_empty() || given.len() > MAX_MATCHES {
            let message = match given.len() {
                0 => "no device is matched".to_owned(),
                count => format!("{count} entries"),
            };
            self.value("spec.match", message, "1 to 64 entries");
        }
        let entries = given.into_iter().enumerate();
        entries
            .filter_map(|(at, one)| self.entry(&format!("spec.match[{at}]"), one))
            .collect()
    }

    fn entry(&mut self, field: &str, given: schema::MatchDoc) -> Option<DeviceSelector> {
        if let Some(cdi) = given.cdi {
            let alone = given.path.is_none()
                && given.usb.is_none()
                && given.pci.is_none()
                && given.subsystem.is_none();
            if !alone {
                self.value(
                    field,
                    "cdi cannot be combined with other keys",
                    "a separate entry for cdi",
                );
            }
            let kind = cdi::CdiKind::new(&cdi.kind).map_err(|error| {
                self.value(
                    &format!("{field}.cdi.kind"),
                    error.to_string(),
                    "vendor/class",
                );
            });
            return kind.ok().map(|kind| DeviceSelector::Cdi(kind.to_string()));
        }
        let path = match given.path {
            Some(path) => Some(self.glob(&format!("{field}.path"), &path)?),
            None => None,
        };
        let hardware = HardwareSelector {
            path,
            usb: given.usb.map(|usb| self.usb(&format!("{field}.usb"), usb)),
            pci: given.pci.map(|pci| self.pci(&format!("{field}.pci"), pci)),
            subsystem: given
                .subsystem
                .and_then(|one| self.subsystem(&format!("{field}.subsystem"), one)),
        };
        match hardware {
            HardwareSelector {
                path: Some(path),
                usb: None,
                pci: None,
                subsystem: None,
            } => Some(DeviceSelector::Path(path)),
            hardware if hardware == HardwareSelector::default() => {
                self.value(
                    field,
                    "the entry is empty",
                    "path, usb, pci, subsystem or cdi",
                );
                None
            }
            hardware => Some(DeviceSelector::Hardware(Box::new(hardware))),
        }
    }

    fn glob(&mut self, field: &str, given: &str) -> Option<Glob> {
        let expected = "an absolute path below /dev, with *, ? or [a-z] within components";
        match Glob::new(given) {
            Ok(glob) if glob.as_str().starts_with("/dev/") => Some(glob),
            Ok(_) => {
                let message = format!("{given:?} is not below /dev");
                self.refuse(Reason::PathInvalid, field, message, expected);
                None
            }
            Err(error) => {
                self.refuse(Reason::PathInvalid, field, error.to_string(), expected);
                None
            }
        }
    }

    fn usb(&mut self, field: &str, given: schema::Usb) -> UsbSelector {
        if given.vendor.is_none() && given.product.is_none() && given.serial.is_none() {
            self.value(
                field,
                "no condition on the device",
                "vendor, product or serial",
            );
        }
        UsbSelector {
            vendor: self.number(&format!("{field}.vendor"), given.vendor),
            product: self.number(&format!("{field}.product"), given.product),
            serial: self.word(&format!("{field}.serial"), given.serial),
        }
    }

    fn pci(&mut self, field: &str, given: schema::Pci) -> PciSelector {
        let empty = given.vendor.is_none()
            && given.device.is_none()
            && given.class.is_none()
            && given.driver.is_none();
        if empty {
            self.value(
                field,
                "no condition on the PCI function",
                "vendor, device, class or driver",
            );
        }
        let class = given.class.map(|class| class.to_ascii_lowercase());
        if let Some(class) = &class
            && !(matches!(class.len(), 2 | 4 | 6) && class.bytes().all(|c| c.is_ascii_hexdigit()))
        {
            let message = format!("{class:?} is not a PCI class");
            self.value(
                &format!("{field}.class"),
                message,
                "2, 4 or 6 hexadecimal digits, such as 0302",
            );
        }
        if let Some(group) = &given.iommu_group
            && group != "whole"
        {
            let message = format!("{group:?} is not known");
            self.value(&format!("{field}.iommuGroup"), message, "whole");
        }
        PciSelector {
            vendor: self.number(&format!("{field}.vendor"), given.vendor),
            device: self.number(&format!("{field}.device"), given.device),
            class,
            driver: self.word(&format!("{field}.driver"), given.driver),
            whole_group: given.iommu_group.is_some(),
        }
    }

    fn subsystem(&mut self, field: &str, given: schema::Subsystem) -> Option<SubsystemSelector> {
        let name = self.word(&format!("{field}.name"), Some(given.name))?;
        let mut attributes = std::collections::BTreeMap::new();
        for (file, value) in given.attributes {
            let at = format!("{field}.attributes.{file}");
            self.attribute(&at, &file);
            if let Some(value) = self.word(&at, Some(value)) {
                attributes.insert(file, value);
            }
        }
        Some(SubsystemSelector { name, attributes })
    }

    /// Checks the name of a sysfs attribute, which must be below the device's directory.
    pub(super) fn attribute(&mut self, field: &str, file: &str) {
        let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        if file.len() > MAX_GLOB_WORD_LEN || !file.split('/').all(plain) {
            let expected = "a file in the device's directory of sysfs, such as device/state";
            self.refuse(
                Reason::PathInvalid,
                field,
                format!("{file:?} is not an attribute file"),
                expected,
            );
        }
    }

    /// Checks the four hexadecimal digits of a vendor or product id, which sysfs writes without `0x`.
    fn number(&mut self, field: &str, given: Option<String>) -> Option<GlobWord> {
        let given = given?.to_ascii_lowercase();
        let wild = given.contains(['*', '?', '[']);
        let digits = given.bytes().all(|c| c.is_ascii_hexdigit());
        if !(wild || given.len() == 4 && digits) {
            let expected = "four hexadecimal digits in quotes, without 0x, such as \"0403\"";
            self.value(
                field,
                format!("{given:?} is not a hexadecimal ID"),
                expected,
            );
        }
        self.word(field, Some(given))
    }

    fn word(&mut self, field: &str, given: Option<String>) -> Option<GlobWord> {
        let given = given?;
        let closed = Glob::new(&format!("/{}", given.replace('/', "_"))).is_ok();
        if given.is_empty() || given.len() > MAX_GLOB_WORD_LEN || !closed {
            let expected = "1 to 256 characters, with *, ? or [a-z]";
            self.value(field, format!("{given:?} is not a valid pattern"), expected);
            return None;
        }
        Some(GlobWord(given))
    }

    pub(super) fn group(&mut self, given: Option<schema::Group>) -> Option<GroupBy> {
        match given?.by.as_str() {
            "usbPath" => Some(GroupBy::UsbPath),
            "pciAddress" => Some(GroupBy::PciAddress),
            other => {
                let message = format!("{other:?} is not known");
                self.value("spec.group.by", message, "usbPath or pciAddress");
                None
            }
        }
    }
}
