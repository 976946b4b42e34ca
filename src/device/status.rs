//! Resources and devices as `status` shows them.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Refusal,
    holders::Known,
    inventory::{Inventory, Resource, Serve},
    name::ResourceName,
    source::Source,
};
use crate::reason::Reason;

/// Whether the kubelet has a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Whether it took the registration and reads the list.
    pub registered: bool,
    /// Since when it is as it is.
    pub since: Timestamp,
    /// Why it has not, in words; none when it has.
    pub reason: Option<String>,
}

/// Whether there is a kubelet that takes device plugins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletPresence {
    /// Whether its socket is there and answers.
    pub present: bool,
    /// Since when it is as it is.
    pub since: Timestamp,
    /// Why it is not, in words; none when it is.
    pub reason: Option<String>,
}

/// How often a resource was offered to the kubelet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// It took the registration and asked for the list.
    pub accepted: u64,
    /// It did not.
    pub failed: u64,
}

/// One device as the kubelet knows it: one entry for each share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceStatus {
    /// The kubelet's id.
    pub id: String,
    /// `Healthy`, `Unhealthy`, or `Missing` for what this machine never had, or is offered no more while a container
    /// still has it.
    pub health: Cow<'static, str>,
    /// Why it is not healthy, in words.
    pub reason: Option<String>,
    /// Who has it, as `namespace/pod/container`; null where nobody has, and while that is not known.
    pub holder: Option<String>,
}

/// One resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceStatus {
    /// Its name.
    pub resource: ResourceName,
    /// Who offers it: a file, `vendor NAME` or `plugin NAME`.
    pub source: Source,
    /// Whether the kubelet has it.
    pub registered: bool,
    /// Its devices.
    pub devices: Vec<DeviceStatus>,
    /// How pods come by them; for gates.
    #[serde(skip)]
    pub serve: Serve,
    /// Since when `registered` is as it is; for gates, not for scripts.
    #[serde(skip)]
    pub since: Option<Timestamp>,
    /// Why it is not registered, in words; for people, not for scripts.
    #[serde(skip)]
    pub reason: Option<String>,
}

/// Everything about devices. `devices` is the array of the same name in `status -o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DevicesStatus {
    /// All resources, by name.
    pub devices: Vec<ResourceStatus>,
    /// What is wrong with declarations.
    pub problems: Vec<Refusal>,
    /// Whether there is a kubelet; what the gate `DeviceManagerAbsent` goes by.
    pub kubelet: KubeletPresence,
    /// Why nothing is lent at the moment; null when it is.
    pub withheld: Option<String>,
    /// Why nobody knows who has which device.
    #[serde(skip)]
    pub holders_unknown: Option<String>,
    /// Registrations tried since the start; for metrics.
    #[serde(skip)]
    pub attempts: Attempts,
}

impl DevicesStatus {
    /// Joins what there is with what the kubelet took.
    pub fn of(
        inventory: &Inventory,
        kubelet: &KubeletPresence,
        attempts: Attempts,
        holders: &Known,
        registration: impl Fn(&Resource) -> Option<Registration>,
    ) -> Self {
        let status = |resource: &Resource| {
            let registration = registration(resource);
            ResourceStatus {
                resource: resource.name.clone(),
                source: resource.source.clone(),
                serve: resource.serve,
                registered: registration.as_ref().is_some_and(|one| one.registered),
                devices: devices(inventory, resource, holders),
                since: registration.as_ref().map(|one| one.since),
                reason: match registration {
                    Some(one) => one.reason,
                    None if resource.listed().next().is_none() => {
                        Some("it has no device yet".to_owned())
                    }
                    None => kubelet.reason.clone(),
                },
            }
        };
        Self {
            devices: inventory
                .resources
                .values()
                .map(|one| status(one))
                .collect(),
            problems: inventory.problems.clone(),
            kubelet: kubelet.clone(),
            withheld: inventory
                .withheld
                .as_ref()
                .map(|withheld| withheld.why.to_string()),
            attempts,
            holders_unknown: match holders {
                Known::Unknown(why) => Some(why.clone()),
                Known::Unasked | Known::Told(_) => None,
            },
        }
    }

    /// Something that a source said is not used, for this reason.
    pub fn refused(&mut self, why: &str) {
        let problem = Refusal::new(Reason::ValueInvalid, why);
        self.problems.push(problem);
    }

    /// A source is away, and its devices may follow.
    pub fn away(&mut self, why: &str) {
        let problem = Refusal::new(Reason::DevicesMissing, why);
        self.problems.push(problem);
    }
}

fn devices(inventory: &Inventory, resource: &Resource, holders: &Known) -> Vec<DeviceStatus> {
    let shares = resource.devices.iter().flat_map(|(id, device)| {
        let (health, reason) = inventory.verdict(device);
        resource.share_ids(id).map(move |id| {
            let holder = holders.of(resource.name.as_str(), &id);
            DeviceStatus {
                holder: holder.map(ToString::to_string),
                id,
                health: health.as_str().into(),
                reason: reason.clone(),
            }
        })
    });
    let mut all: Vec<_> = shares.collect();
    // A list without it does not take it away from its container.
    let left = holders.of_resource(resource.name.as_str());
    let left = left.filter(|(id, _)| resource.behind(id).is_none());
    all.extend(left.map(|(id, holder)| DeviceStatus {
        id: id.to_owned(),
        health: "Missing".into(),
        reason: Some("it is offered no more, and a container still has it".to_owned()),
        holder: Some(holder.to_string()),
    }));
    all
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{
        super::{
            holders::{Holder, Holders},
            inventory::tests::resource,
        },
        *,
    };

    #[test]
    fn the_array_has_the_documented_shape() {
        let mut inventory = Inventory::default();
        let fuse = resource(2, &[("fuse", &[])]);
        inventory
            .resources
            .insert(fuse.name.clone(), Arc::new(fuse));
        let kubelet = KubeletPresence {
            present: false,
            since: Timestamp::UNIX_EPOCH,
            reason: Some("no kubelet here".into()),
        };
        let mut holders = Holders::default();
        let holder = Holder {
            namespace: "lab".into(),
            pod: "reads".into(),
            container: "main".into(),
        };
        holders.add("acme.dev/x", "fuse::1".into(), holder.clone());
        holders.add("acme.dev/x", "gone".into(), holder);
        let holders = Known::Told(holders);
        let status = DevicesStatus::of(&inventory, &kubelet, Attempts::default(), &holders, |_| {
            None
        });
        let device = |id: &str, holder: Option<&str>| serde_json::json!({"id": id, "health": "Healthy", "reason": null, "holder": holder});
        assert_eq!(
            serde_json::to_value(&status.devices).unwrap(),
            serde_json::json!([{
                "resource": "acme.dev/x", "source": "vendor test", "registered": false,
                "devices": [
                    device("fuse::0", None),
                    device("fuse::1", Some("lab/reads/main")),
                    {"id": "gone", "health": "Missing", "holder": "lab/reads/main",
                        "reason": "it is offered no more, and a container still has it"},
                ],
            }])
        );
    }
}
