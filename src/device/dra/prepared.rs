//! Claims that were prepared, and the judgement on one that is to be.

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

/// One device that a claim has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// The request that it was given for.
    pub request: String,
    /// Its pool.
    pub pool: String,
    /// Its name there.
    pub device: String,
    /// The resource that it is of.
    pub resource: ResourceName,
    /// Its id, with the number of its share.
    pub share: String,
    /// Others may have it at the same time.
    pub admin: bool,
    /// What the runtime is told, `vendor/class=name`.
    pub cdi: Vec<String>,
}

/// A claim that was prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prepared {
    /// Which.
    pub claim: ClaimName,
    /// What the kubelet was told, and is told again.
    pub devices: Vec<Held>,
    /// What lies in its CDI file; none where there is none.
    pub spec: Option<Value>,
    /// Links by which its devices are known, and the nodes behind them that the spec has: a node's name may be
    /// another device's by tomorrow, the link's is not.
    #[serde(default)]
    pub links: BTreeMap<AbsPath, AbsPath>,
    /// The boot in which it was prepared; none where that is not known.
    #[serde(default)]
    pub boot: Option<String>,
}

/// What outlives the agent and the boot: the kubelet, too, remembers its claims over both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Book {
    /// [`VERSION`].
    pub version: u32,
    /// Of the pool, as it was published last.
    pub generation: u64,
    /// Resources that the cluster may still take for ours to be claimed.
    pub offered: BTreeSet<ResourceName>,
    /// By UID.
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
    /// Resources that claims have, or may be given: nobody else may lend them.
    pub fn holding(&self) -> BTreeSet<ResourceName> {
        let held = self.claims.values().flat_map(|one| &one.devices);
        let held = held.map(|device| device.resource.clone());
        held.chain(self.offered.iter().cloned()).collect()
    }

    /// The claim that has this device for itself.
    pub fn holder_of(&self, device: &str) -> Option<&Prepared> {
        let has = |one: &&Prepared| {
            let mut devices = one.devices.iter();
            devices.any(|held| held.device == device && !held.admin)
        };
        self.claims.values().find(has)
    }
}

/// Why a claim is not prepared. The kubelet shows it as an event of the pod, and tries again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its object is gone.
    #[error("there is no claim {0} any more: delete the pod, which gets another")]
    Gone(ClaimName),
    /// There is another object of that name.
    #[error("claim {0} is another one now: delete the pod, which waits for the one before")]
    Other(ClaimName),
    /// Nothing was given to it.
    #[error("claim {0} has been given no device yet: that is the scheduler's to do")]
    Unallocated(ClaimName),
    /// It wants to be configured.
    #[error(
        "claim {0} has parameters for {DRIVER}, which takes none: remove them from the claim or its DeviceClass"
    )]
    Parameters(ClaimName),
    /// A device of another node.
    #[error(
        "claim {claim} has device {device} of pool {pool}, and the pool of this node is {node}: delete the pod and the claim"
    )]
    Pool {
        /// The claim.
        claim: Box<ClaimName>,
        /// The device.
        device: String,
        /// Its pool.
        pool: String,
        /// Ours.
        node: String,
    },
    /// A device that there is not.
    #[error(
        "claim {claim} has device {device}, which this node does not offer by claim any more: bring it back, or delete the pod and the claim"
    )]
    Unknown {
        /// The claim.
        claim: Box<ClaimName>,
        /// The device.
        device: String,
    },
    /// A device that cannot be used.
    #[error(
        "claim {claim} has device {device} ({id} of {resource}), which is unhealthy: {why}; it is tried again, or delete the pod and the claim"
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
        /// In words.
        why: String,
    },
    /// A device that somebody else still has.
    #[error(
        "claim {claim} has device {device} ({id} of {resource}), which {by} still has: it is prepared when that is over"
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
        /// Who.
        by: String,
    },
    /// What the container would get does not fit together.
    #[error("claim {claim}, request {request}: {source}")]
    Grant {
        /// The claim.
        claim: Box<ClaimName>,
        /// The request.
        request: String,
        /// Why.
        source: Box<AllocationError>,
    },
}

/// A device of a claim, found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// As the claim has it.
    pub given: Allocated,
    /// Its resource.
    pub resource: Arc<Resource>,
    /// Its id, with the number of its share.
    pub share: String,
}

impl Chosen {
    /// The device itself, by its own id.
    pub fn device(&self) -> Option<(&str, &Device)> {
        self.resource.find(&self.share)
    }
}

/// Finds the devices of a claim in what `node` offers by claim, and sees that they may be used. `others` is what
/// other claims have, `plain` what containers have without a claim.
///
/// # Errors
/// The first device that may not.
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

/// Why a device must not be given to a container now; what the claim tolerates is no reason.
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
        Some(format!("container {holder} by a device plugin"))
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

/// Devices of one resource that one request was given: what is asked for at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The request.
    pub request: String,
    /// The resource.
    pub resource: Arc<Resource>,
    /// Ids, with the numbers of shares.
    pub shares: Vec<String>,
}

/// The devices by request and resource.
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
    /// What a container gets by the recipes.
    ///
    /// # Errors
    /// Two devices would have to be in one place.
    pub fn grant(&self) -> Result<Grant, AllocationError> {
        let mut devices: Vec<(&str, &Device)> = Vec::new();
        for share in &self.shares {
            // Two shares of a device are no more than one.
            if let Some((id, device)) = self.resource.find(share)
                && devices.iter().all(|(known, _)| *known != id)
            {
                devices.push((id, device));
            }
        }
        grant_all(&self.resource, devices)
    }
}

/// What the containers of each request get, from what its batches are.
///
/// # Errors
/// Devices of two resources would have to be in one place.
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
