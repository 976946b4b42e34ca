//! Merges the result of a scan with the known devices of one resource.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    Refusal,
    declaration::{Declaration, DeviceSelector, NumaAffinity},
    flap_detection::DeviceFlapState,
    inventory::{Device, DeviceNode, DeviceSpec, Health},
    resource_name::device_id,
    small_map::SmallMap,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};

/// The maximum number of devices of one resource. The kubelet's message size limits it to some
/// 50,000; a pattern that matches more nodes than this matches the wrong ones.
pub const MAX_DEVICES: usize = 10_000;

/// A device that a scan found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveredDevice {
    /// Its device nodes.
    pub nodes: Vec<DeviceNode>,
    /// Its NUMA nodes as reported by the kernel; empty if it reports none.
    pub numa: Vec<u32>,
    /// Further attributes.
    pub attributes: SmallMap<String>,
    /// Its own device spec; none means that the declaration's applies.
    pub recipe: Option<Box<DeviceSpec>>,
    /// Why it cannot be allocated although it exists.
    pub wrong: Option<String>,
}

/// The result of a scan for one declaration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// By id.
    pub found: BTreeMap<String, DiscoveredDevice>,
    /// Paths that lead to no usable device, and why: `/dev/a is a regular file`.
    pub absent: BTreeMap<AbsPath, String>,
    /// Problems that keep other devices from being found.
    pub problems: Vec<Refusal>,
    /// Devices whose definitions conflict, by id, and why as text.
    pub contested: BTreeMap<String, String>,
    /// Whether there were more than [`MAX_DEVICES`].
    pub cut: bool,
}

/// The presence of each device across scans, by id.
pub type FlapStates = BTreeMap<String, DeviceFlapState>;

/// The result of a merge.
#[derive(Debug)]
pub struct DiscoveryDiff {
    /// The current devices, by id.
    pub devices: BTreeMap<String, Device>,
    /// Problems with the scan result.
    pub problems: Vec<Refusal>,
    /// When to scan again without an event: a flapping device is held back until then.
    pub rescan_in: Option<Duration>,
}

/// Merges the known devices with the result of a scan.
///
/// A device that was listed stays listed while its declaration covers it: the kubelet counts capacity
/// by it, and a pod may hold it. `forget` removes such devices if they do not exist any more.
pub fn merge(
    known: Option<&BTreeMap<String, Device>>,
    declaration: &Declaration,
    discovery: &Discovery,
    flap_states: &mut FlapStates,
    (now, forget): (Duration, bool),
) -> DiscoveryDiff {
    let mut merger = DiscoveryMerger {
        known,
        declaration,
        contested: &discovery.contested,
        flap_states,
        now,
        devices: BTreeMap::new(),
        problems: Vec::new(),
        rescan_in: None,
    };
    if discovery.cut {
        let message =
            format!("the patterns match more than {MAX_DEVICES} nodes; the rest is left out");
        let problem = Refusal::new(Reason::ValueInvalid, message).field("spec.match");
        merger.problems.push(problem);
    }
    merger.problems.extend(discovery.problems.iter().cloned());
    for (id, discovered) in &discovery.found {
        let device = merger.present(id, discovered);
        merger.devices.insert(id.clone(), device);
    }
    for (path, why) in &discovery.absent {
        let id = device_id(path.as_str());
        if !merger.devices.contains_key(&id) {
            let device = merger.absent(&id, &[path.clone().into()], why.clone());
            merger.devices.extend(device.map(|device| (id, device)));
        }
    }
    if !forget {
        merger.keep_removed();
    }
    let DiscoveryMerger {
        devices,
        problems,
        rescan_in,
        ..
    } = merger;
    flap_states.retain(|id, _| devices.contains_key(id));
    DiscoveryDiff {
        // Collect into a new map: a B-tree that was filled in key order has half-empty nodes.
        devices: devices.into_iter().collect(),
        problems,
        rescan_in,
    }
}

struct DiscoveryMerger<'a> {
    known: Option<&'a BTreeMap<String, Device>>,
    declaration: &'a Declaration,
    contested: &'a BTreeMap<String, String>,
    flap_states: &'a mut FlapStates,
    now: Duration,
    devices: BTreeMap<String, Device>,
    problems: Vec<Refusal>,
    rescan_in: Option<Duration>,
}

