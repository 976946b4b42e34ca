//! Converts a vendor's snapshot to a resource, or returns the one reason why it is refused.

use std::collections::BTreeMap;

use prost::bytes::Bytes;

use super::{
    api::v1::{self as api, Reason},
    device_spec::{self, SpecError, TemplateVars},
    lazy_messages,
    limits::{MAX_SNAPSHOT_TOTAL_BYTES, MAX_SNAPSHOT_TOTAL_PARTS},
    path_policy::PathPolicy,
};
use machinist_base::text::is_misleading;
use machinist_device::{
    Device, Health, Resource, ResourceName, SmallMap,
    dra::pool,
    inventory::{BackendOptions, DeviceSpec, ServeMode, Share},
    mount_allowlist::{self, MAX_CAPACITIES, MAX_NUMA_NODE_ID, MAX_NUMA_NODES},
    quantity::Quantity,
    source::ResourceSource,
    vendor_declaration::Vendor,
};
use machinist_rootfs::Root;

const MAX_ATTRIBUTES: usize = 32;
/// Limit in bytes for reasons and attribute values.
const MAX_TEXT_BYTES: usize = 256;

/// Totals of the vendor's other resources.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OtherResources {
    /// Number of devices.
    pub(super) devices: usize,
    /// Encoded bytes.
    pub(super) bytes: usize,
    /// Number of parts, see [`parts`].
    pub(super) parts: usize,
}

/// A refused snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SnapshotRejection {
    pub(super) reason: Reason,
    pub(super) message: String,
    /// The device that caused it; empty when no single device did.
    pub(super) device: String,
}

/// Reads a snapshot of the given number of bytes. Checks paths on the machine when there is a root,
/// and so it blocks.
pub(super) fn read(
    root: Option<&Root>,
    vendor: &Vendor,
    name: &ResourceName,
    given: (lazy_messages::LazySnapshot, usize),
    besides: OtherResources,
) -> Result<Resource, SnapshotRejection> {
    let (snapshot, bytes) = given;
    let whole = |(reason, message): SpecError| SnapshotRejection {
        reason,
        message,
        device: String::new(),
    };
    fits(vendor, snapshot.devices.len(), bytes, besides).map_err(whole)?;
    let asks = snapshot.asks.unwrap_or_default();
    let asks = BackendOptions {
        allocate: asks.allocate,
        preferred: asks.preferred,
        pre_start: asks.pre_start,
    };
    let bounds = PathPolicy::new(root, vendor, name.domain());
    let resource = Resource {
        name: name.clone(),
        source: ResourceSource::Vendor(vendor.name.clone()),
        serve: vendor.serve,
        share: Share::EXCLUSIVE,
        recipe: DeviceSpec::default(),
        asks,
        devices: devices(bounds, &snapshot.devices, asks)?,
    };
    let kept = parts(&resource) + besides.parts;
    if kept > MAX_SNAPSHOT_TOTAL_PARTS {
        let message = format!("{kept} parts of snapshots are more than {MAX_SNAPSHOT_TOTAL_PARTS}");
        return Err(whole((Reason::Limit, message)));
    }
    match resource.claim_incompatibility() {
        Some(why) if resource.serve == ServeMode::Dra => {
            let message = format!("{why}, and {} sets serve: dra", vendor.name);
            Err(whole((Reason::RecipeInvalid, message)))
        }
        _ => Ok(resource),
    }
}

/// Decodes the devices one by one, keyed by id.
fn devices(
    mut bounds: PathPolicy<'_>,
    given: &[Bytes],
    asks: BackendOptions,
) -> Result<BTreeMap<String, Device>, SnapshotRejection> {
    let refused = |id: &str, (reason, message): SpecError| SnapshotRejection {
        reason,
        message,
        device: id.to_owned(),
    };
    let mut devices = Vec::with_capacity(given.len());
    for (at, encoded) in given.iter().enumerate() {
        let given = lazy_messages::device(encoded).map_err(|error| {
            let which = format!("device {} of the snapshot", at + 1);
            let why = format!("{which} is not valid protobuf: {error}");
            refused("", invalid(why))
        })?;
        // Only the beginning of an overlong id is repeated.
        let id: String = given.id.chars().take(64).collect();
        let device = device(&mut bounds, given, asks).map_err(|(reason, message)| {
            refused(&id, (reason, format!("device {id:?}: {message}")))
        })?;
        devices.push((id, device));
    }
    devices.sort_by(|one, other| one.0.cmp(&other.0));
    if let Some([(id, _), _]) = devices.array_windows().find(|[one, two]| one.0 == two.0) {
        let why = format!("device {id:?}: duplicate id");
        return Err(refused(id, invalid(why)));
    }
    // Collected from a list: a tree filled in sorted order, entry by entry, is left half empty.
    Ok(devices.into_iter().collect())
}

/// The number of devices, nodes, mounts, variables, annotations, attributes, capacities and CDI
/// names.
pub(super) fn parts(resource: &Resource) -> usize {
    let of = |device: &Device| {
        let recipe = device.recipe.as_ref().map_or(0, |recipe| {
            let inside = recipe.nodes.len() + recipe.mounts.len() + recipe.cdi.len();
            inside + recipe.env.len() + recipe.annotations.len()
        });
        1 + device.attributes.len() + device.capacity.len() + recipe
    };
    resource.devices.values().map(of).sum()
}

