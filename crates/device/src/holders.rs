//! The holders of devices: which container has which device, as reported by the kubelet.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::dra::device_names::DeviceKey;

/// A container that has a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Its pod's namespace.
    pub namespace: String,
    /// Its pod's name.
    pub pod: String,
    /// Its name in the pod.
    pub container: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.pod, self.container)
    }
}

/// The allocations of this node: which container has which device, including devices of other
/// plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceHolders {
    /// By resource and by the kubelet's device id.
    devices: BTreeMap<String, BTreeMap<String, Holder>>,
    /// Devices allocated by claim, by their name in this node's pool.
    claimed: BTreeMap<String, Holder>,
}

impl DeviceHolders {
    /// Records that a container has a device. If two containers of a pod are listed for one device,
    /// such as an init container and the one that reuses its device, the first stays.
    pub fn add(&mut self, resource: &str, id: String, holder: Holder) {
        let devices = self.devices.entry(resource.to_owned()).or_default();
        devices.entry(id).or_insert(holder);
    }

    /// Records that a container has a device by claim. If several containers share a claim, the first
    /// stays.
    pub fn add_claimed(&mut self, device: String, holder: Holder) {
        self.claimed.entry(device).or_insert(holder);
    }

    /// The container that has a device of this node's pool by claim.
    pub fn claim_holder(&self, device: &str) -> Option<&Holder> {
        self.claimed.get(device)
    }

    /// Moves claimed devices to the others, by resource and id; `names` maps the names in the pool.
    #[must_use]
    pub fn resolve_claimed(mut self, names: &BTreeMap<String, DeviceKey>) -> Self {
        for (device, holder) in std::mem::take(&mut self.claimed) {
            if let Some((resource, id)) = names.get(&device) {
                self.add(resource.as_str(), id.clone(), holder);
            }
        }
        self
    }

    /// The container that has this device.
    pub fn of(&self, resource: &str, id: &str) -> Option<&Holder> {
        self.devices.get(resource)?.get(id)
    }

    /// The allocated devices of this resource, by id.
    pub fn of_resource(&self, resource: &str) -> impl Iterator<Item = (&str, &Holder)> {
        let devices = self.devices.get(resource).into_iter().flatten();
        devices.map(|(id, holder)| (id.as_str(), holder))
    }

    /// Keeps only devices of these resources.
    #[must_use]
    pub fn only(mut self, resources: &BTreeSet<&str>) -> Self {
        self.devices
            .retain(|resource, _| resources.contains(resource.as_str()));
        self
    }

    /// All allocated devices: resource, id and container.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &Holder)> {
        self.devices.iter().flat_map(|(resource, devices)| {
            let devices = devices.iter();
            devices.map(move |(id, holder)| (resource.as_str(), id.as_str(), holder))
        })
    }

    /// The number of devices of each resource that each container has.
    pub fn counted(&self) -> BTreeMap<Holder, BTreeMap<String, usize>> {
        let mut counted: BTreeMap<Holder, BTreeMap<String, usize>> = BTreeMap::new();
        for (resource, _, holder) in self.iter() {
            let of = counted.entry(holder.clone()).or_default();
            *of.entry(resource.to_owned()).or_default() += 1;
        }
        counted
    }
}

/// The known allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HolderSnapshot {
    /// The kubelet has not been asked yet.
    #[default]
    NotQueried,
    /// The kubelet's last report.
    Known(DeviceHolders),
    /// The kubelet could not be asked, for this reason.
    Unknown(String),
}

impl HolderSnapshot {
    /// The container that has this device; none if no container has it, or if that is not known.
    pub fn of(&self, resource: &str, id: &str) -> Option<&Holder> {
        match self {
            Self::Known(holders) => holders.of(resource, id),
            Self::NotQueried | Self::Unknown(_) => None,
        }
    }

    /// The known allocated devices of this resource, by id.
    pub fn of_resource(&self, resource: &str) -> impl Iterator<Item = (&str, &Holder)> {
        let in_use = match self {
            Self::Known(holders) => Some(holders),
            Self::NotQueried | Self::Unknown(_) => None,
        };
        in_use
            .into_iter()
            .flat_map(move |holders| holders.of_resource(resource))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pod: &str) -> Holder {
        Holder {
            namespace: "lab".into(),
            pod: pod.into(),
            container: "main".into(),
        }
    }

    #[test]
    fn devices_are_counted_per_holder_for_own_resources_only() {
        let mut all = DeviceHolders::default();
        all.add("acme.dev/x", "a".into(), holder("p"));
        all.add("acme.dev/x", "b".into(), holder("p"));
        all.add("acme.dev/x", "b".into(), holder("late"));
        all.add("nvidia.com/gpu", "c".into(), holder("q"));
        assert_eq!(all.of("acme.dev/x", "b"), Some(&holder("p")));
        assert_eq!(all.of("acme.dev/x", "c"), None);
        let ours = all.only(&BTreeSet::from(["acme.dev/x"]));
        let counted = ours.counted();
        assert_eq!(counted.len(), 1);
        assert_eq!(counted[&holder("p")]["acme.dev/x"], 2);
        assert_eq!(holder("p").to_string(), "lab/p/main");
    }

    #[test]
    fn claim_holders_are_found_by_resource_and_id() {
        let mut all = DeviceHolders::default();
        all.add_claimed("fuse-1".into(), holder("p"));
        all.add_claimed("strange".into(), holder("q"));
        assert_eq!(all.of("acme.dev/x", "fuse"), None);
        assert_eq!(all.claim_holder("fuse-1"), Some(&holder("p")));
        let x = crate::ResourceName::new("acme.dev/x").unwrap();
        let names = BTreeMap::from([("fuse-1".to_owned(), (x, "fuse".to_owned()))]);
        let all = all.resolve_claimed(&names);
        assert_eq!(all.of("acme.dev/x", "fuse"), Some(&holder("p")));
        assert_eq!(
            all.iter().count(),
            1,
            "devices that are not offered have no holder"
        );
    }
}
