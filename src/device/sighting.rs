//! From what was seen of the machine to the devices of one resource.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    Refusal,
    declaration::{Declaration, Entry, Numa},
    inventory::{Device, DeviceNode, Health, Recipe},
    name::device_id,
    pairs::Pairs,
    presence::Presence,
};
use crate::{path::AbsPath, reason::Reason};

/// As many devices as one resource may have. The kubelet's message limit lies at some 50,000;
/// a pattern that matches more than this many nodes matches the wrong ones.
pub const MOST_DEVICES: usize = 10_000;

/// A device that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sighted {
    /// Its nodes.
    pub nodes: Vec<DeviceNode>,
    /// NUMA nodes as the kernel names them; empty when it names none.
    pub numa: Vec<u32>,
    /// What else is known of it.
    pub attributes: Pairs<String>,
    /// What a container gets with it, where that is not what the declaration says of all.
    pub recipe: Option<Box<Recipe>>,
    /// Why it cannot be lent although it is there.
    pub wrong: Option<String>,
}

/// Everything that was seen for one declaration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sightings {
    /// By id.
    pub found: BTreeMap<String, Sighted>,
    /// Paths that lead to nothing that can be lent, and why: `/dev/a is a regular file`.
    pub absent: BTreeMap<AbsPath, String>,
    /// What keeps others from being found.
    pub problems: Vec<Refusal>,
    /// Devices that are there and that nobody can tell from others, by id, and why in words.
    pub contested: BTreeMap<String, String>,
    /// Whether there were more than [`MOST_DEVICES`].
    pub cut: bool,
}

/// What is remembered of each device between looks, by id.
pub type Presences = BTreeMap<String, Presence>;

/// What a look changes.
#[derive(Debug)]
pub struct Merged {
    /// The devices as they are now, by id.
    pub devices: BTreeMap<String, Device>,
    /// What is wrong with what was seen.
    pub problems: Vec<Refusal>,
    /// When to look again although nothing happened: a device is being held back until then.
    pub again_in: Option<Duration>,
}

/// Joins what was known with what was seen.
///
/// A device that was listed once stays listed while its declaration covers it: the kubelet counts
/// capacity by it, and a pod may hold it. `forget` ends that for devices that are gone.
pub fn merge(
    known: Option<&BTreeMap<String, Device>>,
    declaration: &Declaration,
    seen: &Sightings,
    presences: &mut Presences,
    (now, forget): (Duration, bool),
) -> Merged {
    let mut merger = Merger {
        known,
        declaration,
        contested: &seen.contested,
        presences,
        now,
        devices: BTreeMap::new(),
        problems: Vec::new(),
        again_in: None,
    };
    if seen.cut {
        let message =
            format!("the patterns match more than {MOST_DEVICES} nodes; the rest is left out");
        let problem = Refusal::new(Reason::ValueInvalid, message).field("spec.match");
        merger.problems.push(problem);
    }
    merger.problems.extend(seen.problems.iter().cloned());
    for (id, sighted) in &seen.found {
        let device = merger.present(id, sighted);
        merger.devices.insert(id.clone(), device);
    }
    for (path, why) in &seen.absent {
        let id = device_id(path.as_str());
        if !merger.devices.contains_key(&id) {
            let device = merger.absent(&id, &[path.clone().into()], why.clone());
            merger.devices.extend(device.map(|device| (id, device)));
        }
    }
    if !forget {
        merger.keep_gone();
    }
    let Merger {
        devices,
        problems,
        again_in,
        ..
    } = merger;
    presences.retain(|id, _| devices.contains_key(id));
    Merged {
        // Anew: a tree that grew entry by entry in their order is half empty.
        devices: devices.into_iter().collect(),
        problems,
        again_in,
    }
}

struct Merger<'a> {
    known: Option<&'a BTreeMap<String, Device>>,
    declaration: &'a Declaration,
    contested: &'a BTreeMap<String, String>,
    presences: &'a mut Presences,
    now: Duration,
    devices: BTreeMap<String, Device>,
    problems: Vec<Refusal>,
    again_in: Option<Duration>,
}

