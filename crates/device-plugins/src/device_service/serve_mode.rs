//! Assigns each resource to the device plugins or to the DRA driver. A resource that moves from one
//! to the other is in neither inventory until the first has released it.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{dra::DriverState, kubelet::KubeletState};
use machinist_base::shutdown::Tasks;
use machinist_device::{Inventory, Resource, ServeMode};

type Inventories = watch::Receiver<Arc<Inventory>>;

/// The inventory of the device plugins: without resources that claims have, or may still be
/// allocated.
pub(super) fn plugins(
    inventory: Inventories,
    driver: watch::Receiver<DriverState>,
    tasks: &Tasks,
) -> Inventories {
    let free = |driver: &DriverState, one: &Resource| {
        one.serve == ServeMode::DevicePlugin && !driver.holding.contains(&one.name)
    };
    side(inventory, driver, free, tasks)
}

/// The inventory of the DRA driver: without resources that the kubelet still has a device plugin for.
pub(super) fn claims(
    inventory: Inventories,
    kubelet: watch::Receiver<KubeletState>,
    tasks: &Tasks,
) -> Inventories {
    let free = |kubelet: &KubeletState, one: &Resource| {
        one.serve == ServeMode::Dra && !kubelet.registrations.contains_key(&one.name)
    };
    side(inventory, kubelet, free, tasks)
}

fn side<T: Send + Sync + 'static>(
    mut inventory: Inventories,
    mut other: watch::Receiver<T>,
    free: impl Fn(&T, &Resource) -> bool + Send + Sync + 'static,
    tasks: &Tasks,
) -> Inventories {
    let part = move |inventory: &Arc<Inventory>, other: &T| {
        let mut part = Inventory::clone(inventory);
        part.resources.retain(|_, one| free(other, one));
        Arc::new(part)
    };
    let first = part(&inventory.borrow_and_update(), &other.borrow_and_update());
    let (sender, receiver) = watch::channel(first);
    let stop = tasks.token();
    tasks.spawn("one side of devices", async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                // Cancel-safe: a change stays marked as unseen.
                changed = inventory.changed() => if changed.is_err() { return },
                Ok(()) = other.changed() => {}
            }
            let now = part(&inventory.borrow_and_update(), &other.borrow_and_update());
            sender.send_if_modified(|known| {
                let is_changed = **known != *now;
                if is_changed {
                    *known = now;
                }
                is_changed
            });
        }
    });
    receiver
}
