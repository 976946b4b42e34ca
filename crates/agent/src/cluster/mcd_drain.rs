//! Disables device allocation while another daemon that updates this node drains it.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use machinist_base::error_chain::chain;
use machinist_cluster::node::NodeSnapshot;
use machinist_device_plugins::device_service::DevicesHandle;
use machinist_kube_api::DrainRequest;

/// The reason shown to the kubelet and users.
const CORDONED_REASON: &str = "this node is cordoned";

/// Retry interval while the registry is busy: it scans hardware, which takes milliseconds.
const BUSY_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Disables new allocations while the node is cordoned or to be drained, until `stop`.
pub(super) async fn disable_devices_during_drain(
    mut snapshots: watch::Receiver<NodeSnapshot>,
    devices: DevicesHandle,
    stop: CancellationToken,
) {
    let mut known = false;
    loop {
        let away = leaves(&snapshots.borrow_and_update());
        if let Some(away) = away.filter(|away| *away != known) {
            let asked = match away {
                true => devices.disable_allocation(CORDONED_REASON).await,
                false => devices.enable_allocation().await,
            };
            match asked {
                Ok(()) => known = away,
                Err(error) => tracing::warn!("{}", chain(&error)),
            }
        }
        let again = away.is_some_and(|away| away != known);
        tokio::select! {
            () = stop.cancelled() => return,
            // Cancel-safe: the registry was busy, and the request is repeated after any of these.
            () = tokio::time::sleep(BUSY_RETRY_INTERVAL), if again => {}
            // Cancel-safe: a change stays marked as unseen.
            changed = snapshots.changed() => if changed.is_err() { return },
        }
    }
}

/// Whether the node is cordoned or being drained; none while the Node is unknown.
fn leaves(snapshot: &NodeSnapshot) -> Option<bool> {
    let node = snapshot.node.as_ref()?;
    let asked = node.desired_drain();
    let drains = matches!(asked, Some(DrainRequest::Drain(_)));
    Some(node.is_cordoned() || drains)
}
