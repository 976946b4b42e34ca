//! Scans the machine: device nodes below `/dev`, hardware in sysfs, and devices of CDI specs.

mod cdi_specs;
mod match_devices;
mod sysfs;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use self::{cdi_specs::CdiSpecs, match_devices::DeviceFinder, sysfs::Sysfs};
use super::{follow_links::follow, watch_target::WatchDepth};
use crate::{
    Refusal,
    declaration::{Declaration, DeviceSelector},
    discovery::Discovery,
    inventory::Inventory,
    resource_name::ResourceName,
};
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_rootfs::{FileKind, Root};

/// The maximum size of a sysfs attribute, one page.
const MAX_ATTRIBUTE_BYTES: u64 = 4096;

/// The state of systemd units: whether each is active. The state of other units is not known yet.
pub type UnitStates = BTreeMap<String, bool>;

/// The result of a scan.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Found devices, by resource.
    pub(super) discoveries: BTreeMap<ResourceName, Discovery>,
    /// Problems that kept resources from being scanned.
    pub(super) unscanned: Vec<Refusal>,
    /// The directories to watch for changes of the result.
    pub(super) dirs: BTreeMap<AbsPath, WatchDepth>,
}

impl Scan {
    /// Removes devices whose nodes were removed while the scan was under way.
    pub(super) fn remove_nodes(&mut self, removed: &BTreeSet<AbsPath>) {
        for discovered in self.discoveries.values_mut() {
            discovered
                .found
                .retain(|_, one| !one.nodes.iter().any(|node| removed.contains(&node.host)));
        }
    }
}

/// The location of a device node in sysfs.
#[derive(Clone, Debug, Default)]
struct SysfsLocation {
    sysfs: Option<AbsPath>,
    numa: Vec<u32>,
}

/// Scans the machine. Caches the locations of devices, since each takes many small reads.
#[derive(Debug)]
pub(super) struct Scanner {
    root: Root,
    locations: HashMap<(FileKind, (u32, u32)), SysfsLocation>,
}

impl Scanner {
    pub(super) fn new(root: Root) -> Self {
        Self {
            root,
            locations: HashMap::new(),
        }
    }

    /// Clears the cache: device numbers are reused for other devices.
    pub(super) fn clear_cache(&mut self) {
        self.locations.clear();
    }

    pub(super) fn scan<'a>(
        &mut self,
        all: impl Iterator<Item = &'a Declaration>,
        units: &UnitStates,
        known: &Inventory,
    ) -> Scan {
        let all: Vec<_> = all.collect();
        let mut dirs = BTreeMap::new();
        let hardware = all.iter().any(|one| one.asks_hardware());
        let sysfs = hardware.then(|| Sysfs::read(&self.root, &mut dirs));
        let is_cdi = |entry: &DeviceSelector| matches!(entry, DeviceSelector::Cdi(_));
        let cdi = all.iter().any(|one| one.matches.iter().any(is_cdi));
        let specs = cdi.then(|| CdiSpecs::read(&self.root, &mut dirs));
        let (sysfs, specs) = (sysfs.unwrap_or_default(), specs.unwrap_or_default());
        let mut scan = Scan {
            dirs,
            ..Scan::default()
        };
        for declaration in all {
            let finder = DeviceFinder::new(self, declaration, &sysfs, &mut scan.dirs);
            let known = known.resources.get(&declaration.resource);
            match finder.find(&specs, units, known.map(|one| &**one)) {
                Some(discovered) => {
                    scan.discoveries
                        .insert(declaration.resource.clone(), discovered);
                }
                None => scan.unscanned = specs.problems.clone(),
            }
        }
        scan
    }

    /// The location of the device with this number.
    fn location(&mut self, kind: FileKind, number: (u32, u32)) -> SysfsLocation {
        let root = &self.root;
        let location = self.locations.entry((kind, number));
        location
            .or_insert_with(|| sysfs_location(root, kind, number))
            .clone()
    }
}

/// Whether `path` is a device node, with links followed.
pub(super) fn is_device(root: &Root, path: &AbsPath) -> bool {
    let found = follow(root, path).ok().flatten();
    found.is_some_and(|(_, stat)| matches!(stat.kind, FileKind::CharDevice | FileKind::BlockDevice))
}

fn sysfs_location(root: &Root, kind: FileKind, (major, minor): (u32, u32)) -> SysfsLocation {
    let class = if kind == FileKind::BlockDevice {
        "block"
    } else {
        "char"
    };
    // With a name after the link, `canonical` resolves the link itself.
    let inside = AbsPath::new(format!("/sys/dev/{class}/{major}:{minor}/numa_node"));
    let inside = inside.ok().and_then(|path| root.canonical(&path).ok());
    let sysfs = inside.and_then(|inside| inside.parent());
    let sysfs = sysfs.filter(|dir| dir.as_str().starts_with("/sys/devices/"));
    SysfsLocation {
        numa: sysfs
            .as_ref()
            .map(|dir| numa_of(root, dir))
            .unwrap_or_default(),
        sysfs,
    }
}

/// The NUMA nodes of a device: its own, or that of its nearest ancestor that has one. The kernel
/// writes -1 for "none".
fn numa_of(root: &Root, sysfs: &AbsPath) -> Vec<u32> {
    let ancestors = std::iter::once(sysfs.clone())
        .chain(sysfs.ancestors())
        .take_while(|dir| dir.as_str().starts_with("/sys/devices/"));
    let values = ancestors.filter_map(|dir| {
        let text = attribute(root, &dir, "numa_node")?;
        text.parse::<i64>().ok()
    });
    // -1 of a child is no statement about its parent, which is read next.
    values
        .filter_map(|node| u32::try_from(node).ok())
        .take(1)
        .collect()
}

/// The content of a sysfs attribute, without the white space around it.
fn attribute(root: &Root, dir: &AbsPath, file: &str) -> Option<String> {
    // `device/…` may be a link to another directory, which must be in sysfs.
    let path = root.canonical(&dir.join(file).ok()?).ok()?;
    let inside = path.as_str().starts_with("/sys/");
    let text = root
        .read_text(&path, MAX_ATTRIBUTE_BYTES)
        .ok()
        .filter(|_| inside)?;
    Some(text.trim().to_owned())
}

/// The names in a directory; empty if it does not exist. Other errors are logged.
fn names(root: &Root, dir: &AbsPath) -> Result<Vec<String>, ()> {
    match root.list(dir) {
        Ok(entries) => Ok(entries.into_iter().map(|entry| entry.name).collect()),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => {
            tracing::warn!("device scan failed: {}", chain(&error));
            Err(())
        }
    }
}

#[cfg(test)]
mod tests;
