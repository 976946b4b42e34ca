//! The checkpoint of prepared claims, and the checks before a claim is prepared.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    DRIVER_NAME,
    claim::{AllocatedDevice, ClaimName, ResourceClaim},
    device_names::{self, DeviceKey},
    pool::{ALLOCATION_DISABLED_TAINT, UNHEALTHY_TAINT},
};
use crate::{
    allocation::{AllocationBuilder, AllocationError, ContainerAllocation, allocate_any},
    holders::DeviceHolders,
    inventory::{Device, Health, Inventory, Resource},
    resource_name::ResourceName,
};
use machinist_base::abs_path::AbsPath;

/// The version of [`ClaimCheckpoint`].
pub const CHECKPOINT_VERSION: u32 = 1;

/// One device of a prepared claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreparedDevice {
    /// The request for which it was allocated.
    pub request: String,
    /// Its pool.
    pub pool: String,
    /// Its name in the pool.
    pub device: String,
    /// The resource to which it belongs.
    pub resource: ResourceName,
    /// Its id, with the share number.
    pub share: String,
    /// Whether this is admin access: others may use the device at the same time.
    pub admin: bool,
    /// The CDI names for the runtime, `vendor/class=name`.
    pub cdi: Vec<String>,
}

/// A prepared claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreparedClaim {
    /// The identity of the claim.
    pub claim: ClaimName,
    /// The devices in the reply to the kubelet, which is the same if the kubelet retries.
    pub devices: Vec<PreparedDevice>,
    /// The content of its CDI spec file; none if it has no file.
    pub spec: Option<Value>,
    /// The stable links of its devices, and the nodes in the spec to which they led: after a reboot
    /// the name of a node may belong to another device, but the link does not.
    #[serde(default)]
    pub links: BTreeMap<AbsPath, AbsPath>,
    /// The id of the boot in which it was prepared; none if that is not known.
    #[serde(default)]
    pub boot: Option<String>,
}

/// The driver's checkpoint. It survives restarts of the agent and reboots, as the kubelet's does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimCheckpoint {
    /// The version of the format, [`CHECKPOINT_VERSION`].
    pub version: u32,
    /// The pool generation that was published last.
    pub generation: u64,
    /// The resources that may still be in published slices.
    pub offered: BTreeSet<ResourceName>,
    /// The prepared claims, by UID.
    pub claims: BTreeMap<String, PreparedClaim>,
}

impl Default for ClaimCheckpoint {
    fn default() -> Self {
        Self {
            version: CHECKPOINT_VERSION,
            generation: 0,
            offered: BTreeSet::new(),
            claims: BTreeMap::new(),
        }
    }
}

impl ClaimCheckpoint {
    /// Resources that claims have or may be allocated: the device plugin must not advertise them.
    pub fn claimed_resources(&self) -> BTreeSet<ResourceName> {
        let held = self.claims.values().flat_map(|one| &one.devices);
        let held = held.map(|device| device.resource.clone());
        held.chain(self.offered.iter().cloned()).collect()
    }

    /// The claim that has this device exclusively.
    pub fn holder_of(&self, device: &str) -> Option<&PreparedClaim> {
        let has = |one: &&PreparedClaim| {
            let mut devices = one.devices.iter();
            devices.any(|held| held.device == device && !held.admin)
        };
        self.claims.values().find(has)
    }
}

