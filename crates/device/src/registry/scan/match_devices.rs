//! Finds the devices that one declaration selects.

mod match_cdi;
mod match_hardware;

use std::collections::BTreeMap;

use super::{CdiSpecs, Scanner, Sysfs, UnitStates, attribute, is_device, names};
use crate::{
    Refusal,
    declaration::{Declaration, DeviceSelector, GroupBy, HealthProbe},
    discovery::{DiscoveredDevice, Discovery, MAX_DEVICES, is_companion},
    glob::Glob,
    inventory::{DeviceNode, Resource},
    registry::{
        follow_links::follow,
        watch_target::{WatchDepth, nearest_dir},
    },
    resource_name::device_id,
};
use machinist_base::{abs_path::AbsPath, error_chain::chain, reason::Reason, text::is_misleading};
use machinist_rootfs::FileKind;

/// A device before it is known whether it belongs to a group or is a duplicate.
#[derive(Debug, Default)]
struct DeviceCandidate {
    id: String,
    discovered: DiscoveredDevice,
    /// Its directory in sysfs.
    sysfs: Option<AbsPath>,
    /// The kernel's identities of its nodes, by which duplicates under another name are found.
    identities: Vec<NodeIdentity>,
    /// The USB port it is connected to.
    port: Option<String>,
    /// The PCI function it belongs to.
    address: Option<String>,
    /// Whether it is known that all its nodes exist and are devices.
    nodes_checked: bool,
}

/// A node's identity in the kernel, independent of its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NodeIdentity {
    /// Its directory in sysfs.
    Sysfs(AbsPath),
    /// Whether it is a block device, and its device number, for devices that are not in sysfs.
    Number(bool, (u32, u32)),
}

impl NodeIdentity {
    fn of(sysfs: Option<&AbsPath>, kind: FileKind, number: (u32, u32)) -> Option<Self> {
        match sysfs {
            Some(sysfs) => Some(Self::Sysfs(sysfs.clone())),
            // No driver has this number, so such a node is no working device.
            None if number == (0, 0) => None,
            None => Some(Self::Number(kind == FileKind::BlockDevice, number)),
        }
    }
}

pub(super) struct DeviceFinder<'a> {
    scanner: &'a mut Scanner,
    declaration: &'a Declaration,
    sysfs: &'a Sysfs,
    dirs: &'a mut BTreeMap<AbsPath, WatchDepth>,
    candidates: Vec<DeviceCandidate>,
    /// The id of the device that each node is part of.
    nodes: BTreeMap<AbsPath, String>,
    /// The id of the device that has each identity.
    identities: BTreeMap<NodeIdentity, String>,
    discovery: Discovery,
}

impl<'a> DeviceFinder<'a> {
    pub(super) fn new(
        scanner: &'a mut Scanner,
        declaration: &'a Declaration,
        sysfs: &'a Sysfs,
        dirs: &'a mut BTreeMap<AbsPath, WatchDepth>,
    ) -> Self {
        Self {
            scanner,
            declaration,
            sysfs,
            dirs,
            candidates: Vec::new(),
            nodes: BTreeMap::new(),
            identities: BTreeMap::new(),
            discovery: Discovery::default(),
        }
    }

    /// Finds all devices of the declaration; none if something that it depends on could not be read,
    /// and the known devices stay listed then. If a device has several names, the name in `known`
    /// wins, since a container may have the device by that name.
    pub(super) fn find(
        mut self,
        specs: &CdiSpecs,
        units: &UnitStates,
        known: Option<&Resource>,
    ) -> Option<Discovery> {
        let declaration = self.declaration;
        for entry in &declaration.matches {
            match entry {
                DeviceSelector::Path(glob) => self.paths(glob)?,
                DeviceSelector::Hardware(_) if self.sysfs.unread => return None,
                // If no device is known yet, an incomplete list is better than an empty one.
                DeviceSelector::Cdi(_)
                    if specs.unread && known.is_some_and(|it| !it.devices.is_empty()) =>
                {
                    return None;
                }
                DeviceSelector::Hardware(wanted) => self.hardware(wanted),
                DeviceSelector::Cdi(kind) => self.cdi(kind, specs),
            }
        }
        if let Some(by) = declaration.group {
            if self.sysfs.unread {
                return None;
            }
            self.group(by);
        }
        let is_new =
            |one: &DeviceCandidate| known.is_none_or(|it| !it.devices.contains_key(&one.id));
        self.candidates.sort_by_key(is_new);
        for candidate in std::mem::take(&mut self.candidates) {
            self.add_device(candidate, units);
        }
        Some(self.discovery)
    }

