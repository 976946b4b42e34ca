//! Logs the changes of the inventory.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    inventory::{Device, Health, Inventory, Resource},
    source::ResourceSource,
};
use machinist_base::{rate_limit::RateLimiter, text};

/// The average interval between log lines of one source.
const SOURCE_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// The number of log lines that a source may cause at once.
const BURST_LINES: u32 = 100;

/// Logs changes, with a rate limit for each source, so that a source whose devices change all the
/// time cannot fill the log.
#[derive(Debug, Default)]
pub(super) struct ChangeLogger {
    rates: BTreeMap<String, RateLimiter>,
}

impl ChangeLogger {
    /// Logs one line for each change.
    pub(super) fn log_changes(&mut self, old: &Inventory, new: &Inventory) {
        log_inventory_changes(old, new);
        for (name, resource) in &new.resources {
            let before = old.resources.get(name);
            let rate = self.rate(&resource.source);
            let Some(before) = before else {
                let devices = resource.devices.len();
                let source = &resource.source;
                if rate.take() {
                    tracing::info!(resource = %name, "{name} is declared in {source}: {devices} device(s)");
                }
                continue;
            };
            vanished(before, resource, rate);
            changed(before, resource, rate);
        }
        for (name, before) in &old.resources {
            if !new.resources.contains_key(name) && self.rate(&before.source).take() {
                tracing::info!(resource = %name, "{name} was removed: it is no longer declared");
            }
        }
        let all = || old.resources.values().chain(new.resources.values());
        self.rates
            .retain(|source, _| all().any(|one| one.source.to_string() == *source));
    }

    fn rate(&mut self, source: &ResourceSource) -> &mut RateLimiter {
        let rate = self.rates.entry(source.to_string());
        rate.or_insert_with(|| RateLimiter::per_interval(SOURCE_LOG_INTERVAL, BURST_LINES))
    }
}

/// Logs changes that concern all resources.
fn log_inventory_changes(old: &Inventory, new: &Inventory) {
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
            Some(withheld) => tracing::info!("allocation of devices disabled: {}", withheld.why),
            None => tracing::info!("allocation of devices enabled again"),
        }
    }
}

/// Logs each device whose health changed; if they are many, one line for each health state.
fn changed(before: &Resource, now: &Resource, rate: &mut RateLimiter) {
    let name = &now.name;
    let has_changed = |(id, device): &(&String, &Device)| {
        let known = before.devices.get(*id);
        known.is_some_and(|known| known.health != device.health)
    };
    let changed_devices: Vec<_> = now.devices.iter().filter(has_changed).collect();
    if changed_devices.len() <= text::MAX_NAMES_PER_LINE {
        for (id, device) in changed_devices.into_iter().filter(|_| rate.take()) {
            let (health, why) = (device.health, why(device));
            tracing::info!(resource = %name, "{id} of {name} is {health}: {why}");
        }
        return;
    }
    let mut by_health: BTreeMap<Health, Vec<(&String, &Device)>> = BTreeMap::new();
    for one in changed_devices {
        by_health.entry(one.1.health).or_default().push(one);
    }
    for (health, devices) in by_health.into_iter().filter(|_| rate.take()) {
        let (count, why) = (devices.len(), why(devices[0].1));
        let shown = text::join_limited(
            devices.into_iter().map(|(id, _)| id),
            text::MAX_NAMES_PER_LINE,
        );
        tracing::info!(resource = %name, "{count} device(s) of {name} are {health}, the first because {why:?}: {shown}");
    }
}

fn why(device: &Device) -> &str {
    device.reason.as_deref().unwrap_or("available again")
}

/// Logs devices that are not listed any more; the removal of a whole resource is logged separately.
fn vanished(before: &Resource, now: &Resource, rate: &mut RateLimiter) {
    let ids = before.devices.keys();
    let vanished_ids: Vec<_> = ids.filter(|id| !now.devices.contains_key(*id)).collect();
    if vanished_ids.is_empty() || !rate.take() {
        return;
    }
    let (name, count) = (&now.name, vanished_ids.len());
    let shown = text::join_limited(vanished_ids.into_iter(), text::MAX_NAMES_PER_LINE);
    tracing::info!(resource = %name, "{count} device(s) of {name} are no longer offered: {shown}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::resource;

    #[test]
    fn change_log_is_rate_limited_per_source() {
        let mut logger = ChangeLogger::default();
        let (one, other) = (
            ResourceSource::Vendor("one".into()),
            ResourceSource::Vendor("other".into()),
        );
        let logged = (0..10_000).filter(|_| logger.rate(&one).take()).count();
        assert!((100..=101).contains(&logged), "{logged}");
        assert!(logger.rate(&other).take());
        // The rate limit of a removed source is removed too.
        let mut inventory = Inventory::default();
        let mut left = resource(1, &[]);
        left.source = one;
        inventory.resources.insert(left.name.clone(), left.into());
        logger.log_changes(&inventory, &inventory);
        assert!(logger.rates.keys().eq(["vendor one"]), "{logger:?}");
    }
}
