//! State of one resource of a vendor: the plugins registered for it, and the list that is offered.
//!
//! While a plugin is replaced, two of them exist for a moment. Each has its own connection; the
//! latest to register counts from its first list on, and the end of another one changes nothing.
//! Kubelets before 1.37 mix them up.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use super::{
    device_list::{DeviceMap, abandoned},
    plugin_client::PluginConnection,
};
use machinist_device::inventory::BackendOptions;

/// Maximum registrations of one resource: an update has two, and one may still be ending. A plugin
/// that keeps registering under new names loses its oldest registration.
pub(super) const MAX_REGISTRATIONS: usize = 3;
/// How long a resource without a plugin stays listed. Longer than any driver update takes; without
/// a limit, a plugin that was removed or renamed its resource would leave the old one listed for
/// ever.
pub(super) const RESOURCE_TTL: Duration = Duration::from_secs(3600);

/// One registration.
#[derive(Debug)]
struct PluginInstance {
    connection: PluginConnection,
    devices: Option<Arc<DeviceMap>>,
    /// Dropping it ends the stream.
    _stream: DropGuard,
}

/// The list to offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ActiveList {
    pub(super) devices: Arc<DeviceMap>,
    pub(super) options: BackendOptions,
}

/// See the module.
#[derive(Debug)]
pub(super) struct ResourceInstances {
    /// In the order of registration.
    instances: Vec<PluginInstance>,
    /// The last list in force; kept when its plugin ends.
    active: Option<ActiveList>,
    /// Since when no plugin has listed devices.
    unlisted_since: Option<Instant>,
}

impl ResourceInstances {
    /// For a resource that a plugin has just registered.
    pub(super) fn new() -> Self {
        Self {
            instances: Vec::new(),
            active: None,
            unlisted_since: None,
        }
    }

    /// For a resource that an earlier agent offered, until its plugin returns.
    pub(super) fn restored(last: ActiveList, now: Instant) -> Self {
        Self {
            active: Some(last),
            unlisted_since: Some(now),
            ..Self::new()
        }
    }

    /// Whether a plugin is registered with this socket name.
    pub(super) fn has(&self, endpoint: &str) -> bool {
        let mut all = self.instances.iter();
        all.any(|one| *one.connection.endpoint == *endpoint)
    }

    /// Adds a registration and ends an earlier one with the same socket name; its list stays for
    /// the grace period. If there are too many, also ends the oldest one and returns its socket
    /// name.
    pub(super) fn add_registration(
        &mut self,
        connection: PluginConnection,
        stream: DropGuard,
    ) -> Option<Arc<str>> {
        self.instances
            .retain(|one| one.connection.endpoint != connection.endpoint);
        let oldest = (self.instances.len() == MAX_REGISTRATIONS).then(|| self.instances.remove(0));
        self.instances.push(PluginInstance {
            connection,
            devices: None,
            _stream: stream,
        });
        self.update_active(Instant::now());
        oldest.map(|one| one.connection.endpoint)
    }

    /// Replaces the stream of a plugin that has to list again; its last list is in force until
    /// then.
    pub(super) fn replace_stream(&mut self, connection: PluginConnection, stream: DropGuard) {
        let same = |one: &&mut PluginInstance| one.connection.endpoint == connection.endpoint;
        if let Some(one) = self.instances.iter_mut().find(same) {
            (one.connection, one._stream) = (connection, stream);
        }
    }

    /// Records a list, unless its registration has ended.
    pub(super) fn record_list(&mut self, number: u64, devices: Arc<DeviceMap>) {
        let mut all = self.instances.iter_mut();
        if let Some(one) = all.find(|one| one.connection.number == number) {
            one.devices = Some(devices);
        }
        self.update_active(Instant::now());
    }

    /// Records that a plugin's stream ended; returns its socket name.
    pub(super) fn record_stream_end(&mut self, number: u64) -> Option<Arc<str>> {
        let mut all = self.instances.iter();
        let at = all.position(|one| one.connection.number == number)?;
        let instance = self.instances.remove(at);
        self.update_active(Instant::now());
        Some(instance.connection.endpoint)
    }

    /// The latest registration that has listed devices.
    fn listing(&self) -> Option<(&PluginInstance, &Arc<DeviceMap>)> {
        let mut newest = self.instances.iter().rev();
        newest.find_map(|one| Some((one, one.devices.as_ref()?)))
    }

    fn update_active(&mut self, now: Instant) {
        match self.listing() {
            Some((instance, devices)) => {
                let (options, devices) = (instance.connection.options, Arc::clone(devices));
                (self.active, self.unlisted_since) = (Some(ActiveList { devices, options }), None);
            }
            None => {
                self.unlisted_since.get_or_insert(now);
            }
        }
    }

