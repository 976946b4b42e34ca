//! Builds and sends the kubelet's device list: always complete, only when it changed, and never too
//! large.

use std::{sync::Arc, time::Duration};

use prost::Message as _;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::api::v1beta1 as api;
use machinist_base::rate_limit::LogRates;
use machinist_device::{Device, Health, Inventory, Resource, ResourceName};

/// Bytes of the largest message that the kubelet receives: gRPC's default. A larger one ends the
/// stream, and with it every device of the resource.
const MAX_KUBELET_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Minimum time between two messages; changes in between are combined. After each message the
/// kubelet rewrites and syncs its whole checkpoint, so bursts should cause few. The first change is
/// sent at once.
const LIST_DEBOUNCE: Duration = Duration::from_millis(50);

/// One list, and how many ids had to be left out of it.
#[derive(Debug)]
pub(super) struct DeviceList {
    pub(super) message: api::ListAndWatchResponse,
    pub(super) cut: usize,
}

/// The current list of the resource; empty when it is no longer offered.
pub(super) fn list(inventory: &Inventory, name: &ResourceName) -> DeviceList {
    let mut list = DeviceList {
        message: api::ListAndWatchResponse::default(),
        cut: 0,
    };
    let Some(resource) = inventory.resources.get(name) else {
        return list;
    };
    let mut size = 0;
    for (id, device) in resource.advertised() {
        let (health, _) = inventory.reported_health(device);
        for id in resource.share_ids(id) {
            let device = to_wire(id, health, device);
            let length = device.encoded_len();
            // In a repeated field, each entry costs one byte for the field number, and its length.
            size += 1 + prost::length_delimiter_len(length) + length;
            if size > MAX_KUBELET_MESSAGE_BYTES {
                list.cut += 1;
            } else {
                list.message.devices.push(device);
            }
        }
    }
    list
}

fn to_wire(id: String, health: Health, device: &Device) -> api::Device {
    let nodes = device.numa.iter().map(|node| api::NumaNode {
        id: i64::from(*node),
    });
    api::Device {
        id,
        health: if health == Health::Healthy {
            "Healthy"
        } else {
            "Unhealthy"
        }
        .to_owned(),
        topology: (!device.numa.is_empty()).then(|| api::TopologyInfo {
            nodes: nodes.collect(),
        }),
    }
}

/// The inputs of the last list, to detect whether the next one differs on the wire.
struct SentListInputs {
    resource: Option<Arc<Resource>>,
    allocation_disabled: bool,
}

impl SentListInputs {
    fn of(inventory: &Inventory, name: &ResourceName) -> Self {
        Self {
            resource: inventory.resources.get(name).cloned(),
            allocation_disabled: inventory.allocation_disabled.is_some(),
        }
    }

    fn same(&self, other: &Self) -> bool {
        self.allocation_disabled == other.allocation_disabled
            && match (&self.resource, &other.resource) {
                (None, None) => true,
                (Some(one), Some(two)) => Arc::ptr_eq(one, two) || same_on_wire(one, two),
                _ => false,
            }
    }
}

fn same_on_wire(one: &Resource, two: &Resource) -> bool {
    fn visible_state(of: &Resource) -> impl Iterator<Item = (&str, Health, &[u32])> {
        of.advertised()
            .map(|(id, device)| (id, device.health, &device.numa[..]))
    }
    one.share.replicas == two.share.replicas && visible_state(one).eq(visible_state(two))
}

/// Feeds one stream until the kubelet or the server ends it. The first list is sent at once. Ending
/// it by `stop` does not empty the list.
pub(super) async fn feed(
    name: ResourceName,
    mut inventory: watch::Receiver<Arc<Inventory>>,
    to: mpsc::Sender<Result<api::ListAndWatchResponse, Status>>,
    (stop, log_rates): (CancellationToken, LogRates),
) {
    let mut sent: Option<SentListInputs> = None;
    let mut cut = 0;
    let mut next_at = Instant::now();
    loop {
        let now = inventory.borrow_and_update().clone();
        let next = SentListInputs::of(&now, &name);
        if sent.as_ref().is_none_or(|sent| !sent.same(&next)) {
            let list = list(&now, &name);
            if std::mem::replace(&mut cut, list.cut) != list.cut
                && let Some(suppressed) = log_rates.take(name.as_str())
            {
                match cut {
                    0 => {
                        tracing::info!(resource = %name, suppressed, "device list is within the kubelet's limit of 4 MiB again")
                    }
                    _ => {
                        tracing::warn!(resource = %name, cut, suppressed, "device list exceeds the kubelet's limit of 4 MiB; omitting the last ids")
                    }
                }
            }
            drop(now);
            tokio::select! {
                // The stream ends with the server, so a pending list is not needed.
                () = stop.cancelled() => return,
                sending = to.send(Ok(list.message)) => if sending.is_err() { return log_closed_stream(&name) },
            }
            next_at = Instant::now() + LIST_DEBOUNCE;
        }
        // Also replace the stored inputs if the list is the same on the wire, so that old ones are
        // freed.
        sent = Some(next);
        tokio::select! {
            // The caller that stops the server logs it.
            () = stop.cancelled() => return,
            () = to.closed() => return log_closed_stream(&name),
            // Safe to drop: a change stays marked as unseen. The registry ends only with the agent.
            changed = inventory.changed() => if changed.is_err() { return },
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = to.closed() => return log_closed_stream(&name),
            // Safe to drop: the next pass reads the latest state.
            () = sleep_until(next_at) => {}
        }
    }
}