/// Why a claim is not prepared. The kubelet reports it as an event of the pod, and retries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The claim does not exist any more.
    #[error("claim {0} not found: delete the pod, so that it gets a new claim")]
    NotFound(ClaimName),
    /// The API server has another claim of this name, with another UID.
    #[error(
        "claim {0} was deleted and created again with another UID: delete the pod, which waits for the old claim"
    )]
    Other(ClaimName),
    /// The claim is not allocated.
    #[error("claim {0} has no device allocated yet: waiting for the scheduler")]
    Unallocated(ClaimName),
    /// The claim has parameters for this driver.
    #[error(
        "claim {0} has parameters for {DRIVER_NAME}, which takes none: remove them from the claim or its DeviceClass"
    )]
    Parameters(ClaimName),
    /// The device belongs to the pool of another node.
    #[error(
        "claim {claim} has device {device} of pool {pool}, and the pool of this node is {node}: delete the pod and the claim"
    )]
    Pool {
        /// The claim.
        claim: Box<ClaimName>,
        /// The device.
        device: String,
        /// The device's pool.
        pool: String,
        /// The pool of this node.
        node: String,
    },
    /// The device does not exist.
    #[error(
        "claim {claim} has device {device}, which this node no longer publishes: restore it, or delete the pod and the claim"
    )]
    Unknown {
        /// The claim.
        claim: Box<ClaimName>,
        /// The device.
        device: String,
    },
    /// The device cannot be used.
    #[error(
        "claim {claim} has device {device} ({id} of {resource}), which is unhealthy: {why}; retrying, or delete the pod and the claim"
    )]
    Unhealthy {
        /// The claim.
        claim: Box<ClaimName>,
        /// The device.
        device: String,
        /// Its id.
        id: String,
        /// Its resource.
        resource: ResourceName,
        /// The reason, as text.
        why: String,
    },
    /// Another holder still has the device.
    #[error(
        "claim {claim} has device {device} ({id} of {resource}), still in use by {by}: waiting until it is released"
    )]
    Held {
        /// The claim.
        claim: Box<ClaimName>,
        /// The device.
        device: String,
        /// Its id.
        id: String,
        /// Its resource.
        resource: ResourceName,
        /// The holder.
        by: String,
    },
    /// The edits for the container conflict.
    #[error("claim {claim}, request {request}: {source}")]
    Grant {
        /// The claim.
        claim: Box<ClaimName>,
        /// The request.
        request: String,
        /// The conflict.
        source: Box<AllocationError>,
    },
}

/// A device of a claim, found in the inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedDevice {
    /// The device as allocated in the claim.
    pub given: AllocatedDevice,
    /// Its resource.
    pub resource: Arc<Resource>,
    /// Its id, with the share number.
    pub share: String,
}

impl SelectedDevice {
    /// The device and its own id.
    pub fn device(&self) -> Option<(&str, &Device)> {
        self.resource.find(&self.share)
    }
}

/// Finds the devices of a claim among those that `node` serves by claims, and checks that they may be
/// used. `others` has the other prepared claims, `plain` the devices that containers have without a
/// claim.
///
/// # Errors
///
/// The reason why the first unusable device is refused.
pub fn select_devices(
    inventory: &Inventory,
    node: &str,
    (name, claim): (&ClaimName, &ResourceClaim),
    others: &ClaimCheckpoint,
    plain: &DeviceHolders,
) -> Result<Vec<SelectedDevice>, ClaimError> {
    if claim.uid != name.uid {
        return Err(ClaimError::Other(name.clone()));
    }
    let Some(allocated) = &claim.allocated else {
        return Err(ClaimError::Unallocated(name.clone()));
    };
    if claim.parameters {
        return Err(ClaimError::Parameters(name.clone()));
    }
    let names = device_names::names(inventory);
    let chosen = allocated
        .iter()
        .map(|given| find(inventory, &names, (name, node), given));
    let chosen: Vec<SelectedDevice> = chosen.collect::<Result<_, _>>()?;
    for one in &chosen {
        if !one.given.admin {
            is_free(name, one, others, plain)?;
        }
    }
    Ok(chosen)
}

fn find(
    inventory: &Inventory,
    names: &BTreeMap<String, DeviceKey>,
    (claim, node): (&ClaimName, &str),
    given: &AllocatedDevice,
) -> Result<SelectedDevice, ClaimError> {
    let device = given.device.clone();
    if given.pool != node {
        return Err(ClaimError::Pool {
            claim: Box::new(claim.clone()),
            device,
            pool: given.pool.clone(),
            node: node.to_owned(),
        });
    }
    let unknown = || ClaimError::Unknown {
        claim: Box::new(claim.clone()),
        device: given.device.clone(),
    };
    let (name, share) = names.get(&given.device).ok_or_else(unknown)?;
    let resource = inventory.resources.get(name).ok_or_else(unknown)?;
    let (_, found) = resource.find(share).ok_or_else(unknown)?;
    let why = unusable(inventory, found, given);
    if let Some(why) = why {
        return Err(ClaimError::Unhealthy {
            claim: Box::new(claim.clone()),
            device,
            id: share.clone(),
            resource: name.clone(),
            why,
        });
    }
    Ok(SelectedDevice {
        given: given.clone(),
        resource: Arc::clone(resource),
        share: share.clone(),
    })
}

