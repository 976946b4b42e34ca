//! The state of each resource in the kubelet's device manager, in memory and in its checkpoint.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use machinist_device_plugins::kubelet::api::v1beta1 as api;
use serde_json::{Value, json};

/// Next to the sockets; it survives the kubelet.
pub(super) const CHECKPOINT: &str = "kubelet_internal_checkpoint";

/// The kubelet's state of one resource.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The socket name of the last registration.
    pub endpoint: String,
    /// Every list received since that registration, as `id=health`.
    pub lists: Vec<Vec<String>>,
    /// Whether the stream of that registration is still open.
    pub streaming: bool,
    /// Registrations since the kubelet's start.
    pub registrations: usize,
    /// How often the socket was dialled for the last registration until the plugin answered.
    pub dialled: usize,
    /// The plugin's options, requested during the registration.
    pub options: api::DevicePluginOptions,
    /// The plugin has been disconnected, and is not called until the next registration.
    pub(super) stopped: bool,
    pub(super) healthy: BTreeSet<String>,
    pub(super) unhealthy: BTreeSet<String>,
    /// Devices that are allocated to containers.
    pub(super) allocated: BTreeSet<String>,
}

pub type ResourceAccounts = BTreeMap<String, Known>;

impl Known {
    /// The latest list; empty when none was received.
    pub fn list(&self) -> &[String] {
        self.lists.last().map_or(&[], Vec::as_slice)
    }

    /// Capacity and allocatable count, as the Node reports them.
    pub fn counts(&self) -> (usize, usize) {
        let healthy = self.healthy.len();
        (healthy + self.unhealthy.len(), healthy)
    }

    /// Replaces the plugin. Devices are kept until the new plugin sends its list.
    pub(super) fn register(
        &mut self,
        endpoint: String,
        (dialled, options): (usize, api::DevicePluginOptions),
    ) {
        self.registrations += 1;
        (self.endpoint, self.dialled, self.options) = (endpoint, dialled, options);
        (self.stopped, self.streaming) = (false, false);
        self.lists.clear();
    }

    /// A list replaces the previous one, whichever plugin of the resource sent it.
    pub(super) fn take(&mut self, devices: &[api::Device]) {
        let named = |one: &api::Device| format!("{}={}", one.id, one.health);
        self.lists.push(devices.iter().map(named).collect());
        let (healthy, unhealthy): (Vec<_>, Vec<_>) =
            devices.iter().partition(|one| one.health == "Healthy");
        let ids = |some: Vec<&api::Device>| some.into_iter().map(|one| one.id.clone()).collect();
        (self.healthy, self.unhealthy) = (ids(healthy), ids(unhealthy));
    }

    /// The current plugin has disconnected.
    pub(super) fn stop(&mut self) {
        (self.stopped, self.streaming) = (true, false);
        let mut healthy = std::mem::take(&mut self.healthy);
        self.unhealthy.append(&mut healthy);
    }
}

/// Writes the checkpoint, after each list. Remembered resources that are not registered again have
/// no devices.
pub(super) fn write(directory: &Path, books: &ResourceAccounts, remembered: &BTreeSet<String>) {
    let mut resources: BTreeMap<&str, Vec<&str>> = remembered
        .iter()
        .map(|name| (name.as_str(), Vec::new()))
        .collect();
    for (name, known) in books {
        let healthy = known.healthy.iter().map(String::as_str).collect();
        resources.insert(name, healthy);
    }
    let data = json!({"PodDeviceEntries": null, "RegisteredDevices": resources});
    let whole = json!({"Data": data, "Checksum": 0});
    let partial = directory.join(".checkpoint");
    std::fs::write(&partial, whole.to_string()).unwrap();
    std::fs::rename(partial, directory.join(CHECKPOINT)).unwrap();
}

/// The resources of the previous kubelet: their devices count again when they are listed again.
pub(super) fn read(directory: &Path) -> BTreeSet<String> {
    let Ok(text) = std::fs::read_to_string(directory.join(CHECKPOINT)) else {
        return BTreeSet::new();
    };
    let whole: Value = serde_json::from_str(&text).unwrap();
    let registered = whole["Data"]["RegisteredDevices"].as_object().unwrap();
    registered.keys().cloned().collect()
}
