//! A plugin's list as the registry takes it.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    device::{Device, Health, rules::HIGHEST_NUMA},
    kubelet::api::v1beta1 as api,
};

/// The kubelet takes ids of any length and keeps each in its checkpoint several times. No plugin that is
/// known comes near this.
pub(super) const LONGEST_ID: usize = 253;
/// As much of a plugin's own word for a device's health as is shown.
const LONGEST_WORD: usize = 64;

/// Devices by the id that the plugin gave them.
pub(super) type Devices = BTreeMap<String, Device>;

/// What one message says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct List {
    pub(super) devices: Arc<Devices>,
    /// Ids that are none: empty, or too long.
    pub(super) refused: usize,
    /// Devices beyond what the vendor may have; the last ones by id are left out.
    pub(super) cut: usize,
}

/// Reads a message, of which at most `most` devices are kept.
pub(super) fn read(message: api::ListAndWatchResponse, most: usize) -> List {
    let mut list = List::default();
    let mut devices = Devices::new();
    for one in message.devices {
        if one.id.is_empty() || one.id.len() > LONGEST_ID {
            list.refused += 1;
        } else {
            let device = device(&one);
            devices.insert(one.id, device);
        }
    }
    list.cut = cut(&mut devices, most);
    list.devices = Arc::new(devices);
    list
}

/// Leaves out what is beyond `most`; says how many.
pub(super) fn cut(devices: &mut Devices, most: usize) -> usize {
    let over = devices.len().saturating_sub(most);
    for _ in 0..over {
        devices.pop_last();
    }
    over
}

/// Comparison is exact, as the kubelet's: whatever is not `Healthy` is unhealthy.
fn device(told: &api::Device) -> Device {
    let healthy = told.health == "Healthy";
    let reason = || {
        let word: String = told.health.chars().take(LONGEST_WORD).collect();
        format!("its plugin says {word:?}")
    };
    let nodes = told.topology.iter().flat_map(|topology| &topology.nodes);
    // -1 stands for "none" in sysfs, and some plugins pass it on.
    let node = |node: &api::NumaNode| u32::try_from(node.id).ok();
    Device {
        nodes: Vec::new(),
        health: if healthy {
            Health::Healthy
        } else {
            Health::Unhealthy
        },
        reason: (!healthy).then(reason),
        numa: nodes
            .filter_map(node)
            .filter(|node| *node <= HIGHEST_NUMA)
            .collect(),
        attributes: BTreeMap::new(),
        recipe: None,
    }
}

/// The same devices while nobody answers for them: those that were well are so no longer.
pub(super) fn abandoned(devices: &Devices, why: &str) -> Devices {
    let mut devices = devices.clone();
    for device in devices.values_mut() {
        if device.health == Health::Healthy {
            (device.health, device.reason) = (Health::Unhealthy, Some(why.to_owned()));
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(id: &str, health: &str, nodes: &[i64]) -> api::Device {
        let nodes = nodes.iter().map(|id| api::NumaNode { id: *id });
        api::Device {
            id: id.to_owned(),
            health: health.to_owned(),
            topology: Some(api::TopologyInfo {
                nodes: nodes.collect(),
            }),
        }
    }

    fn message(devices: &[api::Device]) -> api::ListAndWatchResponse {
        api::ListAndWatchResponse {
            devices: devices.to_vec(),
        }
    }

    #[test]
    fn ids_of_the_plugin_are_kept_as_they_are_and_only_healthy_is_healthy() {
        let list = read(
            message(&[
                told("GPU-1::0", "Healthy", &[1]),
                told("b c/ä", "healthy", &[]),
                told("", "Healthy", &[]),
                told(&"x".repeat(254), "Healthy", &[]),
            ]),
            10,
        );
        assert_eq!((list.refused, list.cut), (2, 0));
        assert_eq!(list.devices["GPU-1::0"].health, Health::Healthy);
        assert_eq!(list.devices["GPU-1::0"].numa, [1]);
        let odd = &list.devices["b c/ä"];
        assert_eq!(odd.health, Health::Unhealthy);
        assert_eq!(odd.reason.as_deref(), Some("its plugin says \"healthy\""));
    }

    #[test]
    fn a_numa_node_that_is_none_is_left_out() {
        let list = read(message(&[told("a", "Healthy", &[-1, 0, 1 << 40])]), 1);
        assert_eq!(list.devices["a"].numa, [0]);
    }

    #[test]
    fn too_many_devices_are_cut_and_counted() {
        let all: Vec<_> = (0..5)
            .map(|n| told(&n.to_string(), "Healthy", &[]))
            .collect();
        let list = read(message(&all), 3);
        assert_eq!(list.cut, 2);
        assert!(list.devices.keys().eq(["0", "1", "2"]));
    }

    #[test]
    fn abandoned_devices_keep_the_reason_they_had() {
        let list = read(
            message(&[told("a", "Healthy", &[]), told("b", "Unhealthy", &[])]),
            10,
        );
        let left = abandoned(&list.devices, "plugin gone");
        assert_eq!(left["a"].reason.as_deref(), Some("plugin gone"));
        assert_eq!(left["a"].health, Health::Unhealthy);
        assert_eq!(left["b"], list.devices["b"]);
    }
}