    /// The plugin to call: the one whose list is in force, else the latest registered one.
    pub(super) fn connection(&self) -> Option<&PluginConnection> {
        let listing = self.listing().map(|(instance, _)| instance);
        let found = listing.or_else(|| self.instances.last());
        found.map(|one| &one.connection)
    }

    /// The list in force at `now`; `None` before the first list.
    pub(super) fn active_list(&self, now: Instant, grace: Duration) -> Option<ActiveList> {
        let last = self.active.as_ref()?;
        match self.unlisted_since {
            Some(since) if now >= since + grace => {
                let why = "plugin gone: no longer registered";
                Some(ActiveList {
                    devices: Arc::new(abandoned(&last.devices, why)),
                    options: last.options,
                })
            }
            _ => Some(last.clone()),
        }
    }

    /// The number of devices that count against the vendor's limit.
    pub(super) fn count(&self) -> usize {
        self.active.as_ref().map_or(0, |last| last.devices.len())
    }

    /// Whether it has no plugin and never had a list.
    pub(super) fn is_empty(&self) -> bool {
        self.instances.is_empty() && self.active.is_none()
    }

    /// Whether the grace period is over, so that its devices are listed as unhealthy only.
    pub(super) fn is_grace_over(&self, now: Instant, grace: Duration) -> bool {
        self.instances.is_empty()
            && self
                .unlisted_since
                .is_some_and(|since| now >= since + grace)
    }

    /// Whether it is to be withdrawn.
    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.instances.is_empty()
            && self
                .unlisted_since
                .is_some_and(|since| now >= since + RESOURCE_TTL)
    }

    /// When its state next changes by time alone.
    pub(super) fn next_change(&self, now: Instant, grace: Duration) -> Option<Instant> {
        let since = self.unlisted_since?;
        let mut times = [since + grace, since + RESOURCE_TTL].into_iter();
        times.find(|time| *time > now)
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::{kubelet::api::v1beta1 as api, plugin_proxy::device_list};
    use machinist_device::Health;

    const GRACE: Duration = Duration::from_secs(30);

    fn restored(now: Instant) -> ResourceInstances {
        let devices = ["a", "b"].map(|id| api::Device {
            id: id.to_owned(),
            health: if id == "a" { "Healthy" } else { "Unhealthy" }.to_owned(),
            topology: None,
        });
        let message = api::ListAndWatchResponse {
            devices: devices.into(),
        };
        let offer = ActiveList {
            devices: device_list::read(&message.encode_to_vec(), 10)
                .unwrap()
                .devices,
            options: BackendOptions {
                allocate: true,
                ..BackendOptions::default()
            },
        };
        ResourceInstances::restored(offer, now)
    }

    #[test]
    fn restored_devices_are_unhealthy_after_the_grace_period_and_withdrawn_after_an_hour() {
        let began = Instant::now();
        let instances = restored(began);
        let at = |seconds| began + Duration::from_secs(seconds);
        let offer = |seconds| instances.active_list(at(seconds), GRACE).unwrap();
        assert_eq!(offer(0), offer(29));
        assert_eq!(offer(29).devices["a"].health, Health::Healthy);
        let left = offer(30);
        assert_eq!(left.devices["a"].health, Health::Unhealthy);
        assert_eq!(left.devices["b"], offer(0).devices["b"], "it has a reason");
        assert_eq!(left.options, offer(0).options);
        assert!(!instances.is_grace_over(at(29), GRACE) && instances.is_grace_over(at(30), GRACE));
        assert!(!instances.is_expired(at(3599)) && instances.is_expired(at(3600)));
        assert_eq!(instances.count(), 2);
    }

    #[test]
    fn the_next_change_is_the_end_of_the_grace_period_and_then_of_the_ttl() {
        let began = Instant::now();
        let instances = restored(began);
        assert_eq!(instances.next_change(began, GRACE), Some(began + GRACE));
        assert_eq!(
            instances.next_change(began + GRACE, GRACE),
            Some(began + RESOURCE_TTL)
        );
        assert_eq!(instances.next_change(began + RESOURCE_TTL, GRACE), None);
        assert!(instances.connection().is_none() && !instances.is_empty());
    }

    #[test]
    fn a_resource_without_a_list_is_not_offered() {
        let instances = ResourceInstances::new();
        assert_eq!(instances.active_list(Instant::now(), GRACE), None);
        assert!(instances.is_empty());
    }
}