impl DiscoveryMerger<'_> {
    fn was_listed(&self, id: &str) -> bool {
        let device = self.known.and_then(|known| known.get(id));
        device.is_some_and(|device| device.health != Health::Missing)
    }

    fn present(&mut self, id: &str, discovered: &DiscoveredDevice) -> Device {
        // A device that was saved as absent has no presence yet and becomes allocatable at once, too.
        let is_healthy = discovered.wrong.is_none();
        let flap_state = self.flap_states.entry(id.to_owned());
        let flap_state = flap_state.or_insert(DeviceFlapState::first(is_healthy, self.now));
        flap_state.record_presence(is_healthy, self.now);
        let remaining_hold_time = flap_state.remaining_hold(self.now).unwrap_or_default();
        let flapping = !remaining_hold_time.is_zero();
        if flapping {
            self.rescan_in = Some(
                self.rescan_in
                    .map_or(remaining_hold_time, |other| other.min(remaining_hold_time)),
            );
        }
        let reason = discovered.wrong.clone();
        let reason = reason.or_else(|| {
            let name = name_of(id, &discovered.nodes);
            flapping.then(|| format!("{name} is flapping; it must stay present for a while"))
        });
        Device {
            nodes: discovered.nodes.clone(),
            health: match &reason {
                Some(_) => Health::Unhealthy,
                None => Health::Healthy,
            },
            reason,
            numa: match &self.declaration.numa {
                NumaAffinity::Auto => discovered.numa.clone(),
                NumaAffinity::None => Vec::new(),
                NumaAffinity::Fixed(nodes) => nodes.clone(),
            },
            attributes: discovered.attributes.clone(),
            capacity: self.declaration.capacity.clone(),
            recipe: discovered.recipe.clone(),
        }
    }

    /// A device that a pattern never matched is not listed; one that the declaration names by its
    /// full path is listed as missing, so that the user sees that the declaration was understood.
    fn absent(&mut self, id: &str, nodes: &[DeviceNode], why: String) -> Option<Device> {
        let listed = self.was_listed(id);
        let by_name = |node: &DeviceNode| self.declaration.names(&node.host);
        if !listed && !nodes.iter().any(by_name) {
            return None;
        }
        let flap_state = self.flap_states.entry(id.to_owned());
        flap_state
            .or_insert(DeviceFlapState::first(false, self.now))
            .record_presence(false, self.now);
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

    /// Keeps listed devices that do not exist any more. One that was found by a path stays as long as
    /// a path pattern covers it; with other selectors all of them stay, since hardware that does not
    /// exist cannot be matched.
    fn keep_removed(&mut self) {
        let Some(known) = self.known else { return };
        let by_more_than_paths = self
            .declaration
            .matches
            .iter()
            .any(|entry| !matches!(entry, DeviceSelector::Path(_)));
        // A node that is part of another device now would be allocatable twice.
        let found = self.devices.values().flat_map(|device| &device.nodes);
        let found_nodes: BTreeSet<AbsPath> = found.map(|node| node.host.clone()).collect();
        for (id, device) in known {
            if device.health == Health::Missing || self.devices.contains_key(id) {
                continue;
            }
            let mut nodes = device.nodes.iter().filter(|node| !is_companion(&node.host));
            if nodes.any(|node| found_nodes.contains(&node.host)) {
                continue;
            }
            let covered = |node: &DeviceNode| {
                let mut paths = self.declaration.paths();
                paths.any(|glob| glob.matches(&node.host))
            };
            let covered = by_more_than_paths || device.nodes.iter().any(covered);
            if covered && self.devices.len() < MAX_DEVICES {
                let contested = self.contested.get(id).cloned();
                let why =
                    contested.unwrap_or_else(|| format!("{} is gone", name_of(id, &device.nodes)));
                let kept = self.absent(id, &device.nodes, why);
                self.devices.extend(kept.map(|kept| (id.clone(), kept)));
            }
        }
    }
}

/// Whether the node is shared by many devices and no device itself: every IOMMU group is used through
/// `/dev/vfio/vfio`.
pub fn is_companion(node: &AbsPath) -> bool {
    node.as_str() == "/dev/vfio/vfio"
}

/// The name of a device in messages.
fn name_of<'a>(id: &'a str, nodes: &'a [DeviceNode]) -> &'a str {
    nodes.first().map_or(id, |node| node.host.as_str())
}

#[cfg(test)]
mod tests;
