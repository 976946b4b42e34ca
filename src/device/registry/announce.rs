//! Changes in words, for the log.

use crate::{
    device::inventory::{Inventory, Resource},
    words,
};

/// One line for each thing that became different.
pub(super) fn announce(old: &Inventory, new: &Inventory) {
    for problem in new
        .problems
        .iter()
        .filter(|problem| !old.problems.contains(problem))
    {
        tracing::warn!("{problem}");
    }
    let why = |inventory: &Inventory| inventory.withheld.as_ref().map(|one| one.why.clone());
    if why(old) != why(new) {
        match &new.withheld {
            Some(withheld) => tracing::info!("devices are withheld: {}", withheld.why),
            None => tracing::info!("devices are lent again"),
        }
    }
    for (name, resource) in &new.resources {
        let before = old.resources.get(name);
        if before.is_none() {
            let devices = resource.devices.len();
            let source = &resource.source;
            tracing::info!(resource = %name, "{name} is declared in {source}: {devices} device(s)");
        }
        if let Some(before) = before {
            vanished(before, resource);
        }
        for (id, device) in &resource.devices {
            let known = before.and_then(|before| before.devices.get(id));
            if known.is_some_and(|known| known.health != device.health) {
                let reason = device.reason.as_deref().unwrap_or("it is back");
                let health = &device.health;
                tracing::info!(resource = %name, "{id} of {name} is {health}: {reason}");
            }
        }
    }
    for name in old
        .resources
        .keys()
        .filter(|name| !new.resources.contains_key(name))
    {
        tracing::info!(resource = %name, "{name} is gone: nobody declares it any more");
    }
}

/// What left the list; that its resource left is told by itself.
fn vanished(before: &Resource, now: &Resource) {
    let ids = before.devices.keys();
    let gone: Vec<_> = ids.filter(|id| !now.devices.contains_key(*id)).collect();
    if gone.is_empty() {
        return;
    }
    let (name, count) = (&now.name, gone.len());
    let shown = words::few(gone.into_iter(), words::IN_A_LINE);
    tracing::info!(resource = %name, "{count} device(s) of {name} are offered no more: {shown}");
}
