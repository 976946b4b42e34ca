//! From one declaration to the devices that it finds.

mod hardware;
mod specified;

use std::collections::BTreeMap;

use super::{Scanner, Specs, Sysfs, UnitStates, attribute, follow, is_device, names, nearest_dir};
use crate::{
    device::{
        Refusal,
        declaration::{Declaration, Entry, GroupBy, Probe},
        glob::Glob,
        inventory::{DeviceNode, Resource},
        name::device_id,
        registry::watching::Depth,
        sighting::{MOST_DEVICES, Sighted, Sightings, is_companion},
    },
    path::AbsPath,
    reason::Reason,
    root::Kind,
    telemetry::chain,
    words::is_misleading,
};

/// A device before it is known whether others belong to it.
#[derive(Debug, Default)]
struct Candidate {
    id: String,
    sighted: Sighted,
    /// Its directory in sysfs.
    sysfs: Option<AbsPath>,
    /// What its nodes are to the kernel, by which it is known under another name.
    places: Vec<Identity>,
    /// The USB port it hangs on.
    port: Option<String>,
    /// The PCI function it belongs to.
    address: Option<String>,
    /// All its nodes were looked at and are devices.
    looked_at: bool,
}

/// What a node is to the kernel, whatever its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    /// Its directory in sysfs.
    Sysfs(AbsPath),
    /// Whether it is a block device, and its number: sysfs does not list every device.
    Number(bool, (u32, u32)),
}

impl Identity {
    fn of(sysfs: Option<&AbsPath>, kind: Kind, number: (u32, u32)) -> Option<Self> {
        match sysfs {
            Some(sysfs) => Some(Self::Sysfs(sysfs.clone())),
            // No driver has this number; a node of it is no device at all.
            None if number == (0, 0) => None,
            None => Some(Self::Number(kind == Kind::BlockDevice, number)),
        }
    }
}

pub(super) struct Finder<'a> {
    scanner: &'a mut Scanner,
    declaration: &'a Declaration,
    sysfs: &'a Sysfs,
    dirs: &'a mut BTreeMap<AbsPath, Depth>,
    candidates: Vec<Candidate>,
    /// The device that each node is part of.
    nodes: BTreeMap<AbsPath, String>,
    /// The same by what the nodes are to the kernel.
    places: BTreeMap<Identity, String>,
    seen: Sightings,
}

impl<'a> Finder<'a> {
    pub(super) fn new(
        scanner: &'a mut Scanner,
        declaration: &'a Declaration,
        sysfs: &'a Sysfs,
        dirs: &'a mut BTreeMap<AbsPath, Depth>,
    ) -> Self {
        Self {
            scanner,
            declaration,
            sysfs,
            dirs,
            candidates: Vec::new(),
            nodes: BTreeMap::new(),
            places: BTreeMap::new(),
            seen: Sightings::default(),
        }
    }

    /// Everything that the declaration finds; none when something that it goes by could not be read, and then
    /// nothing is known: what is lent stays as it is. Of several names of one device the one by which it is lent
    /// already counts, by `known`; a container may have it.
    pub(super) fn find(
        mut self,
        specs: &Specs,
        units: &UnitStates,
        known: Option<&Resource>,
    ) -> Option<Sightings> {
        let declaration = self.declaration;
        for entry in &declaration.matches {
            match entry {
                Entry::Path(glob) => self.paths(glob)?,
                Entry::Hardware(_) if self.sysfs.unread => return None,
                // Where nothing is lent yet, some are better than none.
                Entry::Cdi(_) if specs.unread && known.is_some_and(|it| !it.devices.is_empty()) => {
                    return None;
                }
                Entry::Hardware(wanted) => self.hardware(wanted),
                Entry::Cdi(kind) => self.cdi(kind, specs),
            }
        }
        if let Some(by) = declaration.group {
            if self.sysfs.unread {
                return None;
            }
            self.group(by);
        }
        let is_new = |one: &Candidate| known.is_none_or(|it| !it.devices.contains_key(&one.id));
        self.candidates.sort_by_key(is_new);
        for candidate in std::mem::take(&mut self.candidates) {
            self.take(candidate, units);
        }
        Some(self.seen)
    }

