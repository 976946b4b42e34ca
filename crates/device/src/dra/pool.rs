//! The pool of devices that is published to the scheduler, and its partition into ResourceSlices.
//!
//! Limits are those of `resource.k8s.io`: 128 devices in a slice, 64 if one of them has a taint, 32
//! attributes and capacities together for each device, domains of 63 characters, names of 32, values
//! of 64.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::device_names;
use crate::{
    SmallMap,
    inventory::{Device, Health, Inventory, Resource, ServeMode},
    quantity::Quantity,
    resource_name::{ResourceName, hex16},
};

/// The maximum number of devices in a slice.
pub const MAX_SLICE_DEVICES: usize = 128;
/// The maximum number of devices in a slice that has a tainted device.
pub const MAX_TAINTED_SLICE_DEVICES: usize = 64;
const MAX_ATTRIBUTES: usize = 32;
const MAX_ATTRIBUTE_DOMAIN_BYTES: usize = 63;
const MAX_ATTRIBUTE_NAME_BYTES: usize = 32;
const MAX_VALUE_LEN: usize = 64;

/// The taint of a device that cannot be used: it is not allocated again, and containers that have it
/// keep it, as with a device plugin.
pub const UNHEALTHY_TAINT: &str = "machinist.dev/unhealthy";
/// The taint of every device while the machine is being updated.
pub const ALLOCATION_DISABLED_TAINT: &str = "machinist.dev/withheld";

/// The schema of a device in a version of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiFlavor {
    /// `v1` and `v1beta2`.
    Plain,
    /// `v1beta1`: all fields but the name are below `basic`.
    Basic,
}

/// The value of an attribute, by which a DeviceClass can select devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// A number.
    Number(u32),
    /// A text of at most 64 characters.
    Text(String),
}

/// A device in the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDevice {
    /// Its name in the pool.
    pub name: String,
    /// The resource to which it belongs.
    pub resource: ResourceName,
    /// Attributes by name, with or without a domain.
    pub attributes: SmallMap<Attribute>,
    /// Capacities that a claim may request, by name like attributes.
    pub capacity: SmallMap<Quantity>,
    /// The keys of its taints, all with the effect `NoSchedule`.
    pub taints: BTreeSet<&'static str>,
}

/// All devices of the node that are served by claims, in the order of resources and shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// The devices.
    pub devices: Vec<PoolDevice>,
}

impl Pool {
    /// The pool of the devices that the inventory serves by claims.
    pub fn of(inventory: &Inventory) -> Self {
        let mut devices = Vec::new();
        let mut names = BTreeSet::new();
        for (name, resource) in inventory.served_by(ServeMode::Dra) {
            if resource.claim_incompatibility().is_some() {
                continue;
            }
            for (id, number, share) in device_names::shares(resource) {
                let Some(device) = resource.devices.get(id) else {
                    continue;
                };
                let offered = PoolDevice {
                    name: device_names::device_name(name, &share),
                    resource: name.clone(),
                    attributes: attributes(resource, id, number, device),
                    capacity: device.capacity.clone(),
                    taints: taints(inventory, device),
                };
                // The API server would refuse a pool with duplicate names.
                if names.insert(offered.name.clone()) {
                    devices.push(offered);
                }
            }
        }
        Self { devices }
    }

    /// The resources that have devices in the pool.
    pub fn resources(&self) -> BTreeSet<ResourceName> {
        let all = self.devices.iter();
        all.map(|device| device.resource.clone()).collect()
    }

    /// The devices of each slice. If the API server does not support taints, tainted devices are left
    /// out.
    pub fn slices(&self, taints: bool) -> Vec<Vec<&PoolDevice>> {
        let is_sent = |device: &&PoolDevice| taints || device.taints.is_empty();
        let devices: Vec<&PoolDevice> = self.devices.iter().filter(is_sent).collect();
        let mut slices = Vec::new();
        for chunk in devices.chunks(MAX_SLICE_DEVICES) {
            let tainted = chunk.iter().any(|device| !device.taints.is_empty());
            let size = if tainted {
                MAX_TAINTED_SLICE_DEVICES
            } else {
                MAX_SLICE_DEVICES
            };
            slices.extend(chunk.chunks(size).map(<[&PoolDevice]>::to_vec));
        }
        slices
    }
}

