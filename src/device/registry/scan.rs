//! Looking at the machine: what stands below `/dev`, what the kernel says of it, and what CDI specs offer.

mod find;
mod specs;
mod sysfs;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use self::{find::Finder, specs::Specs, sysfs::Sysfs};
use super::watching::Depth;
use crate::{
    device::{
        Refusal,
        declaration::{Declaration, Entry},
        inventory::Inventory,
        name::ResourceName,
        sighting::Sightings,
    },
    path::AbsPath,
    root::{Kind, Root, RootError, Stat},
    telemetry::chain,
};

/// sysfs attributes are one page at most.
const PAGE: u64 = 4096;

/// The state of units of the host: whether they are active. Units that are not named were not asked yet.
pub type UnitStates = BTreeMap<String, bool>;

/// The nearest directory at or above `path` that exists.
pub(super) fn nearest_dir(root: &Root, path: &AbsPath) -> AbsPath {
    let mut all = std::iter::once(path.clone()).chain(path.ancestors());
    all.find(|dir| root.is_dir(dir).unwrap_or(false))
        .unwrap_or_else(AbsPath::root)
}

/// What one look brought.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// By resource.
    pub(super) sightings: BTreeMap<ResourceName, Sightings>,
    /// What kept something from being seen.
    pub(super) unseen: Vec<Refusal>,
    /// The directories that decide what is seen.
    pub(super) dirs: BTreeMap<AbsPath, Depth>,
}

impl Scan {
    /// Takes back what went while it was looked at.
    pub(super) fn without(&mut self, gone: &BTreeSet<AbsPath>) {
        for seen in self.sightings.values_mut() {
            seen.found
                .retain(|_, one| !one.nodes.iter().any(|node| gone.contains(&node.host)));
        }
    }
}

/// Where a device node stands in sysfs.
#[derive(Clone, Debug, Default)]
struct Place {
    sysfs: Option<AbsPath>,
    numa: Vec<u32>,
}

/// Looks at the machine. Remembers where devices are, which is many small files for each.
#[derive(Debug)]
pub(super) struct Scanner {
    root: Root,
    places: HashMap<(Kind, (u32, u32)), Place>,
}

impl Scanner {
    pub(super) fn new(root: Root) -> Self {
        Self {
            root,
            places: HashMap::new(),
        }
    }

    /// Forgets where devices are: numbers are used again for others.
    pub(super) fn forget(&mut self) {
        self.places.clear();
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
        let is_cdi = |entry: &Entry| matches!(entry, Entry::Cdi(_));
        let cdi = all.iter().any(|one| one.matches.iter().any(is_cdi));
        let specs = cdi.then(|| Specs::read(&self.root, &mut dirs));
        let (sysfs, specs) = (sysfs.unwrap_or_default(), specs.unwrap_or_default());
        let mut scan = Scan {
            dirs,
            ..Scan::default()
        };
        for declaration in all {
            let finder = Finder::new(self, declaration, &sysfs, &mut scan.dirs);
            let known = known.resources.get(&declaration.resource);
            match finder.find(&specs, units, known.map(|one| &**one)) {
                Some(seen) => {
                    scan.sightings.insert(declaration.resource.clone(), seen);
                }
                None => scan.unseen = specs.problems.clone(),
            }
        }
        scan
    }

    /// Where the device of this number stands.
    fn place(&mut self, kind: Kind, number: (u32, u32)) -> Place {
        let root = &self.root;
        let place = self.places.entry((kind, number));
        place
            .or_insert_with(|| place_of(root, kind, number))
            .clone()
    }
}

/// Whether a device node stands at `path`, links followed.
pub(super) fn is_device(root: &Root, path: &AbsPath) -> bool {
    let found = follow(root, path).ok().flatten();
    found.is_some_and(|(_, stat)| matches!(stat.kind, Kind::CharDevice | Kind::BlockDevice))
}

/// The object that `path` leads to, and where it is.
pub fn follow(root: &Root, path: &AbsPath) -> Result<Option<(AbsPath, Stat)>, RootError> {
    let mut at = root.canonical(path)?;
    for _ in 0..crate::root::MOST_LINKS {
        let Some(stat) = root.stat(&at)? else {
            return Ok(None);
        };
        if stat.kind != Kind::Link {
            return Ok(Some((at, stat)));
        }
        let target = root.read_link(&at)?;
        let Some(next) = joined(&at, &target) else {
            return Ok(None);
        };
        at = root.canonical(&next)?;
    }
    Ok(None)
}

/// Where `target`, written in the link at `link`, leads. The link's directory has no links in it,
/// so that leading `..` can be taken by name.
fn joined(link: &AbsPath, target: &str) -> Option<AbsPath> {
    let mut base = link.parent()?;
    if target.starts_with('/') {
        base = AbsPath::root();
    }
    let mut rest = target.trim_start_matches('/').trim_end_matches('/');
    while let Some(up) = rest.strip_prefix("../") {
        base = base.parent().unwrap_or_else(AbsPath::root);
        rest = up;
    }
    base.join(rest.trim_start_matches("./")).ok()
}

fn place_of(root: &Root, kind: Kind, (major, minor): (u32, u32)) -> Place {
    let class = if kind == Kind::BlockDevice {
        "block"
    } else {
        "char"
    };
    // The name behind the link makes the link itself be followed.
    let inside = AbsPath::new(format!("/sys/dev/{class}/{major}:{minor}/numa_node"));
    let inside = inside.ok().and_then(|path| root.canonical(&path).ok());
    let sysfs = inside.and_then(|inside| inside.parent());
    let sysfs = sysfs.filter(|dir| dir.as_str().starts_with("/sys/devices/"));
    Place {
        numa: sysfs
            .as_ref()
            .map(|dir| numa_of(root, dir))
            .unwrap_or_default(),
        sysfs,
    }
}

/// The NUMA nodes of a device: its own, or that of the nearest device it hangs on. The kernel
/// writes -1 for "none", which is no node.
fn numa_of(root: &Root, sysfs: &AbsPath) -> Vec<u32> {
    let hangs_on = std::iter::once(sysfs.clone())
        .chain(sysfs.ancestors())
        .take_while(|dir| dir.as_str().starts_with("/sys/devices/"));
    let written = hangs_on.filter_map(|dir| {
        let text = attribute(root, &dir, "numa_node")?;
        text.parse::<i64>().ok()
    });
    // -1 of a child says nothing of its parent, which is asked next.
    written
        .filter_map(|node| u32::try_from(node).ok())
        .take(1)
        .collect()
}

/// What a file in a directory of sysfs says, without the white space around it.
fn attribute(root: &Root, dir: &AbsPath, file: &str) -> Option<String> {
    // `device/…` is a link to another directory of sysfs, and to nowhere else.
    let path = root.canonical(&dir.join(file).ok()?).ok()?;
    let inside = path.as_str().starts_with("/sys/");
    let text = root.read_text(&path, PAGE).ok().filter(|_| inside)?;
    Some(text.trim().to_owned())
}

/// The names in a directory; none where it is not there. An error is told and gives none.
fn names(root: &Root, dir: &AbsPath) -> Result<Vec<String>, ()> {
    match root.list(dir) {
        Ok(entries) => Ok(entries.into_iter().map(|entry| entry.name).collect()),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => {
            tracing::warn!("cannot look for devices: {}", chain(&error));
            Err(())
        }
    }
}

#[cfg(test)]
mod tests;