    fn paths(&mut self, glob: &Glob) -> Option<()> {
        let root = self.scanner.root.clone();
        let (mut whole, dirs) = (true, &mut *self.dirs);
        let (paths, cut) = glob.expand(MOST_DEVICES, |dir| {
            dirs.entry(nearest_dir(&root, dir)).or_insert(Depth::Names);
            let found = names(&root, dir);
            whole &= found.is_ok();
            let mut found = found.unwrap_or_default();
            found.retain(|name| !name.contains(is_misleading));
            found
        });
        self.seen.cut |= cut;
        for together in paths.chunk_by(|one, two| one.is_beside(two)) {
            if let Some(dir) = together[0].parent() {
                let nearest = nearest_dir(&root, &dir);
                self.dirs.entry(nearest).or_insert(Depth::Names);
                self.in_dir(&dir, together);
            }
        }
        whole.then_some(())
    }

    /// What stands at `paths`, which are all in `dir`: one call for each, and more only for links and for what
    /// is no device.
    fn in_dir(&mut self, dir: &AbsPath, paths: &[AbsPath]) {
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
                Some((kind @ (Kind::CharDevice | Kind::BlockDevice), Some(number)))
                    if below_dev =>
                {
                    self.node(path.clone(), kind, number);
                }
                _ => self.path(path.clone()),
            }
        }
    }

    /// What stands at `path`, links followed.
    fn path(&mut self, path: AbsPath) {
        let absent = match follow(&self.scanner.root, &path) {
            Ok(Some((target, _))) if !target.as_str().starts_with("/dev/") => {
                let why = format!("{path} is a link to {target}, outside /dev, no device node");
                // Whatever has a pattern's name and is no device is left out; a link was meant for one.
                if !self.declaration.names(&path) {
                    let problem = Refusal::new(Reason::ValueInvalid, why.clone());
                    self.seen.problems.push(problem.field("spec.match"));
                }
                why
            }
            Ok(Some((_, stat))) => match (stat.kind, stat.rdev) {
                (kind @ (Kind::CharDevice | Kind::BlockDevice), Some(number)) => {
                    return self.node(path, kind, number);
                }
                (kind, _) => format!("{path} is a {}, no device node", kind.as_str()),
            },
            Ok(None) => format!("{path} does not exist"),
            Err(error) => format!("{path} is unreadable ({}), no device node", chain(&error)),
        };
        self.seen.absent.insert(path, absent);
    }

    fn node(&mut self, path: AbsPath, kind: Kind, number: (u32, u32)) {
        let place = self.scanner.place(kind, number);
        let facts = place.sysfs.as_ref();
        let facts = facts.and_then(|sysfs| self.sysfs.nodes.get(sysfs));
        let candidate = Candidate {
            id: device_id(path.as_str()),
            sighted: Sighted {
                nodes: vec![path.into()],
                numa: place.numa,
                ..Sighted::default()
            },
            port: facts.and_then(|facts| Some(facts.usb.as_ref()?.port.clone())),
            address: facts.and_then(|facts| Some(facts.pci.as_ref()?.address.clone())),
            places: Identity::of(place.sysfs.as_ref(), kind, number)
                .into_iter()
                .collect(),
            sysfs: place.sysfs,
            looked_at: true,
        };
        self.candidates.push(candidate);
    }

    /// Makes one device of all that hang together.
    fn group(&mut self, by: GroupBy) {
        let mut groups: BTreeMap<String, Candidate> = BTreeMap::new();
        for one in std::mem::take(&mut self.candidates) {
            let (key, id, what) = match by {
                GroupBy::UsbPath => (&one.port, "usb", "hangs on no USB port"),
                GroupBy::PciAddress => (&one.address, "pci", "belongs to no PCI function"),
            };
            let Some(key) = key else {
                let message = format!("{} {what}; it is left out", one.id);
                let problem = Refusal::new(Reason::ValueInvalid, message).field("spec.group");
                self.seen.problems.push(problem);
                continue;
            };
            let id = format!("{id}-{}", key.replace(':', "-"));
            match groups.get_mut(&id) {
                Some(group) => group.join(one),
                None => {
                    let named = Candidate {
                        id: id.clone(),
                        ..one
                    };
                    groups.insert(id, named);
                }
            }
        }
        self.candidates = groups.into_values().collect();
    }

    fn take(&mut self, mut candidate: Candidate, units: &UnitStates) {
        if self.is_known(&candidate) || self.is_other_name(&candidate) {
            return;
        }
        if self.seen.found.len() >= MOST_DEVICES {
            self.seen.cut = true;
            return;
        }
        if candidate.sighted.wrong.is_none() {
            candidate.sighted.wrong = self.wrong(&candidate, units);
        }
        for node in own_nodes(&candidate.sighted) {
            self.nodes.insert(node.host.clone(), candidate.id.clone());
        }
        for place in candidate.places {
            self.places.insert(place, candidate.id.clone());
        }
        self.seen.found.insert(candidate.id, candidate.sighted);
    }

    /// Whether its id is taken: it was found twice, or another one is called so, which is told.
    fn is_known(&mut self, candidate: &Candidate) -> bool {
        let Some(known) = self.seen.found.get(&candidate.id) else {
            return false;
        };
        let new = &candidate.sighted;
        if (&known.nodes, &known.recipe) != (&new.nodes, &new.recipe) {
            let (one, two, id) = (named(new), named(known), &candidate.id);
            self.double(format!(
                "{one} and {two} would both be called {id:?}; the first is left out"
            ));
        }
        true
    }

    /// Whether all of it or a part is lent by another name already, which is told. Functions of one IOMMU group that
    /// are grouped by their addresses, for one, or links of udev's to one disk.
    fn is_other_name(&mut self, candidate: &Candidate) -> bool {
        let id = &candidate.id;
        let mut nodes = own_nodes(&candidate.sighted);
        let mut places = candidate.places.iter();
        let message = if let Some((node, other)) =
            nodes.find_map(|node| self.nodes.get_key_value(&node.host))
        {
            format!("{node} of {id} is part of {other} already; {id} is left out")
        } else if let Some(other) = places.find_map(|place| self.places.get(place)) {
            format!("{id} is {other} by another name; {id} is left out")
        } else {
            return false;
        };
        self.double(message);
        true
    }

    fn double(&mut self, message: String) {
        let problem = Refusal::new(Reason::EntryDuplicate, message).field("spec.match");
        self.seen.problems.push(problem);
    }

    /// Why a device that was found cannot be lent.
    fn wrong(&self, candidate: &Candidate, units: &UnitStates) -> Option<String> {
        let root = &self.scanner.root;
        let mut nodes = candidate.sighted.nodes.iter();
        let gone = |node: &&DeviceNode| !candidate.looked_at && !is_device(root, &node.host);
        if let Some(gone) = nodes.find(gone) {
            return Some(format!("{} does not exist", gone.host));
        }
        self.declaration
            .probes
            .iter()
            .find_map(|probe| match probe {
                Probe::Unit(unit) => {
                    // What was not asked yet is believed.
                    let dead = units.get(unit) == Some(&false);
                    dead.then(|| format!("{unit} is not active"))
                }
                Probe::Sysfs { file, equals } => {
                    let Some(dir) = &candidate.sysfs else {
                        return Some(format!("it has no directory in sysfs to read {file} from"));
                    };
                    match attribute(root, dir, file) {
                        Some(is) if is == *equals => None,
                        Some(is) => Some(format!("{file} says {is:?}, not {equals:?}")),
                        None => Some(format!("{file} cannot be read in {dir}")),
                    }
                }
            })
    }
}

/// Its nodes without those that every device of its kind is used through.
fn own_nodes(sighted: &Sighted) -> impl Iterator<Item = &DeviceNode> {
    sighted
        .nodes
        .iter()
        .filter(|node| !is_companion(&node.host))
}

/// What people know it by.
fn named(sighted: &Sighted) -> String {
    let cdi = sighted.recipe.iter().flat_map(|recipe| &recipe.cdi).last();
    match (sighted.nodes.first(), cdi) {
        (Some(node), _) => node.host.to_string(),
        (None, Some(name)) => name.as_str().to_owned(),
        (None, None) => "another".to_owned(),
    }
}

impl Candidate {
    fn join(&mut self, other: Self) {
        for node in other.sighted.nodes {
            if !self.sighted.nodes.contains(&node) {
                self.sighted.nodes.push(node);
            }
        }
        if self.sighted.numa.is_empty() {
            self.sighted.numa = other.sighted.numa;
        }
        if self.sighted.wrong.is_none() {
            self.sighted.wrong = other.sighted.wrong;
        }
        self.sighted.attributes.extend(other.sighted.attributes);
        self.sysfs = self.sysfs.take().or(other.sysfs);
        self.places.extend(other.places);
        self.looked_at &= other.looked_at;
    }
}