fn fits(
    vendor: &Vendor,
    devices: usize,
    bytes: usize,
    besides: OtherResources,
) -> Result<(), SpecError> {
    let (name, most) = (&vendor.name, vendor.limits.devices);
    let (devices, bytes) = (devices + besides.devices, bytes + besides.bytes);
    let message = if devices > most {
        format!("{devices} devices are more than the {most} of vendor {name}")
    } else if bytes > MAX_SNAPSHOT_TOTAL_BYTES {
        format!(
            "the snapshots of this vendor have {bytes} bytes; the limit is {MAX_SNAPSHOT_TOTAL_BYTES} bytes"
        )
    } else {
        return Ok(());
    };
    Err((Reason::Limit, message))
}

fn invalid(message: String) -> SpecError {
    (Reason::DeviceInvalid, message)
}

fn device(
    bounds: &mut PathPolicy<'_>,
    given: api::Device,
    asks: BackendOptions,
) -> Result<Device, SpecError> {
    if !mount_allowlist::is_device_id(&given.id) {
        let expected = "1 to 63 letters, digits, '.', '_' and '-', a letter or digit first";
        return Err(invalid(format!("invalid id; expected {expected}")));
    }
    let health = match api::Health::try_from(given.health) {
        Ok(api::Health::Healthy) => Health::Healthy,
        Ok(api::Health::Unhealthy) => Health::Unhealthy,
        _ => return Err(invalid("its health is not set".to_owned())),
    };
    let healthy = health == Health::Healthy;
    let reason = match given.reason {
        _ if healthy => None,
        text if text.is_empty() => Some("reported by the vendor".to_owned()),
        text if is_plain(&text) => Some(text),
        _ => {
            return Err(invalid(format!(
                "its reason is not text of at most {MAX_TEXT_BYTES} bytes"
            )));
        }
    };
    let numa = numa(given.numa)?;
    let attributes = attributes(given.attributes)?;
    let capacity = capacity(given.capacity)?;
    let (nodes, recipe) = match given.recipe {
        Some(wanted) => {
            let checked = device_spec::check(bounds, wanted, TemplateVars::Of(&given.id), healthy)?;
            let (nodes, recipe) = checked.into_recipe()?;
            (nodes, Some(Box::new(recipe)))
        }
        None if asks.allocate => (Vec::new(), None),
        None => {
            let message = "it has no recipe, and asks.allocate is not set".to_owned();
            return Err((Reason::RecipeInvalid, message));
        }
    };
    Ok(Device {
        nodes,
        health,
        reason,
        numa,
        attributes,
        capacity,
        recipe,
    })
}

fn numa(mut nodes: Vec<u32>) -> Result<Vec<u32>, SpecError> {
    if nodes.len() > MAX_NUMA_NODES || nodes.iter().any(|node| *node > MAX_NUMA_NODE_ID) {
        let message = format!("at most {MAX_NUMA_NODES} NUMA nodes from 0 to {MAX_NUMA_NODE_ID}");
        return Err(invalid(message));
    }
    nodes.sort_unstable();
    nodes.dedup();
    Ok(nodes)
}

fn attributes(given: BTreeMap<String, String>) -> Result<SmallMap<String>, SpecError> {
    if given.len() > MAX_ATTRIBUTES {
        let message = format!("{} attributes are more than {MAX_ATTRIBUTES}", given.len());
        return Err((Reason::Limit, message));
    }
    for (key, value) in &given {
        if !mount_allowlist::is_device_id(key) || !is_plain(value) {
            let key: String = key.chars().take(64).collect();
            let message = format!(
                "{key:?} is not an attribute name, or its value is not text of at most {MAX_TEXT_BYTES} bytes"
            );
            return Err(invalid(message));
        }
    }
    let mut attributes = SmallMap::with_capacity(given.len());
    attributes.extend(given);
    Ok(attributes)
}

fn capacity(given: BTreeMap<String, String>) -> Result<SmallMap<Quantity>, SpecError> {
    if given.len() > MAX_CAPACITIES {
        let message = format!("{} capacities are more than {MAX_CAPACITIES}", given.len());
        return Err((Reason::Limit, message));
    }
    let mut capacity = SmallMap::with_capacity(given.len());
    for (name, amount) in given {
        if !pool::is_name(&name) {
            let name: String = name.chars().take(64).collect();
            return Err(invalid(format!("{name:?} is not a valid capacity name")));
        }
        let amount = Quantity::new(&amount);
        let amount = amount.map_err(|error| invalid(format!("capacity {name}: {error}")))?;
        capacity.insert(name, amount);
    }
    Ok(capacity)
}

/// Whether the text is one short line without control characters.
fn is_plain(text: &str) -> bool {
    text.len() <= MAX_TEXT_BYTES && !text.chars().any(is_misleading)
}

#[cfg(test)]
mod tests;
