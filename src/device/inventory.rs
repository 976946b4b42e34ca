//! What this machine can lend: resources, their devices, and how a container gets one.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    Refusal,
    name::{ResourceName, SHARE_MARK},
    pairs::Pairs,
    quantity::Quantity,
    rules::MOST_ENTRIES,
    source::Source,
    taint::NodeTaint,
    template::Template,
};
use crate::path::AbsPath;

/// Whether a device can be lent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Health {
    /// It can.
    Healthy,
    /// It cannot, but stays listed: the kubelet counts it as capacity.
    Unhealthy,
    /// A declaration names it and this machine never had it: shown to people, not to the kubelet.
    Missing,
}

impl Health {
    /// The word for it.
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

/// A node of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// On the host: the stable link where there is one, since the kubelet keeps its answers for as long as a
    /// pod lives and the kernel's names change meanwhile.
    pub host: AbsPath,
    /// Where containers expect it, unless a recipe says otherwise.
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

/// One device, whole; how many may share it is the resource's matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Its nodes; none for what only a runtime or its vendor knows how to hand out.
    pub nodes: Vec<DeviceNode>,
    /// Whether it can be lent.
    pub health: Health,
    /// Why it cannot, in words; always there unless it is healthy.
    pub reason: Option<String>,
    /// The NUMA nodes it is near to; empty when that is unknown or all the same.
    pub numa: Vec<u32>,
    /// What else is known of it, for people and for those who choose: `serial: A5XK3RJT`.
    #[serde(default)]
    pub attributes: Pairs<String>,
    /// How much it has of what claims may ask for: `memory: 40Gi`.
    #[serde(default, skip_serializing_if = "Pairs::is_empty")]
    pub capacity: Pairs<Quantity>,
    /// What a container gets with it; what the resource says where it says nothing.
    #[serde(default)]
    pub recipe: Option<Box<Recipe>>,
}

impl Device {
    /// Nobody answers for it: one that was well is so no longer, and says why.
    pub fn abandon(&mut self, why: &str) {
        if self.health == Health::Healthy {
            (self.health, self.reason) = (Health::Unhealthy, Some(why.to_owned()));
        }
    }
}

/// How requests for several shares fall on devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SharePolicy {
    /// On as many different devices as there are.
    #[default]
    Spread,
    /// On as few devices as possible.
    Packed,
}

/// How many containers may use one device at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// Shares of each device, at least 1.
    pub replicas: u32,
    /// Where the shares of one request should fall.
    pub policy: SharePolicy,
    /// Whether two shares of one device in one request are refused.
    pub strict: bool,
}

impl Share {
    /// A device is one container's alone.
    pub const ALONE: Self = Self {
        replicas: 1,
        policy: SharePolicy::Spread,
        strict: false,
    };
}

/// A device node that a container gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecipe {
    /// The node on the host.
    pub path: Template,
    /// Its path in the container; the same as on the host when not given.
    pub inside: Option<Template>,
    /// Any of `r`, `w` and `m`.
    pub permissions: String,
}

/// A directory or file of the host that a container gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MountRecipe {
    /// On the host, inside the allowed prefixes.
    pub from: AbsPath,
    /// In the container.
    pub to: AbsPath,
    /// Whether the container may only read it.
    pub read_only: bool,
}

/// What a container gets with a device: an answer without a question to anybody.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recipe {
    /// Device nodes.
    pub nodes: Vec<NodeRecipe>,
    /// Mounts.
    pub mounts: Vec<MountRecipe>,
    /// Environment variables.
    pub env: Pairs<Template>,
    /// Annotations for the container runtime.
    pub annotations: Pairs<Template>,
    /// Devices of the container device interface (CDI), as `vendor/class=name`.
    #[serde(default)]
    pub cdi: Vec<Template>,
}

impl Recipe {
    /// Whether it holds no more than one device may hand out.
    pub fn has_room(&self) -> bool {
        let most = [self.nodes.len(), self.mounts.len(), self.env.len()];
        most.iter().all(|count| *count <= MOST_ENTRIES)
    }
}

/// What is asked of a resource's source, instead of being answered from recipes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Asks {
    /// What a container gets.
    pub allocate: bool,
    /// Which devices are best together.
    pub preferred: bool,
    /// To make devices ready before each start of a container.
    pub pre_start: bool,
}

/// By which of the kubelet's two contracts a resource is served: never by both on one machine, since neither
/// knows what the other has given away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Serve {
    /// As an extended resource: pods ask for a number of devices.
    #[default]
    DevicePlugin,
    /// By dynamic resource allocation: pods have claims.
    Dra,
}

impl Serve {
    /// As declarations and `status` spell it.
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
    /// The name that pods ask for.
    pub name: ResourceName,
    /// Who offers it, such as `/etc/machinist/devices.d/fuse.yaml`.
    pub source: Source,
    /// How pods come by its devices.
    #[serde(default)]
    pub serve: Serve,
    /// How devices are shared.
    pub share: Share,
    /// What a container gets.
    pub recipe: Recipe,
    /// What its source wants to be asked.
    #[serde(default)]
    pub asks: Asks,
    /// By device id, without the number of a share.
    pub devices: BTreeMap<String, Device>,
}

impl Resource {
    /// The ids that the kubelet knows a device by: one for each share.
    pub fn share_ids<'a>(&'a self, id: &'a str) -> impl Iterator<Item = String> + use<'a> {
        (0..self.share.replicas).map(move |n| self.share_id(id, n))
    }

