//! The checkpoint of prepared claims, and the checks before a claim is prepared.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    DRIVER,
    claim::{Allocated, Claim, ClaimName},
    name::{self, Key},
    pool::{UNHEALTHY, WITHHELD},
};
use crate::{
    device::{
        allocation::{AllocationError, Grant, grant_all},
        holders::Holders,
        inventory::{Device, Health, Inventory, Resource},
        name::ResourceName,
    },
    path::AbsPath,
};

/// The version of [`Book`].
pub const VERSION: u32 = 1;

/// One device of a prepared claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
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
pub struct Prepared {
    /// The identity of the claim.
    pub claim: ClaimName,
    /// The devices in the reply to the kubelet, which is the same if the kubelet retries.
    pub devices: Vec<Held>,
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
pub struct Book {
    /// The version of the format, [`VERSION`].
    pub version: u32,
    /// The pool generation that was published last.
    pub generation: u64,
    /// The resources that may still be in published slices.
    pub offered: BTreeSet<ResourceName>,
    /// The prepared claims, by UID.
    pub claims: BTreeMap<String, Prepared>,
}

impl Default for Book {
    fn default() -> Self {
        Self {
            version: VERSION,
            generation: 0,
            offered: BTreeSet::new(),
            claims: BTreeMap::new(),
        }
    }
}

impl Book {
    /// Resources that claims have or may be allocated: the device plugin must not advertise them.
    pub fn holding(&self) -> BTreeSet<ResourceName> {
        let held = self.claims.values().flat_map(|one| &one.devices);
        let held = held.map(|device| device.resource.clone());
        held.chain(self.offered.iter().cloned()).collect()
    }

    /// The claim that has this device exclusively.
    pub fn holder_of(&self, device: &str) -> Option<&Prepared> {
        let has = |one: &&Prepared| {
            let mut devices = one.devices.iter();
            devices.any(|held| held.device == device && !held.admin)
        };
        self.claims.values().find(has)
    }
}

/// Why a claim is not prepared. The kubelet reports it as an event of the pod, and retries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The claim does not exist any more.
    #[error("claim {0} not found: delete the pod, so that it gets a new claim")]
    Gone(ClaimName),
    /// There is another claim with the same name.
    #[error(
        "claim {0} was deleted and created again with another UID: delete the pod, which waits for the old claim"
    )]
    Other(ClaimName),
    /// The claim is not allocated.
    #[error("claim {0} has no device allocated yet: waiting for the scheduler")]
    Unallocated(ClaimName),
    /// The claim has parameters for this driver.
    #[error(
        "claim {0} has parameters for {DRIVER}, which takes none: remove them from the claim or its DeviceClass"
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
pub struct Chosen {
    /// The device as allocated in the claim.
    pub given: Allocated,
    /// Its resource.
    pub resource: Arc<Resource>,
    /// Its id, with the share number.
    pub share: String,
}

