//! Resources and devices as shown by `status`.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Refusal,
    holders::HolderSnapshot,
    inventory::{Inventory, Resource, ServeMode},
    resource_name::ResourceName,
    source::ResourceSource,
};
use machinist_base::reason::Reason;

/// Whether a resource is registered with the kubelet or, with DRA, published for claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Whether the kubelet accepted the registration and watches the device list.
    pub registered: bool,
    /// When `registered` last changed.
    pub since: Timestamp,
    /// Why it is not registered, as text; none if it is.
    pub reason: Option<String>,
}

/// Whether a kubelet accepts device plugins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletPresence {
    /// Whether its socket exists and answers.
    pub present: bool,
    /// When `present` last changed.
    pub since: Timestamp,
    /// Why it is not present, as text; none if it is.
    pub reason: Option<String>,
}

/// The number of registrations that were attempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Registrations that the kubelet accepted and followed by `ListAndWatch`.
    pub accepted: u64,
    /// Registrations that failed.
    pub failed: u64,
}

/// One device as the kubelet knows it, with one entry for each share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceStatus {
    /// The device id that the kubelet uses.
    pub id: String,
    /// `Healthy`, `Unhealthy`, or `Missing` for a device that this machine never had, or that is not
    /// listed any more while a container still has it.
    pub health: Cow<'static, str>,
    /// Why it is not healthy, as text.
    pub reason: Option<String>,
    /// The container that has it, as `namespace/pod/container`; null if no container has it, and
    /// while that is not known.
    pub holder: Option<String>,
}

/// One resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceStatus {
    /// Its name.
    pub resource: ResourceName,
    /// Its source: a file, `vendor NAME` or `plugin NAME`.
    pub source: ResourceSource,
    /// Whether it is registered with the kubelet or, with DRA, published for claims.
    pub registered: bool,
    /// Its devices.
    pub devices: Vec<DeviceStatus>,
    /// The kubelet API by which pods get the devices; for gates.
    #[serde(skip)]
    pub serve: ServeMode,
    /// When `registered` last changed; for gates, not in the JSON output.
    #[serde(skip)]
    pub since: Option<Timestamp>,
    /// Why it is not registered, as text; not in the JSON output.
    #[serde(skip)]
    pub reason: Option<String>,
}

/// The status of all devices. `devices` is the array of the same name in `status -o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DevicesStatus {
    /// All resources, by name.
    pub devices: Vec<ResourceStatus>,
    /// Problems with declarations.
    pub problems: Vec<Refusal>,
    /// Whether there is a kubelet; the gate `DeviceManagerAbsent` depends on it.
    pub kubelet: KubeletPresence,
    /// Why allocation is disabled; null if it is enabled.
    pub allocation_disabled: Option<String>,
    /// Why the holders of devices are not known.
    #[serde(skip)]
    pub holders_unknown: Option<String>,
    /// The number of registrations that were attempted since the start; for metrics.
    #[serde(skip)]
    pub attempts: Attempts,
}

impl DevicesStatus {
    /// Computes the status from the inventory and the kubelet's registrations.
    pub fn of(
        inventory: &Inventory,
        kubelet: &KubeletPresence,
        attempts: Attempts,
        holders: &HolderSnapshot,
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
                    None if resource.advertised().next().is_none() => {
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
            allocation_disabled: inventory
                .allocation_disabled
                .as_ref()
                .map(|it| it.why.to_string()),
            attempts,
            holders_unknown: match holders {
                HolderSnapshot::Unknown(why) => Some(why.clone()),
                HolderSnapshot::NotQueried | HolderSnapshot::Known(_) => None,
            },
        }
    }

    /// Adds a problem: an invalid value from a source, for this reason.
    pub fn refused(&mut self, why: &str) {
        let problem = Refusal::new(Reason::ValueInvalid, why);
        self.problems.push(problem);
    }

    /// Adds a problem: a source is unreachable, and its devices may become unhealthy.
    pub fn add_unreachable_source(&mut self, why: &str) {
        let problem = Refusal::new(Reason::DevicesMissing, why);
        self.problems.push(problem);
    }
}

fn devices(
    inventory: &Inventory,
    resource: &Resource,
    holders: &HolderSnapshot,
) -> Vec<DeviceStatus> {
    let shares = resource.devices.iter().flat_map(|(id, device)| {
        let (health, reason) = inventory.reported_health(device);
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
    // A device that is not listed any more still belongs to its container.
    let left = holders.of_resource(resource.name.as_str());
    let left = left.filter(|(id, _)| resource.find_with_missing(id).is_none());
    all.extend(left.map(|(id, holder)| DeviceStatus {
        id: id.to_owned(),
        health: "Missing".into(),
        reason: Some("no longer offered, but still in use by a container".to_owned()),
        holder: Some(holder.to_string()),
    }));
    all
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{
        super::{
            holders::{DeviceHolders, Holder},
            testing::resource,
        },
        *,
    };

    #[test]
    fn device_status_json_has_the_documented_shape() {
        let mut inventory = Inventory::default();
        let fuse = resource(2, &[("fuse", &[])]);
        inventory
            .resources
            .insert(fuse.name.clone(), Arc::new(fuse));
        let kubelet = KubeletPresence {
            present: false,
            since: Timestamp::UNIX_EPOCH,
            reason: Some("kubelet not found".into()),
        };
        let mut holders = DeviceHolders::default();
        let holder = Holder {
            namespace: "lab".into(),
            pod: "reads".into(),
            container: "main".into(),
        };
        holders.add("acme.dev/x", "fuse::1".into(), holder.clone());
        holders.add("acme.dev/x", "gone".into(), holder);
        let holders = HolderSnapshot::Known(holders);
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
                        "reason": "no longer offered, but still in use by a container"},
                ],
            }])
        );
    }
}