/// Why a device must not be used by a container now; conditions that the claim tolerates are ignored.
fn unusable(inventory: &Inventory, device: &Device, given: &AllocatedDevice) -> Option<String> {
    let tolerates = |key: &str| given.tolerations.iter().any(|one| one.covers(key));
    let sick = device.health != Health::Healthy;
    if sick && !tolerates(UNHEALTHY_TAINT) {
        return Some(device.reason.clone().unwrap_or_default());
    }
    let (health, why) = inventory.allocation_health(device);
    (!sick && health != Health::Healthy && !tolerates(ALLOCATION_DISABLED_TAINT))
        .then(|| why.unwrap_or_default())
}

fn is_free(
    claim: &ClaimName,
    one: &SelectedDevice,
    others: &ClaimCheckpoint,
    plain: &DeviceHolders,
) -> Result<(), ClaimError> {
    let other = others
        .holder_of(&one.given.device)
        .filter(|other| other.claim.uid != claim.uid)
        .map(|other| format!("claim {}", other.claim));
    let plainly = || {
        let holder = plain.of(one.resource.name.as_str(), &one.share)?;
        Some(format!("container {holder} (device plugin)"))
    };
    match other.or_else(plainly) {
        None => Ok(()),
        Some(by) => Err(ClaimError::Held {
            claim: Box::new(claim.clone()),
            device: one.given.device.clone(),
            id: one.share.clone(),
            resource: one.resource.name.clone(),
            by,
        }),
    }
}

/// The devices of one resource that are allocated to one request: the unit of a call to the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareId {
    /// The request.
    pub request: String,
    /// The resource.
    pub resource: Arc<Resource>,
    /// Device ids, with share numbers.
    pub shares: Vec<String>,
}

/// Groups the devices by request and resource.
pub fn group_by_request(chosen: &[SelectedDevice]) -> Vec<ShareId> {
    let mut all: BTreeMap<(&str, &ResourceName), ShareId> = BTreeMap::new();
    for one in chosen {
        let key = (one.given.request.as_str(), &one.resource.name);
        let batch = all.entry(key).or_insert_with(|| ShareId {
            request: one.given.request.clone(),
            resource: Arc::clone(&one.resource),
            shares: Vec::new(),
        });
        batch.shares.push(one.share.clone());
    }
    all.into_values().collect()
}

impl ShareId {
    /// What a container gets according to the device specs.
    ///
    /// # Errors
    ///
    /// Two devices need the same path in the container.
    pub fn grant(&self) -> Result<ContainerAllocation, AllocationError> {
        let mut known = BTreeSet::new();
        let devices = self.shares.iter().filter_map(|share| {
            // Two shares of a device add no more to a container than one.
            let found = self.resource.find(share);
            found.filter(|(id, _)| known.insert(*id))
        });
        allocate_any(&self.resource, devices)
    }
}

/// Merges the allocations of all batches into one for each request.
///
/// # Errors
///
/// Devices of two resources need the same path in the container.
pub fn join(
    claim: &ClaimName,
    parts: impl IntoIterator<Item = (ShareId, ContainerAllocation)>,
) -> Result<BTreeMap<String, ContainerAllocation>, ClaimError> {
    let mut all: BTreeMap<String, AllocationBuilder> = BTreeMap::new();
    for (batch, grant) in parts {
        let whole = all.entry(batch.request.clone()).or_default();
        whole
            .join(&batch.resource, batch.shares.first(), grant)
            .map_err(|source| ClaimError::Grant {
                claim: Box::new(claim.clone()),
                request: batch.request,
                source: Box::new(source),
            })?;
    }
    let built = all.into_iter();
    Ok(built.map(|(request, one)| (request, one.build())).collect())
}

#[cfg(test)]
mod tests;
