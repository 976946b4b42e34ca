//! Parses a plugin's device list.

use std::{collections::BTreeMap, sync::Arc};

use prost::Message as _;

use crate::{
    kubelet::api::v1beta1 as api,
    protobuf_scan::{Malformed, SplitItem, StreamSplitter},
};
use machinist_base::text::is_misleading;
use machinist_device::{
    Device, Health, SmallMap,
    mount_allowlist::{MAX_NUMA_NODE_ID, MAX_NUMA_NODES},
};

/// The number of `devices` in `ListAndWatchResponse`.
const DEVICES_FIELD: u32 = 1;
/// Bytes of one device: an id, a health word and all possible NUMA nodes. Longer ones are not
/// parsed.
const MAX_DEVICE_BYTES: usize = 8 * 1024;

/// Bytes of an id. The kubelet accepts ids of any length and stores each several times in its
/// checkpoint. No known plugin comes near this limit.
pub(super) const MAX_ID_BYTES: usize = 253;
/// Characters shown of a health value that is not standard.
const MAX_HEALTH_CHARS: usize = 64;

/// Devices by id.
pub(super) type DeviceMap = BTreeMap<String, Device>;

/// A parsed list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PluginDeviceList {
    pub(super) devices: Arc<DeviceMap>,
    /// Number of invalid devices: the id is empty, too long or not plain text, or the whole entry
    /// is too long.
    pub(super) refused: usize,
    /// Number of devices beyond the limit; the last ones by id are left out.
    pub(super) cut: usize,
}

/// An incremental parser: it holds only the devices that are kept, however long the message is.
#[derive(Debug)]
pub(super) struct ListBuilder {
    apart: StreamSplitter,
    max_devices: usize,
    devices: DeviceMap,
    refused: usize,
    cut: usize,
}

/// Why a message is not a device list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ListDecodeError {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("its device {0} cannot be decoded: {1}")]
    Device(usize, String),
    #[error("it is truncated within a device")]
    Half,
}

impl ListBuilder {
    /// Starts a message, of which at most `most` devices are kept.
    pub(super) fn new(max_devices: usize) -> Self {
        Self {
            apart: StreamSplitter::new(DEVICES_FIELD, MAX_DEVICE_BYTES),
            max_devices,
            devices: DeviceMap::new(),
            refused: 0,
            cut: 0,
        }
    }

    /// Parses the next chunk of the message.
    pub(super) fn feed(&mut self, came: &[u8]) -> Result<(), ListDecodeError> {
        let Self {
            apart,
            max_devices,
            devices,
            refused,
            cut: excess,
        } = self;
        let mut wrong = None;
        apart.feed(came, |found| {
            let one = match found {
                SplitItem::Body(body) => match api::Device::decode(body) {
                    Ok(one) => one,
                    Err(error) => {
                        let at = devices.len() + *refused + *excess;
                        wrong.get_or_insert(ListDecodeError::Device(at, error.to_string()));
                        return;
                    }
                },
                SplitItem::TooLong => {
                    *refused += 1;
                    return;
                }
            };
            if one.id.is_empty() || one.id.len() > MAX_ID_BYTES || one.id.contains(is_misleading) {
                *refused += 1;
            } else {
                let device = device(&one);
                devices.insert(one.id, device);
                *excess += cut(devices, *max_devices);
            }
        })?;
        wrong.map_or(Ok(()), Err)
    }

    /// Ends the message.
    pub(super) fn end(self) -> Result<PluginDeviceList, ListDecodeError> {
        match self.apart.is_whole() {
            true => Ok(PluginDeviceList {
                // Collected from a list: a tree filled in sorted order, entry by entry, is left
                // half empty.
                devices: Arc::new(self.devices.into_iter().collect()),
                refused: self.refused,
                cut: self.cut,
            }),
            false => Err(ListDecodeError::Half),
        }
    }
}

/// Removes the devices beyond `most`; returns how many.
pub(super) fn cut(devices: &mut DeviceMap, max_devices: usize) -> usize {
    let excess = devices.len().saturating_sub(max_devices);
    for _ in 0..excess {
        devices.pop_last();
    }
    excess
}

/// Compared exactly, as the kubelet does: everything except `Healthy` is unhealthy.
fn device(listed: &api::Device) -> Device {
    let healthy = listed.health == "Healthy";
    let reason = || {
        let word: String = listed.health.chars().take(MAX_HEALTH_CHARS).collect();
        format!("its plugin reports {word:?}")
    };
    let nodes = listed.topology.iter().flat_map(|topology| &topology.nodes);
    // -1 means "none" in sysfs, and some plugins pass it on.
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
            .filter(|node| *node <= MAX_NUMA_NODE_ID)
            .take(MAX_NUMA_NODES)
            .collect(),
        attributes: SmallMap::default(),
        capacity: SmallMap::default(),
        recipe: None,
    }
}

/// The same devices with all healthy ones marked unhealthy, because no plugin serves them.
pub(super) fn abandoned(devices: &DeviceMap, why: &str) -> DeviceMap {
    let mut devices = devices.clone();
    for device in devices.values_mut() {
        device.mark_unreachable(why);
    }
    devices
}