impl Chosen {
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
pub fn choose(
    inventory: &Inventory,
    node: &str,
    (name, claim): (&ClaimName, &Claim),
    others: &Book,
    plain: &Holders,
) -> Result<Vec<Chosen>, Refused> {
    if claim.uid != name.uid {
        return Err(Refused::Other(name.clone()));
    }
    let Some(allocated) = &claim.allocated else {
        return Err(Refused::Unallocated(name.clone()));
    };
    if claim.parameters {
        return Err(Refused::Parameters(name.clone()));
    }
    let names = name::names(inventory);
    let chosen = allocated
        .iter()
        .map(|given| find(inventory, &names, (name, node), given));
    let chosen: Vec<Chosen> = chosen.collect::<Result<_, _>>()?;
    for one in &chosen {
        if !one.given.admin {
            is_free(name, one, others, plain)?;
        }
    }
    Ok(chosen)
}

fn find(
    inventory: &Inventory,
    names: &BTreeMap<String, Key>,
    (claim, node): (&ClaimName, &str),
    given: &Allocated,
) -> Result<Chosen, Refused> {
    let device = given.device.clone();
    if given.pool != node {
        return Err(Refused::Pool {
            claim: Box::new(claim.clone()),
            device,
            pool: given.pool.clone(),
            node: node.to_owned(),
        });
    }
    let unknown = || Refused::Unknown {
        claim: Box::new(claim.clone()),
        device: given.device.clone(),
    };
    let (name, share) = names.get(&given.device).ok_or_else(unknown)?;
    let resource = inventory.resources.get(name).ok_or_else(unknown)?;
    let (_, found) = resource.find(share).ok_or_else(unknown)?;
    let why = unusable(inventory, found, given);
    if let Some(why) = why {
        return Err(Refused::Unhealthy {
            claim: Box::new(claim.clone()),
            device,
            id: share.clone(),
            resource: name.clone(),
            why,
        });
    }
    Ok(Chosen {
        given: given.clone(),
        resource: Arc::clone(resource),
        share: share.clone(),
    })
}

/// Why a device must not be used by a container now; conditions that the claim tolerates are ignored.
fn unusable(inventory: &Inventory, device: &Device, given: &Allocated) -> Option<String> {
    let tolerates = |key: &str| given.tolerations.iter().any(|one| one.covers(key));
    let sick = device.health != Health::Healthy;
    if sick && !tolerates(UNHEALTHY) {
        return Some(device.reason.clone().unwrap_or_default());
    }
    let (health, why) = inventory.verdict_for_allocation(device);
    (!sick && health != Health::Healthy && !tolerates(WITHHELD)).then(|| why.unwrap_or_default())
}

fn is_free(claim: &ClaimName, one: &Chosen, others: &Book, plain: &Holders) -> Result<(), Refused> {
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
        Some(by) => Err(Refused::Held {
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
pub struct Batch {
    /// The request.
    pub request: String,
    /// The resource.
    pub resource: Arc<Resource>,
    /// Device ids, with share numbers.
    pub shares: Vec<String>,
}

/// Groups the devices by request and resource.
pub fn batches(chosen: &[Chosen]) -> Vec<Batch> {
    let mut all: BTreeMap<(&str, &ResourceName), Batch> = BTreeMap::new();
    for one in chosen {
        let key = (one.given.request.as_str(), &one.resource.name);
        let batch = all.entry(key).or_insert_with(|| Batch {
            request: one.given.request.clone(),
            resource: Arc::clone(&one.resource),
            shares: Vec::new(),
        });
        batch.shares.push(one.share.clone());
    }
    all.into_values().collect()
}

impl Batch {
    /// What a container gets according to the device specs.
    ///
    /// # Errors
    ///
    /// Two devices need the same path in the container.
    pub fn grant(&self) -> Result<Grant, AllocationError> {
        let mut devices: Vec<(&str, &Device)> = Vec::new();
        for share in &self.shares {
            // Two shares of a device add no more to a container than one.
            if let Some((id, device)) = self.resource.find(share)
                && devices.iter().all(|(known, _)| *known != id)
            {
                devices.push((id, device));
            }
        }
        grant_all(&self.resource, devices)
    }
}

/// Merges the allocations of all batches into one for each request.
///
/// # Errors
///
/// Devices of two resources need the same path in the container.
pub fn join(
    claim: &ClaimName,
    parts: impl IntoIterator<Item = (Batch, Grant)>,
) -> Result<BTreeMap<String, Grant>, Refused> {
    let mut all: BTreeMap<String, Grant> = BTreeMap::new();
    for (batch, grant) in parts {
        let whole = all.entry(batch.request.clone()).or_default();
        whole
            .join(&batch.resource, batch.shares.first(), grant)
            .map_err(|source| Refused::Grant {
                claim: Box::new(claim.clone()),
                request: batch.request,
                source: Box::new(source),
            })?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