    fn paths(&mut self, glob: &Glob) -> Option<()> {
        let root = self.scanner.root.clone();
        let (mut is_complete, dirs) = (true, &mut *self.dirs);
        let (paths, cut) = glob.expand(MAX_DEVICES, |dir| {
            dirs.entry(nearest_dir(&root, dir))
                .or_insert(WatchDepth::Names);
            let found = names(&root, dir);
            is_complete &= found.is_ok();
            let mut found = found.unwrap_or_default();
            found.retain(|name| !name.contains(is_misleading));
            found
        });
        self.discovery.cut |= cut;
        for together in paths.chunk_by(|one, two| one.is_sibling_of(two)) {
            if let Some(dir) = together[0].parent() {
                let nearest = nearest_dir(&root, &dir);
                self.dirs.entry(nearest).or_insert(WatchDepth::Names);
                self.inspect_dir(&dir, together);
            }
        }
        is_complete.then_some(())
    }

    /// Inspects `paths`, which are all in `dir`: one stat call for each, and more calls only for
    /// links and for what is no device.
    fn inspect_dir(&mut self, dir: &AbsPath, paths: &[AbsPath]) {
        let root = self.scanner.root.clone();
        let below_dev = paths.first().is_some_and(|path| {
            let path = root.canonical(path);
            path.is_ok_and(|path| path.as_str().starts_with("/dev/"))
        });
        let names = paths.iter().map(AbsPath::file_name);
        let stats = root.stat_each(dir, names).unwrap_or_default();
        for (at, path) in paths.iter().enumerate() {
            let stat = stats.get(at).and_then(Option::as_ref);
            match stat.map(|stat| (stat.kind, stat.rdev)) {
                Some((kind @ (FileKind::CharDevice | FileKind::BlockDevice), Some(number)))
                    if below_dev =>
                {
                    self.add_node(path.clone(), kind, number);
                }
                _ => self.inspect_path(path.clone()),
            }
        }
    }

    /// Inspects `path`, with links followed.
    fn inspect_path(&mut self, path: AbsPath) {
        let absent = match follow(&self.scanner.root, &path) {
            Ok(Some((target, _))) if !target.as_str().starts_with("/dev/") => {
                let why = format!("{path} is a link to {target}, outside /dev, not a device node");
                // Other files that match a pattern are ignored; a link was probably meant to lead to
                // a device.
                if !self.declaration.names(&path) {
                    let problem = Refusal::new(Reason::ValueInvalid, why.clone());
                    self.discovery.problems.push(problem.field("spec.match"));
                }
                why
            }
            Ok(Some((_, stat))) => match (stat.kind, stat.rdev) {
                (kind @ (FileKind::CharDevice | FileKind::BlockDevice), Some(number)) => {
                    return self.add_node(path, kind, number);
                }
                (kind, _) => format!("{path} is a {}, not a device node", kind.as_str()),
            },
            Ok(None) => format!("{path} does not exist"),
            Err(error) => format!(
                "{path} is unreadable ({}), not a device node",
                chain(&error)
            ),
        };
        self.discovery.absent.insert(path, absent);
    }

    fn add_node(&mut self, path: AbsPath, kind: FileKind, number: (u32, u32)) {
        let location = self.scanner.location(kind, number);
        let facts = location.sysfs.as_ref();
        let facts = facts.and_then(|sysfs| self.sysfs.nodes.get(sysfs));
        let candidate = DeviceCandidate {
            id: device_id(path.as_str()),
            discovered: DiscoveredDevice {
                nodes: vec![path.into()],
                numa: location.numa,
                ..DiscoveredDevice::default()
            },
            port: facts.and_then(|facts| Some(facts.usb.as_ref()?.port.clone())),
            address: facts.and_then(|facts| Some(facts.pci.as_ref()?.address.clone())),
            identities: NodeIdentity::of(location.sysfs.as_ref(), kind, number)
                .into_iter()
                .collect(),
            sysfs: location.sysfs,
            nodes_checked: true,
        };
        self.candidates.push(candidate);
    }

    /// Merges all nodes of one USB port or PCI function into one device.
    fn group(&mut self, by: GroupBy) {
        let mut groups: BTreeMap<String, DeviceCandidate> = BTreeMap::new();
        for one in std::mem::take(&mut self.candidates) {
            let (key, id, what) = match by {
                GroupBy::UsbPath => (&one.port, "usb", "is not on a USB port"),
                GroupBy::PciAddress => (&one.address, "pci", "is not part of a PCI function"),
            };
            let Some(key) = key else {
                let message = format!("{} {what}; ignoring it", one.id);
                let problem = Refusal::new(Reason::ValueInvalid, message).field("spec.group");
                self.discovery.problems.push(problem);
                continue;
            };
            let id = format!("{id}-{}", key.replace(':', "-"));
            match groups.get_mut(&id) {
                Some(group) => group.merge(one),
                None => {
                    let named = DeviceCandidate {
                        id: id.clone(),
                        ..one
                    };
                    groups.insert(id, named);
                }
            }
        }
        self.candidates = groups.into_values().collect();
    }

