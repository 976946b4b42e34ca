//! Limits what is logged about the plugins of a vendor.

use std::{collections::BTreeMap, time::Duration};

use machinist_base::rate_limit::{LogOnce, RateLimiter};
use machinist_device::{ResourceName, source::ResourceSource};

/// Average interval of log lines about plugins that keep connecting and disconnecting.
const CONNECTION_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Devices of a list that are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IgnoredDevices {
    /// Beyond the maximum number of devices.
    pub(super) excess: usize,
    /// With an invalid ID.
    pub(super) invalid: usize,
}

impl IgnoredDevices {
    pub(super) const fn is_any(self) -> bool {
        self.excess + self.invalid > 0
    }
}

/// Conditions that were already logged, so that they are not logged again.
#[derive(Debug)]
pub(super) struct PluginLog {
    /// Other sources that own a resource of this vendor.
    owners: BTreeMap<ResourceName, ResourceSource>,
    ignored_devices: BTreeMap<ResourceName, IgnoredDevices>,
    refusals: LogOnce,
    /// Limits log lines about plugins that connect and disconnect, and about our socket.
    connections: RateLimiter,
}

impl Default for PluginLog {
    fn default() -> Self {
        Self {
            owners: BTreeMap::new(),
            ignored_devices: BTreeMap::new(),
            refusals: LogOnce::default(),
            connections: RateLimiter::per_interval(CONNECTION_LOG_INTERVAL, 50),
        }
    }
}

impl PluginLog {
    /// Whether one more connection event may be logged.
    pub(super) fn take_connection_line(&mut self) -> bool {
        self.connections.take()
    }

    /// Logs a refusal, unless it was logged before.
    pub(super) fn take_refusal(&mut self, refusal: &str) -> Option<u64> {
        self.refusals.take(refusal)
    }

    /// Records the source that owns a resource; returns whether it is a new one.
    pub(super) fn record_owner(&mut self, name: &ResourceName, owner: &ResourceSource) -> bool {
        self.owners.insert(name.clone(), owner.clone()).as_ref() != Some(owner)
    }

    /// Records that no other source owns the resource.
    pub(super) fn clear_owner(&mut self, name: &ResourceName) {
        self.owners.remove(name);
    }

    /// Records the ignored devices of the last list; returns whether that is a change.
    pub(super) fn record_ignored(&mut self, name: &ResourceName, ignored: IgnoredDevices) -> bool {
        let before = self.ignored_devices.insert(name.clone(), ignored);
        before.unwrap_or_default() != ignored
    }

    /// Forgets the lists of a resource that is withdrawn.
    pub(super) fn clear_ignored(&mut self, name: &ResourceName) {
        self.ignored_devices.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_reconnects_again_and_again_causes_few_log_lines() {
        tokio::time::advance(Duration::from_secs(3600)).await;
        let mut log = PluginLog::default();
        assert_eq!((0..1000).filter(|_| log.take_connection_line()).count(), 50);
        tokio::time::advance(CONNECTION_LOG_INTERVAL).await;
        assert_eq!((0..1000).filter(|_| log.take_connection_line()).count(), 1);
    }
}
