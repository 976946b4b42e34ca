//! Logs the changes of the inventory.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    inventory::{Device, Health, Inventory, Resource},
    source::ResourceSource,
};
use machinist_base::{rate_limit::LogRates, text};

/// The average interval between log lines of one source.
const SOURCE_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// The number of log lines that a source may cause at once.
const BURST_LINES: u32 = 100;

/// Logs changes, with a rate limit for each source, so that a source whose devices change all the
/// time cannot fill the log.
#[derive(Debug)]
pub(super) struct ChangeLogger {
    rates: LogRates,
}

impl Default for ChangeLogger {
    fn default() -> Self {
        Self {
            rates: LogRates::new(SOURCE_LOG_INTERVAL, BURST_LINES),
        }
    }
}

impl ChangeLogger {
    /// Logs one line for each change.
    pub(super) fn log_changes(&mut self, old: &Inventory, new: &Inventory) {
        self.log_inventory_changes(old, new);
        for (name, resource) in &new.resources {
            let before = old.resources.get(name);
            let Some(before) = before else {
                let devices = resource.devices.len();
                let source = &resource.source;
                if let Some(suppressed) = self.take(source) {
                    tracing::info!(resource = %name, suppressed, "{name} is declared in {source}: {devices} device(s)");
                }
                continue;
            };
            self.vanished(before, resource);
            self.changed(before, resource);
        }
        for (name, before) in &old.resources {
            if !new.resources.contains_key(name)
                && let Some(suppressed) = self.take(&before.source)
            {
                tracing::info!(resource = %name, suppressed, "{name} was removed: it is no longer declared");
            }
        }
    }

    /// Whether the source may cause one more line; if so, the number of those suppressed before.
    fn take(&self, source: &ResourceSource) -> Option<u64> {
        self.rates.take(&source.to_string())
    }

    /// Logs changes that concern all resources.
    fn log_inventory_changes(&self, old: &Inventory, new: &Inventory) {
        for problem in &new.problems {
            if !old.problems.contains(problem)
                && let Some(suppressed) = self.rates.take("problems")
            {
                tracing::warn!(suppressed, "{problem}");
            }
        }
        let why = |inventory: &Inventory| {
            inventory
                .allocation_disabled
                .as_ref()
                .map(|one| one.why.clone())
        };
        if why(old) != why(new) {
            match &new.allocation_disabled {
                Some(disabled) => {
                    tracing::info!("allocation of devices disabled: {}", disabled.why)
                }
                None => tracing::info!("allocation of devices enabled again"),
            }
        }
    }

    /// Logs each device whose health changed; if they are many, one line for each health state.
    fn changed(&self, before: &Resource, now: &Resource) {
        let name = &now.name;
        let has_changed = |(id, device): &(&String, &Device)| {
            let known = before.devices.get(*id);
            known.is_some_and(|known| known.health != device.health)
        };
        let changed_devices: Vec<_> = now.devices.iter().filter(has_changed).collect();
        if changed_devices.len() <= text::MAX_NAMES_PER_LINE {
            for (id, device) in changed_devices {
                let (health, why) = (device.health, why(device));
                if let Some(suppressed) = self.take(&now.source) {
                    tracing::info!(resource = %name, suppressed, "{id} of {name} is {health}: {why}");
                }
            }
            return;
        }
        let mut by_health: BTreeMap<Health, Vec<(&String, &Device)>> = BTreeMap::new();
        for one in changed_devices {
            by_health.entry(one.1.health).or_default().push(one);
        }
        for (health, devices) in by_health {
            let Some(suppressed) = self.take(&now.source) else {
                return;
            };
            let (count, why) = (devices.len(), why(devices[0].1));
            let shown = text::join_limited(
                devices.into_iter().map(|(id, _)| id),
                text::MAX_NAMES_PER_LINE,
            );
            tracing::info!(resource = %name, suppressed, "{count} device(s) of {name} are {health}, the first because {why:?}: {shown}");
        }
    }

    /// Logs devices that are not listed any more; the removal of a whole resource is logged
    /// separately.
    fn vanished(&self, before: &Resource, now: &Resource) {
        let ids = before.devices.keys();
        let vanished_ids: Vec<_> = ids.filter(|id| !now.devices.contains_key(*id)).collect();
        if vanished_ids.is_empty() {
            return;
        }
        let Some(suppressed) = self.take(&now.source) else {
            return;
        };
        let (name, count) = (&now.name, vanished_ids.len());
        let shown = text::join_limited(vanished_ids.into_iter(), text::MAX_NAMES_PER_LINE);
        tracing::info!(resource = %name, suppressed, "{count} device(s) of {name} are no longer offered: {shown}");
    }
}

fn why(device: &Device) -> &str {
    device.reason.as_deref().unwrap_or("available again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::resource;

    #[test]
    fn change_log_is_rate_limited_per_source() {
        let logger = ChangeLogger::default();
        let (one, other) = (
            ResourceSource::Vendor("one".into()),
            ResourceSource::Vendor("other".into()),
        );
        let taken = (0..10_000).filter(|_| logger.take(&one).is_some());
        let logged = taken.count();
        assert!((100..=101).contains(&logged), "{logged}");
        assert!(logger.take(&other).is_some());
    }

    #[test]
    fn vendors_that_withdraw_and_offer_in_turn_get_no_new_rate_limit() {
        let mut logger = ChangeLogger::default();
        let with = |vendor: &str| {
            let mut one = resource(1, &[("a", &[])]);
            one.source = ResourceSource::Vendor(vendor.into());
            let resources = [(one.name.clone(), one.into())].into();
            Inventory {
                resources,
                ..Inventory::default()
            }
        };
        let (none, one, other) = (Inventory::default(), with("one"), with("other"));
        for _ in 0..200 {
            for (old, new) in [
                (&none, &one),
                (&one, &none),
                (&none, &other),
                (&other, &none),
            ] {
                logger.log_changes(old, new);
            }
        }
        assert!(
            logger
                .take(&one.resources.values().next().unwrap().source)
                .is_none()
        );
    }
}
