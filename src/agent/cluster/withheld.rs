//! Beside another daemon that updates this node: devices are withheld while it takes the pods away.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::node::Sight, crd::DrainRequest, device::service::DevicesHandle, telemetry::chain,
};

/// Why, as the kubelet and people see it.
const CORDONED: &str = "this node is cordoned";

/// The registry looks at hardware, which takes milliseconds, and takes requests after that.
const AGAIN: Duration = Duration::from_secs(1);

/// Lends to nobody new while the node is cordoned or is to be drained, until `stop`.
pub(super) async fn follow(
    mut sights: watch::Receiver<Sight>,
    devices: DevicesHandle,
    stop: CancellationToken,
) {
    let mut known = false;
    loop {
        let away = leaves(&sights.borrow_and_update());
        if let Some(away) = away.filter(|away| *away != known) {
            let asked = match away {
                true => devices.withhold(CORDONED).await,
                false => devices.release().await,
            };
            match asked {
                Ok(()) => known = away,
                Err(error) => tracing::warn!("{}", chain(&error)),
            }
        }
        let again = away.is_some_and(|away| away != known);
        tokio::select! {
            () = stop.cancelled() => return,
            // Safe to drop: the registry was busy, and is asked again after any of these.
            () = tokio::time::sleep(AGAIN), if again => {}
            // Safe to drop: a change stays marked as unseen.
            changed = sights.changed() => if changed.is_err() { return },
        }
    }
}

/// Whether pods leave this node; none while nobody can tell.
fn leaves(sight: &Sight) -> Option<bool> {
    let node = sight.node.as_ref()?;
    let asked = node.desired_drain();
    let drains = matches!(asked, Some(DrainRequest::Drain(_)));
    Some(node.is_cordoned() || drains)
}
