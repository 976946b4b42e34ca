//! Reads all device nodes, USB devices and PCI functions from sysfs.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{attribute, names, numa_of};
use crate::{
    registry::{
        follow_links::{follow, joined},
        watch_target::WatchDepth,
    },
    sysfs_facts::{NodeFacts, PciFacts, UsbFacts},
};
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Root;

/// The directories of stable links, in order of preference.
const STABLE_LINK_DIRS: [&str; 2] = ["by-id", "by-path"];

/// A snapshot of the hardware in sysfs.
#[derive(Debug, Default)]
pub(super) struct Sysfs {
    /// Device nodes, by their sysfs directory.
    pub(super) nodes: BTreeMap<AbsPath, NodeFacts>,
    /// PCI functions by address.
    pub(super) functions: BTreeMap<String, Arc<PciFacts>>,
    /// Whether something could not be read: the snapshot may be incomplete then.
    pub(super) unread: bool,
}

impl Sysfs {
    /// Reads sysfs, and adds the directories below `/dev` to watch to `dirs`. Hardware without a
    /// device node is only noticed by uevents.
    pub(super) fn read(root: &Root, dirs: &mut BTreeMap<AbsPath, WatchDepth>) -> Self {
        let (functions, mut unread) = match functions(root) {
            Ok(functions) => (functions, false),
            Err(()) => (HashMap::new(), true),
        };
        let mut reader = SysfsReader {
            root,
            usb: HashMap::new(),
            functions,
        };
        let links = links(root, dirs);
        let mut nodes = BTreeMap::new();
        for class in ["char", "block"] {
            let devices = reader.devices(class);
            unread |= devices.is_err();
            for sysfs in devices.unwrap_or_default() {
                if let Some(mut facts) = reader.node(&sysfs) {
                    facts.links = links.get(&facts.node).cloned().unwrap_or_default();
                    nodes.insert(sysfs, facts);
                }
            }
        }
        let functions = reader.functions.into_values();
        Self {
            nodes,
            functions: functions.map(|one| (one.address.clone(), one)).collect(),
            unread,
        }
    }
}

struct SysfsReader<'a> {
    root: &'a Root,
    /// By sysfs directory; none for directories that are no USB device.
    usb: HashMap<AbsPath, Option<Arc<UsbFacts>>>,
    /// By sysfs directory.
    functions: HashMap<AbsPath, Arc<PciFacts>>,
}

impl SysfsReader<'_> {
    /// The sysfs directories of all devices of a class, `char` or `block`.
    fn devices(&self, class: &str) -> Result<Vec<AbsPath>, ()> {
        let Ok(dir) = AbsPath::new(format!("/sys/dev/{class}")) else {
            return Ok(Vec::new());
        };
        let numbers = names(self.root, &dir)?;
        let target = |number: String| {
            let link = dir.join(&number).ok()?;
            joined(&link, &self.root.read_link(&link).ok()?)
        };
        Ok(numbers.into_iter().filter_map(target).collect())
    }

    fn node(&mut self, sysfs: &AbsPath) -> Option<NodeFacts> {
        let uevent = attribute(self.root, sysfs, "uevent")?;
        let name = uevent
            .lines()
            .find_map(|line| line.strip_prefix("DEVNAME="))?;
        let node = AbsPath::new(format!("/dev/{name}")).ok()?;
        let subsystem = link_name(self.root, sysfs, "subsystem").unwrap_or_default();
        let above: Vec<_> = std::iter::once(sysfs.clone())
            .chain(sysfs.ancestors())
            .take_while(|dir| dir.as_str().starts_with("/sys/devices/"))
            .collect();
        let pci = above
            .iter()
            .find_map(|dir| self.functions.get(dir).cloned());
        Some(NodeFacts {
            node,
            links: Vec::new(),
            sysfs: sysfs.clone(),
            subsystem,
            usb: above.iter().find_map(|dir| self.usb(dir)),
            pci,
        })
    }

    fn usb(&mut self, dir: &AbsPath) -> Option<Arc<UsbFacts>> {
        if let Some(known) = self.usb.get(dir) {
            return known.clone();
        }
        let read = |file: &str| attribute(self.root, dir, file);
        let facts = read("idVendor").and_then(|vendor| {
            let serial = read("serial").filter(|serial| !serial.is_empty());
            Some(Arc::new(UsbFacts {
                port: dir.file_name().to_owned(),
                vendor,
                product: read("idProduct")?,
                serial,
                sysfs: dir.clone(),
            }))
        });
        self.usb.insert(dir.clone(), facts.clone());
        facts
    }
}

/// All PCI functions, by sysfs directory.
fn functions(root: &Root) -> Result<HashMap<AbsPath, Arc<PciFacts>>, ()> {
    let Ok(dir) = AbsPath::new("/sys/bus/pci/devices") else {
        return Ok(HashMap::new());
    };
    let function = |address: String| {
        let link = dir.join(&address).ok()?;
        let sysfs = joined(&link, &root.read_link(&link).ok()?)?;
        let hex = |file: &str| {
            let text = attribute(root, &sysfs, file)?;
            Some(text.trim_start_matches("0x").to_ascii_lowercase())
        };
        let facts = PciFacts {
            vendor: hex("vendor")?,
            device: hex("device")?,
            class: hex("class")?,
            driver: link_name(root, &sysfs, "driver"),
            iommu_group: link_name(root, &sysfs, "iommu_group").and_then(|name| name.parse().ok()),
            numa: numa_of(root, &sysfs),
            sysfs: sysfs.clone(),
            address,
        };
        Some((sysfs, Arc::new(facts)))
    };
    let all = names(root, &dir)?;
    Ok(all.into_iter().filter_map(function).collect())
}

/// The last component of a link's target in a sysfs directory.
fn link_name(root: &Root, dir: &AbsPath, link: &str) -> Option<String> {
    let target = root.read_link(&dir.join(link).ok()?).ok()?;
    target.rsplit('/').next().map(str::to_owned)
}

/// Stable links by the node to which they lead, the preferred kind first.
fn links(root: &Root, dirs: &mut BTreeMap<AbsPath, WatchDepth>) -> BTreeMap<AbsPath, Vec<AbsPath>> {
    let mut links: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let Ok(dev) = AbsPath::new("/dev") else {
        return links;
    };
    dirs.insert(dev.clone(), WatchDepth::Names);
    for name in names(root, &dev).unwrap_or_default() {
        let Ok(dir) = dev.join(&name) else { continue };
        if !root.is_dir(&dir).unwrap_or(false) {
            continue;
        }
        for kind in STABLE_LINK_DIRS
            .iter()
            .filter_map(|kind| dir.join(kind).ok())
        {
            let found = names(root, &kind).unwrap_or_default();
            if !found.is_empty() {
                dirs.insert(dir.clone(), WatchDepth::Names);
                dirs.insert(kind.clone(), WatchDepth::Names);
            }
            for link in found.iter().filter_map(|name| kind.join(name).ok()) {
                if let Ok(Some((node, _))) = follow(root, &link) {
                    links.entry(node).or_default().push(link);
                }
            }
        }
    }
    links
}
