//! Changes in words, for the log.

use std::collections::BTreeMap;

use crate::{
    device::inventory::{Device, Health, Inventory, Resource},
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
            changed(before, resource);
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

/// Each device whose health changed; of many at once how many of each.
fn changed(before: &Resource, now: &Resource) {
    let name = &now.name;
    let is_news = |(id, device): &(&String, &Device)| {
        let known = before.devices.get(*id);
        known.is_some_and(|known| known.health != device.health)
    };
    let news: Vec<_> = now.devices.iter().filter(is_news).collect();
    if news.len() <= words::IN_A_LINE {
        for (id, device) in news {
            let (health, why) = (device.health, why(device));
            tracing::info!(resource = %name, "{id} of {name} is {health}: {why}");
        }
        return;
    }
    let mut by_health: BTreeMap<Health, Vec<(&String, &Device)>> = BTreeMap::new();
    for one in news {
        by_health.entry(one.1.health).or_default().push(one);
    }
    for (health, devices) in by_health {
        let (count, why) = (devices.len(), why(devices[0].1));
        let shown = words::few(devices.into_iter().map(|(id, _)| id), words::IN_A_LINE);
        tracing::info!(resource = %name, "{count} device(s) of {name} are {health}, the first because {why:?}: {shown}");
    }
}

fn why(device: &Device) -> &str {
    device.reason.as_deref().unwrap_or("it is back")
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