/// Logs that the kubelet ended the stream. It opens one when it accepts a registration, and ends it
/// when it restarts or accepts the next registration.
fn log_closed_stream(name: &ResourceName) {
    tracing::debug!(resource = %name, "the kubelet closed the ListAndWatch stream of {name}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinist_device::{
        inventory::{DeviceSpec, Share},
        resource_name::MAX_ID_LEN,
    };

    fn inventory(count: usize, replicas: u32) -> Inventory {
        let device = |at: usize| {
            let id = format!("{at:0width$}", width = MAX_ID_LEN - 6);
            let device = Device {
                nodes: Vec::new(),
                health: Health::Healthy,
                reason: None,
                numa: vec![1],
                attributes: machinist_device::SmallMap::default(),
                capacity: machinist_device::SmallMap::default(),
                recipe: None,
            };
            (id, device)
        };
        let resource = Resource {
            name: ResourceName::new("acme.dev/x").unwrap(),
            source: machinist_device::ResourceSource::Vendor("acme".into()),
            serve: machinist_device::inventory::ServeMode::DevicePlugin,
            asks: machinist_device::inventory::BackendOptions::default(),
            share: Share {
                replicas,
                ..Share::EXCLUSIVE
            },
            recipe: DeviceSpec::default(),
            devices: (0..count).map(device).collect(),
        };
        let mut inventory = Inventory::default();
        inventory
            .resources
            .insert(resource.name.clone(), Arc::new(resource));
        inventory
    }

    #[test]
    fn a_list_never_exceeds_the_message_limit_of_the_kubelet() {
        let name = ResourceName::new("acme.dev/x").unwrap();
        let small = list(&inventory(10, 2), &name);
        assert_eq!((small.message.devices.len(), small.cut), (20, 0));
        let large = list(&inventory(100, 1024), &name);
        let size = large.message.encoded_len();
        assert!(
            size <= MAX_KUBELET_MESSAGE_BYTES && size > MAX_KUBELET_MESSAGE_BYTES - 200,
            "{size}"
        );
        assert_eq!(large.message.devices.len() + large.cut, 100 * 1024);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_change_is_sent_at_once_and_later_ones_are_debounced() {
        let name = ResourceName::new("acme.dev/x").unwrap();
        let (publish, inventories) = watch::channel(Arc::new(inventory(1, 1)));
        let (to, mut lists) = mpsc::channel(8);
        let fed = feed(name, inventories, to, Default::default());
        let fed = tokio::spawn(fed);
        let length = |list: Option<Result<api::ListAndWatchResponse, Status>>| {
            list.unwrap().unwrap().devices.len()
        };
        assert_eq!(length(lists.recv().await), 1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let start = Instant::now();
        publish.send_replace(Arc::new(inventory(2, 1)));
        assert_eq!(length(lists.recv().await), 2);
        assert_eq!(start.elapsed(), Duration::ZERO);
        for count in 3..=9 {
            publish.send_replace(Arc::new(inventory(count, 1)));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(length(lists.recv().await), 9);
        assert_eq!(start.elapsed().as_millis(), LIST_DEBOUNCE.as_millis());
        // An inventory that is published again without changes causes no message.
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(60)).await;
            publish.send_replace(Arc::new(inventory(9, 1)));
        }
        assert!(lists.try_recv().is_err());
        fed.abort();
    }

    #[test]
    fn a_device_near_several_numa_nodes_names_them_all() {
        let mut inventory = inventory(1, 1);
        let name = ResourceName::new("acme.dev/x").unwrap();
        let resource = Arc::make_mut(inventory.resources.get_mut(&name).unwrap());
        let mut devices = resource.devices.values_mut();
        devices.next().unwrap().numa = vec![0, 2];
        let list = list(&inventory, &name);
        let topology = list.message.devices[0].topology.clone().unwrap();
        let nodes: Vec<_> = topology.nodes.iter().map(|node| node.id).collect();
        assert_eq!(nodes, [0, 2]);
    }

    #[test]
    fn devices_without_a_numa_node_carry_no_topology() {
        let mut inventory = inventory(1, 1);
        let name = ResourceName::new("acme.dev/x").unwrap();
        assert!(
            list(&inventory, &name).message.devices[0]
                .topology
                .is_some()
        );
        let resource = Arc::make_mut(inventory.resources.get_mut(&name).unwrap());
        resource
            .devices
            .values_mut()
            .for_each(|device| device.numa.clear());
        assert!(
            list(&inventory, &name).message.devices[0]
                .topology
                .is_none()
        );
    }
}
