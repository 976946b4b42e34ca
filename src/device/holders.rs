//! Who has which device, by the kubelet's word.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::dra::name::Key;

/// A container that has a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Its pod's namespace.
    pub namespace: String,
    /// Its pod's name.
    pub pod: String,
    /// Its own name in the pod.
    pub container: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.pod, self.container)
    }
}

/// Everything that containers of this node have, of us or of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// By resource and by the kubelet's id.
    devices: BTreeMap<String, BTreeMap<String, Holder>>,
    /// By name in our pool: what containers have by claim.
    claimed: BTreeMap<String, Holder>,
}

impl Holders {
    /// Notes that a container has a device. Where two containers of a pod are named for one, as an ordinary
    /// init container and the one that inherits it may be, the first stays.
    pub fn add(&mut self, resource: &str, id: String, holder: Holder) {
        let devices = self.devices.entry(resource.to_owned()).or_default();
        devices.entry(id).or_insert(holder);
    }

    /// Notes that a container has a device by claim. Of several containers of a claim the first stays.
    pub fn add_claimed(&mut self, device: String, holder: Holder) {
        self.claimed.entry(device).or_insert(holder);
    }

    /// Who has a device of our pool by claim.
    pub fn of_claimed(&self, device: &str) -> Option<&Holder> {
        self.claimed.get(device)
    }

    /// The same with devices of claims beside the others, by resource and id.
    #[must_use]
    pub fn resolved(mut self, names: &BTreeMap<String, Key>) -> Self {
        for (device, holder) in std::mem::take(&mut self.claimed) {
            if let Some((resource, id)) = names.get(&device) {
                self.add(resource.as_str(), id.clone(), holder);
            }
        }
        self
    }

    /// Who has this device.
    pub fn of(&self, resource: &str, id: &str) -> Option<&Holder> {
        self.devices.get(resource)?.get(id)
    }

    /// Each device of this resource that somebody has, by id.
    pub fn of_resource(&self, resource: &str) -> impl Iterator<Item = (&str, &Holder)> {
        let devices = self.devices.get(resource).into_iter().flatten();
        devices.map(|(id, holder)| (id.as_str(), holder))
    }

    /// Only what these resources lend.
    #[must_use]
    pub fn only(mut self, resources: &BTreeSet<&str>) -> Self {
        self.devices
            .retain(|resource, _| resources.contains(resource.as_str()));
        self
    }

    /// Each device that somebody has: its resource, its id and who.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &Holder)> {
        self.devices.iter().flat_map(|(resource, devices)| {
            let devices = devices.iter();
            devices.map(move |(id, holder)| (resource.as_str(), id.as_str(), holder))
        })
    }

    /// How many devices of each resource each container has.
    pub fn counted(&self) -> BTreeMap<Holder, BTreeMap<String, usize>> {
        let mut counted: BTreeMap<Holder, BTreeMap<String, usize>> = BTreeMap::new();
        for (resource, _, holder) in self.iter() {
            let of = counted.entry(holder.clone()).or_default();
            *of.entry(resource.to_owned()).or_default() += 1;
        }
        counted
    }
}

/// What is known of the holders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Known {
    /// Nobody has asked yet.
    #[default]
    Unasked,
    /// So the kubelet said.
    Told(Holders),
    /// The kubelet could not be asked, for this reason in words.
    Unknown(String),
}

impl Known {
    /// Who has this device; none where nobody has, and where that is not known.
    pub fn of(&self, resource: &str, id: &str) -> Option<&Holder> {
        match self {
            Self::Told(holders) => holders.of(resource, id),
            Self::Unasked | Self::Unknown(_) => None,
        }
    }

    /// Each device of this resource that somebody has, as far as that is known.
    pub fn of_resource(&self, resource: &str) -> impl Iterator<Item = (&str, &Holder)> {
        let told = match self {
            Self::Told(holders) => Some(holders),
            Self::Unasked | Self::Unknown(_) => None,
        };
        told.into_iter()
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
    fn devices_are_counted_by_holder_and_others_resources_are_left_out() {
        let mut all = Holders::default();
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
    fn what_is_held_by_claim_is_found_by_resource_and_id() {
        let mut all = Holders::default();
        all.add_claimed("fuse-1".into(), holder("p"));
        all.add_claimed("strange".into(), holder("q"));
        assert_eq!(all.of("acme.dev/x", "fuse"), None);
        assert_eq!(all.of_claimed("fuse-1"), Some(&holder("p")));
        let x = crate::device::ResourceName::new("acme.dev/x").unwrap();
        let names = BTreeMap::from([("fuse-1".to_owned(), (x, "fuse".to_owned()))]);
        let all = all.resolved(&names);
        assert_eq!(all.of("acme.dev/x", "fuse"), Some(&holder("p")));
        assert_eq!(all.iter().count(), 1, "what nobody offers is nobody's");
    }
}
