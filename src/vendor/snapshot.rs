//! Converts a vendor's snapshot to a resource, or returns the one reason why it is refused.

use std::collections::BTreeMap;

use prost::bytes::Bytes;

use super::{
    api::v1::{self as api, Reason},
    heard,
    limits::{KEPT_BYTES, KEPT_PARTS},
    paths::Bounds,
    recipe::{self, Fault, Texts},
};
use crate::{
    device::{
        Device, Health, Pairs, Resource, ResourceName,
        dra::pool,
        inventory::{Asks, Recipe, Serve, Share},
        quantity::Quantity,
        rules::{self, HIGHEST_NUMA, MOST_CAPACITIES, MOST_NUMA},
        source::Source,
        vendor::Vendor,
    },
    root::Root,
    words::is_misleading,
};

const MOST_ATTRIBUTES: usize = 32;
/// Limit in bytes for reasons and attribute values.
const LONGEST_TEXT: usize = 256;

/// Totals of the vendor's other resources.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Besides {
    /// Number of devices.
    pub(super) devices: usize,
    /// Encoded bytes.
    pub(super) bytes: usize,
    /// Number of parts, see [`parts`].
    pub(super) parts: usize,
}

/// A refused snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
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
    given: (heard::Snapshot, usize),
    besides: Besides,
) -> Result<Resource, Refused> {
    let (snapshot, bytes) = given;
    let whole = |(reason, message): Fault| Refused {
        reason,
        message,
        device: String::new(),
    };
    fits(vendor, snapshot.devices.len(), bytes, besides).map_err(whole)?;
    let asks = snapshot.asks.unwrap_or_default();
    let asks = Asks {
        allocate: asks.allocate,
        preferred: asks.preferred,
        pre_start: asks.pre_start,
    };
    let bounds = Bounds::new(root, vendor, name.domain());
    let resource = Resource {
        name: name.clone(),
        source: Source::Vendor(vendor.name.clone()),
        serve: vendor.serve,
        share: Share::ALONE,
        recipe: Recipe::default(),
        asks,
        devices: devices(bounds, &snapshot.devices, asks)?,
    };
    let kept = parts(&resource) + besides.parts;
    if kept > KEPT_PARTS {
        let message = format!("{kept} parts of snapshots are more than {KEPT_PARTS}");
        return Err(whole((Reason::Limit, message)));
    }
    match resource.unfit_for_claims() {
        Some(why) if resource.serve == Serve::Dra => {
            let message = format!("{why}, and {} sets serve: dra", vendor.name);
            Err(whole((Reason::RecipeInvalid, message)))
        }
        _ => Ok(resource),
    }
}

/// Decodes the devices one by one, keyed by id.
fn devices(
    mut bounds: Bounds<'_>,
    given: &[Bytes],
    asks: Asks,
) -> Result<BTreeMap<String, Device>, Refused> {
    let refused = |id: &str, (reason, message): Fault| Refused {
        reason,
        message,
        device: id.to_owned(),
    };
    let mut devices = Vec::with_capacity(given.len());
    for (at, encoded) in given.iter().enumerate() {
        let given = heard::device(encoded).map_err(|error| {
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

fn fits(vendor: &Vendor, devices: usize, bytes: usize, besides: Besides) -> Result<(), Fault> {
    let (name, most) = (&vendor.name, vendor.limits.devices);
    let (devices, bytes) = (devices + besides.devices, bytes + besides.bytes);
    let message = if devices > most {
        format!("{devices} devices are more than the {most} of vendor {name}")
    } else if bytes > KEPT_BYTES {
        format!("{bytes} bytes of snapshots are more than {KEPT_BYTES}")
    } else {
        return Ok(());
    };
    Err((Reason::Limit, message))
}

fn invalid(message: String) -> Fault {
    (Reason::DeviceInvalid, message)
}

fn device(bounds: &mut Bounds<'_>, given: api::Device, asks: Asks) -> Result<Device, Fault> {
    if !rules::is_device_id(&given.id) {
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
                "its reason is not text of at most {LONGEST_TEXT} bytes"
            )));
        }
    };
    let numa = numa(given.numa)?;
    let attributes = attributes(given.attributes)?;
    let capacity = capacity(given.capacity)?;
    let (nodes, recipe) = match given.recipe {
        Some(wanted) => {
            let checked = recipe::check(bounds, wanted, Texts::Of(&given.id), healthy)?;
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

fn numa(mut nodes: Vec<u32>) -> Result<Vec<u32>, Fault> {
    if nodes.len() > MOST_NUMA || nodes.iter().any(|node| *node > HIGHEST_NUMA) {
        let message = format!("at most {MOST_NUMA} NUMA nodes from 0 to {HIGHEST_NUMA}");
        return Err(invalid(message));
    }
    nodes.sort_unstable();
    nodes.dedup();
    Ok(nodes)
}

fn attributes(given: BTreeMap<String, String>) -> Result<Pairs<String>, Fault> {
    if given.len() > MOST_ATTRIBUTES {
        let message = format!("{} attributes are more than {MOST_ATTRIBUTES}", given.len());
        return Err((Reason::Limit, message));
    }
    for (key, value) in &given {
        if !rules::is_device_id(key) || !is_plain(value) {
            let key: String = key.chars().take(64).collect();
            let message = format!(
                "{key:?} is not an attribute name, or its value is not text of at most {LONGEST_TEXT} bytes"
            );
            return Err(invalid(message));
        }
    }
    let mut attributes = Pairs::with_capacity(given.len());
    attributes.extend(given);
    Ok(attributes)
}

fn capacity(given: BTreeMap<String, String>) -> Result<Pairs<Quantity>, Fault> {
    if given.len() > MOST_CAPACITIES {
        let message = format!("{} capacities are more than {MOST_CAPACITIES}", given.len());
        return Err((Reason::Limit, message));
    }
    let mut capacity = Pairs::with_capacity(given.len());
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
    text.len() <= LONGEST_TEXT && !text.chars().any(is_misleading)
}

#[cfg(test)]
mod tests;