    /// The id of one share.
    pub fn share_id(&self, id: &str, number: u32) -> String {
        match self.share.replicas {
            1 => id.to_owned(),
            _ => format!("{id}{SHARE_MARK}{number}"),
        }
    }

    /// What of it no claim can keep, in words; none where its devices can be had by claim.
    pub fn unfit_for_claims(&self) -> Option<&'static str> {
        let own = self.devices.values();
        let own = own.filter_map(|device| device.recipe.as_deref());
        let mut recipes = std::iter::once(&self.recipe).chain(own);
        if matches!(self.source, Source::Plugin(_)) {
            Some("an unmodified device plugin cannot be served by claim")
        } else if self.asks.pre_start {
            Some("by claim nobody is told of a container's start: asks.pre_start cannot be kept")
        } else if recipes.any(|recipe| !recipe.annotations.is_empty()) {
            Some("by claim a container gets no annotations")
        } else {
            None
        }
    }

    /// The device behind an id of the kubelet's, with its own id, when this machine has it.
    pub fn find<'a>(&'a self, asked: &str) -> Option<(&'a str, &'a Device)> {
        let found = self.behind(asked);
        found.filter(|(_, device)| device.health != Health::Missing)
    }

    /// The same, whether this machine has it or not.
    pub fn behind<'a>(&'a self, asked: &str) -> Option<(&'a str, &'a Device)> {
        let id = if self.share.replicas == 1 {
            asked
        } else {
            let (id, number) = asked.rsplit_once(SHARE_MARK)?;
            let number: u32 = number.parse().ok()?;
            (number < self.share.replicas).then_some(id)?
        };
        let (id, device) = self.devices.get_key_value(id)?;
        Some((id.as_str(), device))
    }

    /// Whether this machine has a device of it, well or not.
    pub fn is_present(&self) -> bool {
        self.listed().next().is_some()
    }

    /// The devices that the kubelet is told about.
    pub fn listed(&self) -> impl Iterator<Item = (&str, &Device)> {
        self.devices
            .iter()
            .filter(|(_, device)| device.health != Health::Missing)
            .map(|(id, device)| (id.as_str(), device))
    }
}

/// Everything there is to lend at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// By name; one source owns each.
    pub resources: BTreeMap<ResourceName, Arc<Resource>>,
    /// What is wrong with sources, in words for people.
    pub problems: Vec<Refusal>,
    /// Set while no device may be lent: every device is then listed as unhealthy.
    pub withheld: Option<Withheld>,
    /// Units that declarations want stopped before the machine is changed or goes down.
    pub stop_units: BTreeSet<String>,
    /// Taints that declarations ask for, of resources that this machine has.
    pub taints: BTreeSet<NodeTaint>,
    /// Units whose state is the health of devices.
    pub probed_units: BTreeSet<String>,
}

/// That nothing is lent to anybody new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// Why, in words.
    pub why: Arc<str>,
    /// Allocations are refused, too. Before that a pod that the kubelet has admitted already gets what it
    /// was promised: it would fail for good, and leaves with the others.
    pub refuses: bool,
}

impl Inventory {
    /// The resources that are served so.
    pub fn served(&self, serve: Serve) -> impl Iterator<Item = (&ResourceName, &Arc<Resource>)> {
        let all = self.resources.iter();
        all.filter(move |(_, resource)| resource.serve == serve)
    }

    /// A device's health and reason as others see them, withholding included.
    pub fn verdict<'a>(&'a self, device: &'a Device) -> (Health, Option<String>) {
        match (&self.withheld, device.health) {
            (Some(Withheld { why, .. }), Health::Healthy) => {
                (Health::Unhealthy, Some(format!("withheld: {why}")))
            }
            _ => (device.health, device.reason.clone()),
        }
    }

    /// The same for a container that the kubelet chose this device for.
    pub fn verdict_for_allocation(&self, device: &Device) -> (Health, Option<String>) {
        match &self.withheld {
            Some(withheld) if !withheld.refuses => (device.health, device.reason.clone()),
            _ => self.verdict(device),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn device(node: &str, numa: &[u32]) -> Device {
        Device {
            nodes: vec![node.parse::<AbsPath>().unwrap().into()],
            health: Health::Healthy,
            reason: None,
            numa: numa.to_vec(),
            attributes: Pairs::default(),
            capacity: Pairs::default(),
            recipe: None,
        }
    }

    pub(crate) fn resource(replicas: u32, devices: &[(&str, &[u32])]) -> Resource {
        Resource {
            name: ResourceName::new("acme.dev/x").unwrap(),
            source: Source::Vendor("test".into()),
            serve: Serve::DevicePlugin,
            asks: Asks::default(),
            share: Share {
                replicas,
                ..Share::ALONE
            },
            recipe: Recipe {
                nodes: vec![NodeRecipe {
                    path: Template::new("{node}").unwrap(),
                    inside: None,
                    permissions: "rw".into(),
                }],
                ..Recipe::default()
            },
            devices: devices
                .iter()
                .map(|(id, numa)| ((*id).to_owned(), device(&format!("/dev/{id}"), numa)))
                .collect(),
        }
    }

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
    fn withholding_makes_every_device_unhealthy_and_says_why() {
        let inventory = Inventory {
            withheld: Some(Withheld {
                why: "update".into(),
                refuses: false,
            }),
            ..Inventory::default()
        };
        assert_eq!(
            inventory.verdict(&device("/dev/a", &[])),
            (Health::Unhealthy, Some("withheld: update".into()))
        );
        assert_eq!(
            inventory.verdict_for_allocation(&device("/dev/a", &[])),
            (Health::Healthy, None),
            "whoever was admitted before gets what was promised"
        );
    }
}