impl Merger<'_> {
    fn was_listed(&self, id: &str) -> bool {
        let device = self.known.and_then(|known| known.get(id));
        device.is_some_and(|device| device.health != Health::Missing)
    }

    fn present(&mut self, id: &str, sighted: &Sighted) -> Device {
        // A device that was saved as gone has no presence yet and is believed at once, too.
        let well = sighted.wrong.is_none();
        let presence = self.presences.entry(id.to_owned());
        let presence = presence.or_insert(Presence::first(well, self.now));
        presence.look(well, self.now);
        let held = presence.held_for(self.now).unwrap_or_default();
        let flapping = !held.is_zero();
        if flapping {
            self.again_in = Some(self.again_in.map_or(held, |other| other.min(held)));
        }
        let reason = sighted.wrong.clone();
        let reason = reason.or_else(|| {
            let name = name_of(id, &sighted.nodes);
            flapping.then(|| format!("{name} comes and goes; it must stay for a while"))
        });
        Device {
            nodes: sighted.nodes.clone(),
            health: match &reason {
                Some(_) => Health::Unhealthy,
                None => Health::Healthy,
            },
            reason,
            numa: match &self.declaration.numa {
                Numa::Auto => sighted.numa.clone(),
                Numa::None => Vec::new(),
                Numa::Fixed(nodes) => nodes.clone(),
            },
            attributes: sighted.attributes.clone(),
            capacity: self.declaration.capacity.clone(),
            recipe: sighted.recipe.clone(),
        }
    }

    /// Devices of patterns that were never there are nothing; one that is called by its full name
    /// is shown as missing, so that its owner sees that the declaration is understood.
    fn absent(&mut self, id: &str, nodes: &[DeviceNode], why: String) -> Option<Device> {
        let listed = self.was_listed(id);
        let by_name = |node: &DeviceNode| self.declaration.names(&node.host);
        if !listed && !nodes.iter().any(by_name) {
            return None;
        }
        let presence = self.presences.entry(id.to_owned());
        presence
            .or_insert(Presence::first(false, self.now))
            .look(false, self.now);
        let known = self.known.and_then(|known| known.get(id));
        Some(Device {
            nodes: nodes.to_vec(),
            health: if listed {
                Health::Unhealthy
            } else {
                Health::Missing
            },
            reason: Some(why),
            numa: known.map(|known| known.numa.clone()).unwrap_or_default(),
            attributes: known
                .map(|known| known.attributes.clone())
                .unwrap_or_default(),
            capacity: self.declaration.capacity.clone(),
            recipe: known.and_then(|known| known.recipe.clone()),
        })
    }

    /// Devices that were found by a path stay as long as a path covers them; what hardware was asked for
    /// cannot be said of a device that is gone, so all of those stay.
    fn keep_gone(&mut self) {
        let Some(known) = self.known else { return };
        let by_more_than_paths = self
            .declaration
            .matches
            .iter()
            .any(|entry| !matches!(entry, Entry::Path(_)));
        // What is part of another device now would be lent twice.
        let found = self.devices.values().flat_map(|device| &device.nodes);
        let elsewhere: BTreeSet<AbsPath> = found.map(|node| node.host.clone()).collect();
        for (id, device) in known {
            if device.health == Health::Missing || self.devices.contains_key(id) {
                continue;
            }
            let mut nodes = device.nodes.iter().filter(|node| !is_companion(&node.host));
            if nodes.any(|node| elsewhere.contains(&node.host)) {
                continue;
            }
            let covered = |node: &DeviceNode| {
                let mut paths = self.declaration.paths();
                paths.any(|glob| glob.matches(&node.host))
            };
            let covered = by_more_than_paths || device.nodes.iter().any(covered);
            if covered && self.devices.len() < MOST_DEVICES {
                let contested = self.contested.get(id).cloned();
                let why =
                    contested.unwrap_or_else(|| format!("{} is gone", name_of(id, &device.nodes)));
                let kept = self.absent(id, &device.nodes, why);
                self.devices.extend(kept.map(|kept| (id.clone(), kept)));
            }
        }
    }
}

/// Whether the node comes with many devices and is none of them: every IOMMU group is used through this one.
pub fn is_companion(node: &AbsPath) -> bool {
    node.as_str() == "/dev/vfio/vfio"
}

/// What people call a device by.
fn name_of<'a>(id: &'a str, nodes: &'a [DeviceNode]) -> &'a str {
    nodes.first().map_or(id, |node| node.host.as_str())
}

#[cfg(test)]
mod tests;
