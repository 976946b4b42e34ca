//! The inventory of this machine: its resources, their devices, and the container allocation of each.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    Refusal,
    mount_allowlist::MAX_ENTRIES,
    quantity::Quantity,
    resource_name::{ResourceName, SHARE_SEPARATOR},
    small_map::SmallMap,
    source::ResourceSource,
    taint::NodeTaint,
    template::Template,
};
use machinist_base::abs_path::AbsPath;

/// Whether a device can be allocated now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Health {
    /// It can be allocated.
    Healthy,
    /// It cannot be allocated but stays listed: the kubelet counts it as capacity.
    Unhealthy,
    /// A declaration names it and this machine never had it: shown to users, not to the kubelet.
    Missing,
}

impl Health {
    /// The name of this state.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
            Self::Missing => "Missing",
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A device node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// The path on the host: the stable link if there is one, since the kubelet keeps an allocation
    /// for as long as a pod lives, and the kernel's names may change in that time.
    pub host: AbsPath,
    /// The path in containers, unless a device spec overrides it.
    pub inside: AbsPath,
}

impl From<AbsPath> for DeviceNode {
    fn from(path: AbsPath) -> Self {
        Self {
            inside: path.clone(),
            host: path,
        }
    }
}

/// One whole device; how many containers may share it is a property of the resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Its nodes; empty for devices that only a runtime or the vendor can hand out.
    pub nodes: Vec<DeviceNode>,
    /// Whether it can be allocated.
    pub health: Health,
    /// Why it cannot, as text; always set unless it is healthy.
    pub reason: Option<String>,
    /// The NUMA nodes it is near to; empty when that is unknown or all are equally near.
    pub numa: Vec<u32>,
    /// Further attributes, for users and for selection: `serial: A5XK3RJT`.
    #[serde(default)]
    pub attributes: SmallMap<String>,
    /// Its capacities that claims may request: `memory: 40Gi`.
    #[serde(default, skip_serializing_if = "SmallMap::is_empty")]
    pub capacity: SmallMap<Quantity>,
    /// The device's own device spec; none means that the resource's applies.
    #[serde(default)]
    pub recipe: Option<Box<DeviceSpec>>,
}

impl Device {
    /// Marks a healthy device as unhealthy, for the reason `why`, because its source is unreachable.
    pub fn mark_unreachable(&mut self, why: &str) {
        if self.health == Health::Healthy {
            (self.health, self.reason) = (Health::Unhealthy, Some(why.to_owned()));
        }
    }
}

/// How a request for several shares is distributed over devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SharePolicy {
    /// Over as many different devices as possible.
    #[default]
    Spread,
    /// Over as few devices as possible.
    Packed,
}

/// How many containers may use one device at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// Shares of each device, at least 1.
    pub replicas: u32,
    /// How the shares of one request are distributed.
    pub policy: SharePolicy,
    /// Whether two shares of one device in one request are refused.
    pub strict: bool,
}

impl Share {
    /// Each device is used by one container at a time.
    pub const EXCLUSIVE: Self = Self {
        replicas: 1,
        policy: SharePolicy::Spread,
        strict: false,
    };
}

/// A device node to add to a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNodeSpec {
    /// The path of the node on the host.
    pub path: Template,
    /// Its path in the container; none means the same as on the host.
    pub inside: Option<Template>,
    /// Any of `r`, `w` and `m`.
    pub permissions: String,
}

/// A directory or file of the host to mount into a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MountSpec {
    /// The path on the host, below one of the allowed prefixes.
    pub from: AbsPath,
    /// The path in the container.
    pub to: AbsPath,
    /// Whether the mount is read-only.
    pub read_only: bool,
}

/// A device spec: what a container gets with a device, without asking the source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceSpec {
    /// Device nodes.
    pub nodes: Vec<DeviceNodeSpec>,
    /// Mounts.
    pub mounts: Vec<MountSpec>,
    /// Environment variables.
    pub env: SmallMap<Template>,
    /// Annotations for the container runtime.
    pub annotations: SmallMap<Template>,
    /// Devices of the container device interface (CDI), as `vendor/class=name`.
    #[serde(default)]
    pub cdi: Vec<Template>,
}

