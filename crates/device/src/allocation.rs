//! Device allocation: checks the requested devices and computes what the container gets.

mod container_edits;
mod joined_value;
mod preferred_devices;

use std::collections::BTreeMap;

pub(crate) use self::container_edits::AllocationBuilder;
pub use self::preferred_devices::{PreferredRequest, is_valid_preference, preferred};
use super::{
    inventory::{Device, Inventory, Resource},
    resource_name::ResourceName,
};

/// Why an allocation is refused. Every refusal names the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// The requested device is not listed, or not any more.
    #[error("{resource} has no device {id:?}")]
    Unknown {
        /// The requested resource.
        resource: ResourceName,
        /// The requested id.
        id: String,
    },
    /// The device is listed but cannot be allocated.
    #[error("device {id:?} of {resource} is unhealthy: {why}")]
    Unhealthy {
        /// The requested resource.
        resource: ResourceName,
        /// The requested id.
        id: String,
        /// The reason, as text.
        why: String,
    },
    /// Two requested shares are of the same device, which `share.strict` forbids.
    #[error(
        "{first:?} and {second:?} of {resource} are shares of the same device, which share.strict forbids"
    )]
    SameDevice {
        /// The requested resource.
        resource: ResourceName,
        /// The share that was requested first.
        first: String,
        /// The share of the same device that was requested after it.
        second: String,
    },
    /// Two devices need the same path in the container.
    #[error(
        "device {id:?} of {resource} maps to {inside} in the container, which {other} already uses"
    )]
    SamePlace {
        /// The requested resource.
        resource: ResourceName,
        /// The device that cannot be added.
        id: String,
        /// The path in the container.
        inside: String,
        /// The host path that uses it.
        other: String,
    },
}

/// A device node to add to the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedNode {
    /// Path on the host.
    pub host: String,
    /// Path in the container.
    pub inside: String,
    /// Any of `r`, `w` and `m`.
    pub permissions: String,
}

/// A mount to add to the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedMount {
    /// Path on the host.
    pub host: String,
    /// Path in the container.
    pub inside: String,
    /// Whether it is read-only.
    pub read_only: bool,
}

/// The container allocation: all that one container gets for one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerAllocation {
    /// Device nodes, one for each path in the container.
    pub nodes: Vec<AllocatedNode>,
    /// Mounts, one for each path in the container.
    pub mounts: Vec<AllocatedMount>,
    /// Environment variables; values that differ between devices are joined by commas.
    pub env: BTreeMap<String, String>,
    /// Annotations; values that differ between devices are joined by commas.
    pub annotations: BTreeMap<String, String>,
    /// CDI device names, as `vendor/class=name`.
    pub cdi: Vec<String>,
}

/// The devices behind `ids`, each once, if all of them may be allocated to one container.
pub fn allocatable_devices<'a>(
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
            inventory.allocation_health(device)
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
            // A second share of a device adds nothing to the container.
            Some(_) => {}
            None => devices.push((id, device)),
        }
    }
    Ok(devices)
}

/// What the container gets with the devices behind `ids`, which must be allocatable.
pub fn allocate(
    inventory: &Inventory,
    resource: &Resource,
    ids: &[String],
) -> Result<ContainerAllocation, AllocationError> {
    allocate_any(resource, allocatable_devices(inventory, resource, ids)?)
}

/// What the container gets with these devices, whether they are allocatable or not.
pub fn allocate_any<'a>(
    resource: &Resource,
    devices: impl IntoIterator<Item = (&'a str, &'a Device)>,
) -> Result<ContainerAllocation, AllocationError> {
    let mut builder = AllocationBuilder::default();
    for (id, device) in devices {
        builder.add(resource, id, device)?;
    }
    Ok(builder.build())
}

#[cfg(test)]
pub(crate) mod tests;