impl PoolDevice {
    /// The device as JSON for the API server.
    pub fn spelled(&self, spelling: ApiFlavor) -> Value {
        let mut basic = Map::new();
        let attributes = self.attributes.iter().map(|(name, value)| {
            let value = match value {
                Attribute::Number(number) => json!({"int": number}),
                Attribute::Text(text) => json!({"string": text}),
            };
            (name.clone(), value)
        });
        basic.insert("attributes".to_owned(), Value::Object(attributes.collect()));
        if !self.capacity.is_empty() {
            let all = self.capacity.iter();
            let all = all.map(|(name, amount)| (name.clone(), json!({"value": amount.as_str()})));
            basic.insert("capacity".to_owned(), Value::Object(all.collect()));
        }
        if !self.taints.is_empty() {
            let taints = self.taints.iter();
            let taints = taints.map(|key| json!({"key": key, "effect": "NoSchedule"}));
            basic.insert("taints".to_owned(), taints.collect());
        }
        let mut device = match spelling {
            ApiFlavor::Plain => basic,
            ApiFlavor::Basic => Map::from_iter([("basic".to_owned(), Value::Object(basic))]),
        };
        device.insert("name".to_owned(), json!(self.name));
        Value::Object(device)
    }
}

fn taints(inventory: &Inventory, device: &Device) -> BTreeSet<&'static str> {
    let unhealthy = (device.health != Health::Healthy).then_some(UNHEALTHY_TAINT);
    let allocation_disabled = inventory
        .allocation_disabled
        .is_some()
        .then_some(ALLOCATION_DISABLED_TAINT);
    unhealthy.into_iter().chain(allocation_disabled).collect()
}

/// The driver's own attributes are set first, so that a source's attributes cannot replace them.
fn attributes(resource: &Resource, id: &str, share: u32, device: &Device) -> SmallMap<Attribute> {
    let mut all = SmallMap::default();
    // Names of resources and ids may be longer than a value may be; a digest represents them then.
    let fitting = |text: &str| match text.len() <= MAX_VALUE_LEN {
        true => text.to_owned(),
        false => hex16(text),
    };
    let text = |text: &str| Attribute::Text(fitting(text));
    all.insert("resource".to_owned(), text(resource.name.as_str()));
    all.insert("id".to_owned(), text(id));
    if resource.share.replicas > 1 {
        all.insert("share".to_owned(), Attribute::Number(share));
    }
    // A device that is near to several NUMA nodes has no attribute for them.
    if let [node] = device.numa.as_slice() {
        all.insert("numaNode".to_owned(), Attribute::Number(*node));
    }
    for (key, value) in &device.attributes {
        let Some(name) = qualified(key) else {
            continue;
        };
        // The API server limits the sum of both.
        if all.len() + device.capacity.len() >= MAX_ATTRIBUTES {
            break;
        }
        // A value is left out instead of cut off, since a part of it could match a wrong selector.
        if value.len() <= MAX_VALUE_LEN {
            all.entry(name)
                .or_insert_with(|| Attribute::Text(value.clone()));
        }
    }
    all
}

/// Whether a capacity may have this name: a valid attribute name that needs no change.
pub fn is_name(key: &str) -> bool {
    qualified(key).as_deref() == Some(key)
}

/// The name of an attribute: a C identifier, as CEL requires, with or without a domain. Other
/// characters are replaced: `pci-address` becomes `pci_address`. None if the result would still be
/// invalid.
fn qualified(key: &str) -> Option<String> {
    let (domain, name) = match key.rsplit_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, key),
    };
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut name: String = name
        .chars()
        .map(|c| if inner(c) { c } else { '_' })
        .collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        name.insert(0, '_');
    }
    if name.is_empty() || name.len() > MAX_ATTRIBUTE_NAME_BYTES {
        return None;
    }
    match domain {
        None => Some(name),
        Some(domain) if is_domain(domain) => Some(format!("{domain}/{name}")),
        Some(_) => None,
    }
}

/// Whether this is a DNS subdomain.
fn is_domain(domain: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |label: &str| {
        label.starts_with(inner)
            && label.ends_with(inner)
            && label.chars().all(|c| inner(c) || c == '-')
    };
    domain.len() <= MAX_ATTRIBUTE_DOMAIN_BYTES && domain.split('.').all(label)
}

#[cfg(test)]
mod tests;
