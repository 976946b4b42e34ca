//! From what was seen below `/dev` to the devices of one resource.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Refusal,
    declaration::{Declaration, Numa},
    inventory::{Device, Health},
    name::device_id,
    presence::Presence,
};
use crate::{path::AbsPath, reason::Reason};

/// As many devices as one resource may have. The kubelet's message limit lies at some 50,000;
/// a pattern that matches more than this many nodes matches the wrong ones.
pub const MOST_DEVICES: usize = 10_000;

/// What was found at one path that a declaration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// A device node, or a link to one.
    Device {
        /// NUMA nodes as the kernel names them; empty when it names none.
        numa: Vec<u32>,
    },
    /// Nothing.
    Absent,
    /// Something that cannot be lent, in words: `a regular file`.
    Other(String),
}

/// Everything that was seen for one declaration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sightings {
    /// By path, in the order of paths.
    pub looks: BTreeMap<AbsPath, Look>,
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
    for (node, look) in &seen.looks {
        merger.seen(node, look);
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
        devices,
        problems,
        again_in,
    }
}

struct Merger<'a> {
    known: Option<&'a BTreeMap<String, Device>>,
    declaration: &'a Declaration,
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

    fn seen(&mut self, node: &AbsPath, look: &Look) {
        let id = device_id(node.as_str());
        if let Some(other) = self.devices.get(&id) {
            let message = format!(
                "{node} and {} would both be called {id:?}; the first is left out",
                other
                    .nodes
                    .first()
                    .map_or("another", |node| node.host.as_str())
            );
            let problem = Refusal::new(Reason::EntryDuplicate, message).field("spec.match");
            self.problems.push(problem);
            return;
        }
        let device = match look {
            Look::Device { numa } => self.present(&id, node, numa),
            Look::Absent => self.absent(&id, node, format!("{node} does not exist")),
            Look::Other(kind) => {
                self.absent(&id, node, format!("{node} is {kind}, no device node"))
            }
        };
        self.devices.extend(device.map(|device| (id, device)));
    }

    fn present(&mut self, id: &str, node: &AbsPath, numa: &[u32]) -> Option<Device> {
        // A device that was saved as gone has no presence yet and is believed at once, too.
        let presence = self.presences.entry(id.to_owned());
        let presence = presence.or_insert(Presence::first(true, self.now));
        presence.look(true, self.now);
        let held = presence.held_for(self.now).unwrap_or_default();
        let flapping = !held.is_zero();
        if flapping {
            self.again_in = Some(self.again_in.map_or(held, |other| other.min(held)));
        }
        Some(Device {
            nodes: vec![node.clone().into()],
            attributes: BTreeMap::new(),
            recipe: None,
            health: if flapping {
                Health::Unhealthy
            } else {
                Health::Healthy
            },
            reason: flapping.then(|| format!("{node} comes and goes; it must stay for a while")),
            numa: match &self.declaration.numa {
                Numa::Auto => numa.to_vec(),
                Numa::None => Vec::new(),
                Numa::Fixed(nodes) => nodes.clone(),
            },
        })
    }

    /// Devices of patterns that were never there are nothing; one that is called by its full name
    /// is shown as missing, so that its owner sees that the declaration is understood.
    fn absent(&mut self, id: &str, node: &AbsPath, why: String) -> Option<Device> {
        let listed = self.was_listed(id);
        let by_name = || {
            self.declaration
                .paths
                .iter()
                .any(|glob| glob.literal() == Some(node))
        };
        if !listed && !by_name() {
            return None;
        }
        let presence = self.presences.entry(id.to_owned());
        presence
            .or_insert(Presence::first(false, self.now))
            .look(false, self.now);
        let known = self.known.and_then(|known| known.get(id));
        Some(Device {
            nodes: vec![node.clone().into()],
            attributes: known
                .map(|known| known.attributes.clone())
                .unwrap_or_default(),
            recipe: None,
            health: if listed {
                Health::Unhealthy
            } else {
                Health::Missing
            },
            reason: Some(why),
            numa: known.map(|known| known.numa.clone()).unwrap_or_default(),
        })
    }

    fn keep_gone(&mut self) {
        let Some(known) = self.known else { return };
        for (id, device) in known {
            if device.health == Health::Missing {
                continue;
            }
            let Some(node) = device.nodes.first() else {
                continue;
            };
            let covered = self
                .declaration
                .paths
                .iter()
                .any(|glob| glob.matches(&node.host));
            let room = self.devices.len() < MOST_DEVICES;
            if covered && room && !self.devices.contains_key(id) {
                let why = format!("{} is gone", node.host);
                let kept = self.absent(id, &node.host, why);
                self.devices.extend(kept.map(|kept| (id.clone(), kept)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
