//! Which devices a container should get, and what it then finds inside.

mod build;
mod preferred;

use std::collections::BTreeMap;

pub use self::preferred::{Wish, preferred, sensible};
use super::{
    inventory::{Device, Inventory, Resource},
    name::ResourceName,
};

/// Why an allocation is refused. Every refusal names the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// The kubelet asks for what is not, or no longer, listed.
    #[error("{resource} has no device {id:?}")]
    Unknown {
        /// The resource asked.
        resource: ResourceName,
        /// The id asked for.
        id: String,
    },
    /// The device is listed and cannot be lent.
    #[error("device {id:?} of {resource} is unhealthy: {why}")]
    Unhealthy {
        /// The resource asked.
        resource: ResourceName,
        /// The id asked for.
        id: String,
        /// In words.
        why: String,
    },
    /// The declaration wants shares of one request on different devices.
    #[error("{first:?} and {second:?} of {resource} are shares of one device; share.strict is set")]
    SameDevice {
        /// The resource asked.
        resource: ResourceName,
        /// The share that came first.
        first: String,
        /// The share that is one too many.
        second: String,
    },
    /// Two devices would have to be one path in the container.
    #[error(
        "device {id:?} of {resource} would be {inside} in the container, where {other} is already"
    )]
    SamePlace {
        /// The resource asked.
        resource: ResourceName,
        /// The device that has no place.
        id: String,
        /// The path in the container.
        inside: String,
        /// The host path that has it.
        other: String,
    },
}

/// A device node as the container gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGrant {
    /// Path on the host.
    pub host: String,
    /// Path in the container.
    pub inside: String,
    /// Any of `r`, `w` and `m`.
    pub permissions: String,
}

/// A mount as the container gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountGrant {
    /// Path on the host.
    pub host: String,
    /// Path in the container.
    pub inside: String,
    /// Whether it is read-only.
    pub read_only: bool,
}

/// All that one container gets for one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Device nodes, one for each path in the container.
    pub nodes: Vec<NodeGrant>,
    /// Mounts.
    pub mounts: Vec<MountGrant>,
    /// Environment; values that differ between devices are joined by commas.
    pub env: BTreeMap<String, String>,
    /// Annotations, joined likewise.
    pub annotations: BTreeMap<String, String>,
    /// Devices of the container device interface, as `vendor/class=name`.
    pub cdi: Vec<String>,
}

/// The devices behind `ids`, each once, when all of them may be lent to one container.
pub fn lendable<'a>(
    inventory: &Inventory,
    resource: &'a Resource,
    ids: &[String],
) -> Result<Vec<(&'a str, &'a Device)>, AllocationError> {
    let name = || resource.name.clone();
    let mut seen: BTreeMap<&str, &String> = BTreeMap::new();
    let mut devices = Vec::new();
    for asked in ids {
        let unknown = || AllocationError::Unknown {
            resource: name(),
            id: asked.clone(),
        };
        let (id, device) = resource.find(asked).ok_or_else(unknown)?;
        if let (super::Health::Unhealthy | super::Health::Missing, why) =
            inventory.verdict_for_allocation(device)
        {
            let why = why.unwrap_or_default();
            return Err(AllocationError::Unhealthy {
                resource: name(),
                id: asked.clone(),
                why,
            });
        }
        match seen.insert(id, asked) {
            Some(first) if resource.share.strict && first != asked => {
                let (first, second) = (first.clone(), asked.clone());
                return Err(AllocationError::SameDevice {
                    resource: name(),
                    first,
                    second,
                });
            }
            // A second share of a device adds nothing to what the container gets.
            Some(_) => {}
            None => devices.push((id, device)),
        }
    }
    Ok(devices)
}

/// What the container gets that holds exactly `ids`.
pub fn grant(
    inventory: &Inventory,
    resource: &Resource,
    ids: &[String],
) -> Result<Grant, AllocationError> {
    grant_all(resource, lendable(inventory, resource, ids)?)
}

/// What the container gets that holds these devices, whatever is said of them.
pub fn grant_all<'a>(
    resource: &Resource,
    devices: impl IntoIterator<Item = (&'a str, &'a Device)>,
) -> Result<Grant, AllocationError> {
    let mut grant = Grant::default();
    for (id, device) in devices {
        build::add(&mut grant, resource, id, device)?;
    }
    Ok(grant)
}

impl Grant {
    /// Adds what a container gets for `id` of another resource.
    pub fn join(
        &mut self,
        resource: &Resource,
        id: Option<&String>,
        other: Self,
    ) -> Result<(), AllocationError> {
        build::join(self, other).map_err(|(inside, other)| AllocationError::SamePlace {
            resource: resource.name.clone(),
            id: id.cloned().unwrap_or_default(),
            inside,
            other,
        })
    }
}

#[cfg(test)]
mod tests;