impl DeviceSpec {
    /// Whether it is within the limits for one device.
    pub fn has_room(&self) -> bool {
        let most = [self.nodes.len(), self.mounts.len(), self.env.len()];
        most.iter().all(|count| *count <= MAX_ENTRIES)
    }
}

/// The calls that are forwarded to a resource's source instead of being answered from device specs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendOptions {
    /// `Allocate`: what a container gets.
    pub allocate: bool,
    /// `GetPreferredAllocation`: which devices to choose.
    pub preferred: bool,
    /// `PreStartContainer`: make devices ready before each start of a container.
    pub pre_start: bool,
}

/// The kubelet API that serves a resource: never both on one machine, since neither knows what the
/// other has allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServeMode {
    /// The device plugin API: pods request a number of an extended resource.
    #[default]
    DevicePlugin,
    /// Dynamic resource allocation (DRA): pods have claims.
    Dra,
}

impl ServeMode {
    /// The spelling in declarations and in `status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DevicePlugin => "devicePlugin",
            Self::Dra => "dra",
        }
    }
}

/// One resource and all its devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// The name that pods request.
    pub name: ResourceName,
    /// The source of the resource, such as `/etc/machinist/devices.d/fuse.yaml`.
    pub source: ResourceSource,
    /// The kubelet API by which pods get its devices.
    #[serde(default)]
    pub serve: ServeMode,
    /// How devices are shared.
    pub share: Share,
    /// The device spec that applies to devices without their own.
    pub recipe: DeviceSpec,
    /// The calls that its source answers itself.
    #[serde(default)]
    pub asks: BackendOptions,
    /// By device id, without the share number.
    pub devices: BTreeMap<String, Device>,
}

impl Resource {
    /// The ids by which the kubelet knows a device: one for each share.
    pub fn share_ids<'a>(&'a self, id: &'a str) -> impl Iterator<Item = String> + use<'a> {
        (0..self.share.replicas).map(move |n| self.share_id(id, n))
    }

    /// The id of one share.
    pub fn share_id(&self, id: &str, number: u32) -> String {
        match self.share.replicas {
            1 => id.to_owned(),
            _ => format!("{id}{SHARE_SEPARATOR}{number}"),
        }
    }

    /// Why its devices cannot be served by claims, as text; none if they can.
    pub fn claim_incompatibility(&self) -> Option<&'static str> {
        let own = self.devices.values();
        let own = own.filter_map(|device| device.recipe.as_deref());
        let mut recipes = std::iter::once(&self.recipe).chain(own);
        if matches!(self.source, ResourceSource::Plugin(_)) {
            Some("serve: dra is not supported for a proxied device plugin")
        } else if self.asks.pre_start {
            Some("serve: dra has no PreStart call: asks.pre_start is not supported")
        } else if recipes.any(|recipe| !recipe.annotations.is_empty()) {
            Some("annotations are not supported with serve: dra")
        } else {
            None
        }
    }

    /// The device behind an id that the kubelet uses, with the device's own id, if this machine has
    /// it.
    pub fn find<'a>(&'a self, asked: &str) -> Option<(&'a str, &'a Device)> {
        let found = self.find_with_missing(asked);
        found.filter(|(_, device)| device.health != Health::Missing)
    }

    /// Like [`Resource::find`], but includes devices that are missing.
    pub fn find_with_missing<'a>(&'a self, asked: &str) -> Option<(&'a str, &'a Device)> {
        let id = if self.share.replicas == 1 {
            asked
        } else {
            let (id, number) = asked.rsplit_once(SHARE_SEPARATOR)?;
            let number: u32 = number.parse().ok()?;
            (number < self.share.replicas).then_some(id)?
        };
        let (id, device) = self.devices.get_key_value(id)?;
        Some((id.as_str(), device))
    }

    /// Whether this machine has a device of it, healthy or not.
    pub fn is_present(&self) -> bool {
        self.advertised().next().is_some()
    }

    /// The devices that are advertised to the kubelet.
    pub fn advertised(&self) -> impl Iterator<Item = (&str, &Device)> {
        self.devices
            .iter()
            .filter(|(_, device)| device.health != Health::Missing)
            .map(|(id, device)| (id.as_str(), device))
    }
}

