//! Publishes the health of the pool's devices; the kubelet shows it in the status of pods.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use prost::Message as _;
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::api::health as api;
use machinist_base::rate_limit::LogRates;
use machinist_device::{
    Health, Inventory, ServeMode,
    dra::device_names::{device_name, shares},
};

/// Interval at which an unchanged list is sent again: the kubelet treats devices without news for
/// 30 s as unknown.
const RESEND_INTERVAL: Duration = Duration::from_secs(10);
/// Seconds after which the kubelet treats the health as unknown; long, because a busy machine may
/// send a list late. The kubelet notices a dead agent by the end of the stream.
const HEALTH_TIMEOUT_SECS: i64 = 30;
/// Changes within this time are sent as one message.
const DEVICE_HEALTH_DEBOUNCE: Duration = Duration::from_millis(50);
/// Limits, in bytes, for a device's reason: the first is the kubelet's own, the smaller ones are
/// for lists that are too large.
const REASON_LIMITS_BYTES: [usize; 3] = [1024, 128, 0];
/// Bytes of the largest message that the kubelet receives: gRPC's default. A larger one ends the
/// stream and makes all health unknown.
const MAX_KUBELET_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// The current health of all devices of the pool, and how many had to be left out.
pub(super) fn list(
    inventory: &Inventory,
    node: &str,
    now: Timestamp,
) -> (api::NodeWatchResourcesResponse, usize) {
    let mut devices = Vec::new();
    for (name, resource) in inventory.served_by(ServeMode::Dra) {
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
                health_check_timeout_seconds: HEALTH_TIMEOUT_SECS,
                message,
            });
        }
    }
    fitting(devices)
}

/// Fits the devices into one message: first by shortening reasons, then by leaving out the last
/// devices, which the kubelet then reports as unknown. Returns how many were left out.
fn fitting(devices: Vec<api::DeviceHealth>) -> (api::NodeWatchResourcesResponse, usize) {
    let mut list = api::NodeWatchResourcesResponse { devices };
    for longest in REASON_LIMITS_BYTES {
        for device in &mut list.devices {
            if let Some((at, _)) = device.message.char_indices().nth(longest) {
                device.message.truncate(at);
            }
        }
        if list.encoded_len() <= MAX_KUBELET_MESSAGE_BYTES {
            return (list, 0);
        }
    }
    let mut size = 0;
    let fits = |device: &&api::DeviceHealth| {
        let length = device.encoded_len();
        // In a repeated field, each entry costs one byte for the field number, and its length.
        size += 1 + prost::length_delimiter_len(length) + length;
        size <= MAX_KUBELET_MESSAGE_BYTES
    };
    let fitting = list.devices.iter().take_while(fits).count();
    let cut = list.devices.len() - fitting;
    list.devices.truncate(fitting);
    (list, cut)
}

/// Feeds one stream until the kubelet or the agent ends it. The first list is sent at once.
///
/// Disabled allocation is not visible here: it only means that no new pod gets the device, and not
/// that the device of a running pod is broken.
pub(super) async fn feed(
    node: Arc<str>,
    mut inventory: watch::Receiver<Arc<Inventory>>,
    to: mpsc::Sender<Result<api::NodeWatchResourcesResponse, Status>>,
    (stop, log_rates): (CancellationToken, LogRates),
) {
    let mut cut = 0;
    loop {
        let (list, left_out) = {
            let inventory = inventory.borrow_and_update();
            list(&inventory, &node, super::status::now())
        };
        if std::mem::replace(&mut cut, left_out) != left_out
            && let Some(suppressed) = log_rates.take("health")
        {
            tracing::warn!(
                cut,
                suppressed,
                "health of {cut} devices not reported: the message exceeds the kubelet's limit of 4 MiB"
            );
        }
        tokio::select! {
            () = stop.cancelled() => return,
            sending = to.send(Ok(list)) => if sending.is_err() { return },
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = to.closed() => return,
            // Safe to drop, both: a change stays marked as unseen, and the other is a timer.
            changed = inventory.changed() => match changed {
                Ok(()) => sleep(DEVICE_HEALTH_DEBOUNCE).await,
                Err(_) => return,
            },
            () = sleep(RESEND_INTERVAL) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinist_device::testing::resource;

    #[test]
    fn every_device_of_the_pool_is_reported_with_its_reason() {
        let mut one = resource(2, &[("a", &[])]);
        one.serve = ServeMode::Dra;
        if let Some(device) = one.devices.get_mut("a") {
            (device.health, device.reason) = (Health::Unhealthy, Some("x".repeat(2000)));
        }
        let inventory = Inventory {
            resources: [(one.name.clone(), one.into())].into(),
            ..Inventory::default()
        };
        let reported = list(&inventory, "node", Timestamp::UNIX_EPOCH).0.devices;
        assert_eq!(reported.len(), 2, "each share is a device");
        for device in reported {
            assert_eq!(device.health(), api::HealthStatus::Unhealthy);
            assert_eq!(device.message.len(), REASON_LIMITS_BYTES[0]);
            assert_eq!(device.device.unwrap().pool_name, "node");
        }
    }

    #[test]
    fn a_list_never_exceeds_the_message_limit_of_the_kubelet() {
        let reported = |count: usize, message: usize| {
            let device = |at: usize| api::DeviceHealth {
                device: Some(api::DeviceIdentifier {
                    pool_name: "n".repeat(200),
                    device_name: format!("d-{at}"),
                }),
                message: "ä".repeat(message),
                ..api::DeviceHealth::default()
            };
            fitting((0..count).map(device).collect())
        };
        let longest = |list: &api::NodeWatchResourcesResponse| {
            list.devices
                .iter()
                .map(|one| one.message.chars().count())
                .max()
        };
        let (few, _) = reported(1000, 1500);
        assert_eq!((few.devices.len(), longest(&few)), (1000, Some(1024)));
        let (many, _) = reported(8000, 1500);
        assert_eq!((many.devices.len(), longest(&many)), (8000, Some(128)));
        let (more, _) = reported(15_000, 1500);
        assert_eq!((more.devices.len(), longest(&more)), (15_000, Some(0)));
        let (most, cut) = reported(100_000, 0);
        let size = most.encoded_len();
        assert!(
            size <= MAX_KUBELET_MESSAGE_BYTES && size > MAX_KUBELET_MESSAGE_BYTES - 300,
            "{size}"
        );
        assert_eq!(most.devices.len() + cut, 100_000);
    }
}
