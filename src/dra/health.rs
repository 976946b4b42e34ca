//! The health of the pool's devices, as the kubelet shows it in the status of pods.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::api::health as api;
use crate::device::{
    Health, Inventory, Serve,
    dra::name::{device_name, shares},
};

/// How often the list is said though nothing changed: the kubelet takes who is silent for 30 s for unknown.
const CONFIRM: Duration = Duration::from_secs(10);
/// For that a list may come late on a busy machine; an agent that is dead is known by the end of the stream.
const TIMEOUT: i64 = 30;
/// Bursts are one message.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// What the kubelet would cut.
const LONGEST: usize = 1024;

/// All devices of the pool as they are now.
pub(super) fn list(
    inventory: &Inventory,
    node: &str,
    now: Timestamp,
) -> api::NodeWatchResourcesResponse {
    let mut devices = Vec::new();
    for (name, resource) in inventory.served(Serve::Dra) {
        for (id, _, share) in shares(resource) {
            let Some(device) = resource.devices.get(id) else {
                continue;
            };
            let health = match device.health {
                Health::Healthy => api::HealthStatus::Healthy,
                _ => api::HealthStatus::Unhealthy,
            };
            let message = device.reason.clone().unwrap_or_default();
            devices.push(api::DeviceHealth {
                device: Some(api::DeviceIdentifier {
                    pool_name: node.to_owned(),
                    device_name: device_name(name, &share),
                }),
                health: health.into(),
                last_updated_time: now.as_second(),
                health_check_timeout_seconds: TIMEOUT,
                message: message.chars().take(LONGEST).collect(),
            });
        }
    }
    api::NodeWatchResourcesResponse { devices }
}

/// Feeds one stream until the kubelet or the agent ends it. The first list goes out at once.
///
/// Withholding does not show here: it says that nothing new is lent, and not that a pod's device is broken.
pub(super) async fn feed(
    node: Arc<str>,
    mut inventory: watch::Receiver<Arc<Inventory>>,
    to: mpsc::Sender<Result<api::NodeWatchResourcesResponse, Status>>,
    stop: CancellationToken,
) {
    loop {
        let list = {
            let inventory = inventory.borrow_and_update();
            list(&inventory, &node, super::state::now())
        };
        tokio::select! {
            () = stop.cancelled() => return,
            sending = to.send(Ok(list)) => if sending.is_err() { return },
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = to.closed() => return,
            // Safe to drop, both: a change stays marked as unseen, and only time passes.
            changed = inventory.changed() => match changed {
                Ok(()) => sleep(DEBOUNCE).await,
                Err(_) => return,
            },
            () = sleep(CONFIRM) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::inventory::tests::resource;

    #[test]
    fn every_device_of_the_pool_is_told_with_its_reason() {
        let mut one = resource(2, &[("a", &[])]);
        one.serve = Serve::Dra;
        if let Some(device) = one.devices.get_mut("a") {
            (device.health, device.reason) = (Health::Unhealthy, Some("x".repeat(2000)));
        }
        let inventory = Inventory {
            resources: [(one.name.clone(), one.into())].into(),
            ..Inventory::default()
        };
        let told = list(&inventory, "node", Timestamp::UNIX_EPOCH).devices;
        assert_eq!(told.len(), 2, "each share is a device");
        for device in told {
            assert_eq!(device.health(), api::HealthStatus::Unhealthy);
            assert_eq!(device.message.len(), LONGEST);
            assert_eq!(device.device.unwrap().pool_name, "node");
        }
    }
}