/// Parses a whole list in chunks of `piece` bytes and returns how many devices are kept, how many
/// exceed the limit and how many are invalid. The error is the reason why it is no list. Exists so
/// that tests can compare this parser with others.
pub fn count(
    message: &[u8],
    max_devices: usize,
    piece: usize,
) -> Result<(usize, usize, usize), String> {
    let mut reading = ListBuilder::new(max_devices);
    for came in message.chunks(piece.max(1)) {
        reading.feed(came).map_err(|error| error.to_string())?;
    }
    let list = reading.end().map_err(|error| error.to_string())?;
    Ok((list.devices.len(), list.cut, list.refused))
}

/// Parses a whole message at once.
#[cfg(test)]
pub(super) fn read(
    message: &[u8],
    max_devices: usize,
) -> Result<PluginDeviceList, ListDecodeError> {
    let mut reading = ListBuilder::new(max_devices);
    reading.feed(message)?;
    reading.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api_device(id: &str, health: &str, nodes: &[i64]) -> api::Device {
        let nodes = nodes.iter().map(|id| api::NumaNode { id: *id });
        api::Device {
            id: id.to_owned(),
            health: health.to_owned(),
            topology: Some(api::TopologyInfo {
                nodes: nodes.collect(),
            }),
        }
    }

    fn message(devices: &[api::Device]) -> Vec<u8> {
        let devices = devices.to_vec();
        api::ListAndWatchResponse { devices }.encode_to_vec()
    }

    fn read(message: Vec<u8>, max_devices: usize) -> PluginDeviceList {
        super::read(&message, max_devices).unwrap()
    }

    #[test]
    fn plugin_ids_are_unchanged_and_only_healthy_counts_as_healthy() {
        let list = read(
            message(&[
                api_device("GPU-1::0", "Healthy", &[1]),
                api_device("b c/ä", "healthy", &[]),
                api_device("", "Healthy", &[]),
                api_device(&"x".repeat(254), "Healthy", &[]),
            ]),
            10,
        );
        assert_eq!((list.refused, list.cut), (2, 0));
        assert_eq!(list.devices["GPU-1::0"].health, Health::Healthy);
        assert_eq!(list.devices["GPU-1::0"].numa, [1]);
        let odd = &list.devices["b c/ä"];
        assert_eq!(odd.health, Health::Unhealthy);
        assert_eq!(
            odd.reason.as_deref(),
            Some("its plugin reports \"healthy\"")
        );
    }

    #[test]
    fn an_invalid_numa_node_is_omitted() {
        let list = read(message(&[api_device("a", "Healthy", &[-1, 0, 1 << 40])]), 1);
        assert_eq!(list.devices["a"].numa, [0]);
    }

    #[test]
    fn devices_above_the_limit_are_dropped_and_counted() {
        let all: Vec<_> = (0..5)
            .map(|n| api_device(&n.to_string(), "Healthy", &[]))
            .collect();
        let list = read(message(&all), 3);
        assert_eq!(list.cut, 2);
        assert!(list.devices.keys().eq(["0", "1", "2"]));
    }

    #[test]
    fn a_list_does_not_depend_on_chunk_borders_and_ignored_devices_use_no_memory() {
        let mut all: Vec<_> = (0..50)
            .map(|n| api_device(&format!("{n:02}"), "Healthy", &[n % 2]))
            .collect();
        // Each takes two bytes on the wire.
        all.extend(vec![api::Device::default(); 10_000]);
        all.push(api_device("huge", &"x".repeat(MAX_DEVICE_BYTES), &[]));
        let wire = message(&all);
        let whole = read(wire.clone(), 20);
        assert_eq!((whole.cut, whole.refused), (30, 10_001));
        for size in [1, 2, 7, 4096] {
            let mut reading = ListBuilder::new(20);
            for piece in wire.chunks(size) {
                reading.feed(piece).unwrap();
                assert!(reading.devices.len() <= 20);
            }
            assert_eq!(reading.end(), Ok(whole.clone()), "{size}");
        }
        assert_eq!(super::read(&wire[..3], 20), Err(ListDecodeError::Half));
        let text = [0x0a, 3, 0x0a, 1, 0xff];
        let wrong = super::read(&text, 20).unwrap_err();
        assert!(matches!(wrong, ListDecodeError::Device(0, _)), "{wrong}");
    }

    #[test]
    fn devices_of_a_lost_plugin_keep_an_earlier_unhealthy_reason() {
        let list = read(
            message(&[
                api_device("a", "Healthy", &[]),
                api_device("b", "Unhealthy", &[]),
            ]),
            10,
        );
        let left = abandoned(&list.devices, "plugin gone");
        assert_eq!(left["a"].reason.as_deref(), Some("plugin gone"));
        assert_eq!(left["a"].health, Health::Unhealthy);
        assert_eq!(left["b"], list.devices["b"]);
    }
}