    fn add_device(&mut self, mut candidate: DeviceCandidate, units: &UnitStates) {
        if self.is_known(&candidate) || self.is_alias(&candidate) {
            return;
        }
        if self.discovery.found.len() >= MAX_DEVICES {
            self.discovery.cut = true;
            return;
        }
        if candidate.discovered.wrong.is_none() {
            candidate.discovered.wrong = self.wrong(&candidate, units);
        }
        for node in own_nodes(&candidate.discovered) {
            self.nodes.insert(node.host.clone(), candidate.id.clone());
        }
        for identity in candidate.identities {
            self.identities.insert(identity, candidate.id.clone());
        }
        self.discovery
            .found
            .insert(candidate.id, candidate.discovered);
    }

    /// Whether the id is in use: the device was found twice, or another device has the same id, which
    /// is reported as a problem.
    fn is_known(&mut self, candidate: &DeviceCandidate) -> bool {
        let Some(known) = self.discovery.found.get(&candidate.id) else {
            return false;
        };
        let new = &candidate.discovered;
        if (&known.nodes, &known.recipe) != (&new.nodes, &new.recipe) {
            let (one, two, id) = (named(new), named(known), &candidate.id);
            self.report_duplicate(format!(
                "{one} and {two} have the same id {id:?}; the first is ignored"
            ));
        }
        true
    }

    /// Whether a node of it is advertised under another name already, which is reported as a problem.
    /// Examples are functions of one IOMMU group that are grouped by address, or udev's links to one
    /// disk.
    fn is_alias(&mut self, candidate: &DeviceCandidate) -> bool {
        let id = &candidate.id;
        let mut nodes = own_nodes(&candidate.discovered);
        let mut identities = candidate.identities.iter();
        let message = if let Some((node, other)) =
            nodes.find_map(|node| self.nodes.get_key_value(&node.host))
        {
            format!("{node} of {id} is already part of {other}; ignoring {id}")
        } else if let Some(other) = identities.find_map(|identity| self.identities.get(identity)) {
            format!("{id} is another name of {other}; ignoring {id}")
        } else {
            return false;
        };
        self.report_duplicate(message);
        true
    }

    fn report_duplicate(&mut self, message: String) {
        let problem = Refusal::new(Reason::EntryDuplicate, message).field("spec.match");
        self.discovery.problems.push(problem);
    }

    /// Why a device that was found cannot be allocated.
    fn wrong(&self, candidate: &DeviceCandidate, units: &UnitStates) -> Option<String> {
        let root = &self.scanner.root;
        let mut nodes = candidate.discovered.nodes.iter();
        let missing = |node: &&DeviceNode| !candidate.nodes_checked && !is_device(root, &node.host);
        if let Some(missing) = nodes.find(missing) {
            return Some(format!("{} does not exist", missing.host));
        }
        self.declaration
            .probes
            .iter()
            .find_map(|probe| match probe {
                HealthProbe::Unit(unit) => {
                    // A unit whose state is not known yet counts as active.
                    let dead = units.get(unit) == Some(&false);
                    dead.then(|| format!("{unit} is not active"))
                }
                HealthProbe::Sysfs { file, equals } => {
                    let Some(dir) = &candidate.sysfs else {
                        return Some(format!("no sysfs directory to read {file} from"));
                    };
                    match attribute(root, dir, file) {
                        Some(is) if is == *equals => None,
                        Some(is) => Some(format!("{file} is {is:?}, expected {equals:?}")),
                        None => Some(format!("{file} cannot be read in {dir}")),
                    }
                }
            })
    }
}

/// Its nodes without companion nodes, which many devices share.
fn own_nodes(discovered: &DiscoveredDevice) -> impl Iterator<Item = &DeviceNode> {
    discovered
        .nodes
        .iter()
        .filter(|node| !is_companion(&node.host))
}

/// The name of a device in messages.
fn named(discovered: &DiscoveredDevice) -> String {
    let cdi = discovered
        .recipe
        .iter()
        .flat_map(|recipe| &recipe.cdi)
        .last();
    match (discovered.nodes.first(), cdi) {
        (Some(node), _) => node.host.to_string(),
        (None, Some(name)) => name.as_str().to_owned(),
        (None, None) => "another".to_owned(),
    }
}

impl DeviceCandidate {
    fn merge(&mut self, other: Self) {
        for node in other.discovered.nodes {
            if !self.discovered.nodes.contains(&node) {
                self.discovered.nodes.push(node);
            }
        }
        if self.discovered.numa.is_empty() {
            self.discovered.numa = other.discovered.numa;
        }
        if self.discovered.wrong.is_none() {
            self.discovered.wrong = other.discovered.wrong;
        }
        self.discovered
            .attributes
            .extend(other.discovered.attributes);
        self.sysfs = self.sysfs.take().or(other.sysfs);
        self.identities.extend(other.identities);
        self.nodes_checked &= other.nodes_checked;
    }
}