/// A snapshot of all resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// By name; each is owned by one source.
    pub resources: BTreeMap<ResourceName, Arc<Resource>>,
    /// Problems with sources, for users.
    pub problems: Vec<Refusal>,
    /// Set while allocation is disabled: every device is then advertised as unhealthy.
    pub allocation_disabled: Option<AllocationDisabled>,
    /// The units that declarations want stopped before the machine is changed or goes down.
    pub stop_units: BTreeSet<String>,
    /// Taints that declarations request, of resources that this machine has.
    pub taints: BTreeSet<NodeTaint>,
    /// Units whose state determines the health of devices.
    pub probed_units: BTreeSet<String>,
}

/// The state in which new allocations are disabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationDisabled {
    /// The reason, as text.
    pub why: Arc<str>,
    /// Whether `Allocate` is refused too. While it is not, a pod that the kubelet has admitted
    /// already still gets its devices: it would fail for good, and is drained with the others.
    pub refuses: bool,
}

impl Inventory {
    /// The resources that are served by this API.
    pub fn served_by(
        &self,
        serve: ServeMode,
    ) -> impl Iterator<Item = (&ResourceName, &Arc<Resource>)> {
        let all = self.resources.iter();
        all.filter(move |(_, resource)| resource.serve == serve)
    }

    /// A device's health and reason as reported to others: while allocation is disabled, a healthy
    /// device is reported as unhealthy.
    pub fn reported_health<'a>(&'a self, device: &'a Device) -> (Health, Option<String>) {
        match (&self.allocation_disabled, device.health) {
            (Some(AllocationDisabled { why, .. }), Health::Healthy) => (
                Health::Unhealthy,
                Some(format!("allocation disabled: {why}")),
            ),
            _ => (device.health, device.reason.clone()),
        }
    }

    /// Like [`Inventory::reported_health`], for an allocation by the kubelet: disabled allocation only counts
    /// if it refuses `Allocate` too.
    pub fn allocation_health(&self, device: &Device) -> (Health, Option<String>) {
        match &self.allocation_disabled {
            Some(allocation_disabled) if !allocation_disabled.refuses => {
                (device.health, device.reason.clone())
            }
            _ => self.reported_health(device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{device, resource};

    #[test]
    fn shares_are_found_by_number_and_only_those_that_exist() {
        let shared = resource(2, &[("a", &[])]);
        let ids: Vec<_> = shared.share_ids("a").collect();
        assert_eq!(ids, ["a::0", "a::1"]);
        assert!(shared.find("a::1").is_some());
        for unknown in ["a", "a::2", "a::-1", "a::x", "b::0", ""] {
            assert!(shared.find(unknown).is_none(), "{unknown}");
        }
        let alone = resource(1, &[("a", &[])]);
        assert!(alone.find("a").is_some() && alone.find("a::0").is_none());
    }

    #[test]
    fn disabled_allocation_makes_every_device_unhealthy_with_the_reason() {
        let inventory = Inventory {
            allocation_disabled: Some(AllocationDisabled {
                why: "update".into(),
                refuses: false,
            }),
            ..Inventory::default()
        };
        assert_eq!(
            inventory.reported_health(&device("/dev/a", &[])),
            (
                Health::Unhealthy,
                Some("allocation disabled: update".into())
            )
        );
        assert_eq!(
            inventory.allocation_health(&device("/dev/a", &[])),
            (Health::Healthy, None),
            "pods admitted before get their devices"
        );
    }
}
