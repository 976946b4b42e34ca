//! Resources and devices for tests.
#![allow(clippy::unwrap_used, reason = "a test panics when its data is wrong")]

use machinist_base::abs_path::AbsPath;

use crate::{
    inventory::{
        BackendOptions, Device, DeviceNodeSpec, DeviceSpec, Health, Resource, ServeMode, Share,
    },
    resource_name::ResourceName,
    small_map::SmallMap,
    source::ResourceSource,
    template::Template,
};

/// A healthy device with one device node.
pub fn device(node: &str, numa: &[u32]) -> Device {
    Device {
        nodes: vec![node.parse::<AbsPath>().unwrap().into()],
        health: Health::Healthy,
        reason: None,
        numa: numa.to_vec(),
        attributes: SmallMap::default(),
        capacity: SmallMap::default(),
        recipe: None,
    }
}

/// A resource of a vendor, `acme.dev/x`; `devices` holds the name and the NUMA nodes of each device.
pub fn resource(replicas: u32, devices: &[(&str, &[u32])]) -> Resource {
    Resource {
        name: ResourceName::new("acme.dev/x").unwrap(),
        source: ResourceSource::Vendor("test".into()),
        serve: ServeMode::DevicePlugin,
        asks: BackendOptions::default(),
        share: Share {
            replicas,
            ..Share::EXCLUSIVE
        },
        recipe: DeviceSpec {
            nodes: vec![DeviceNodeSpec {
                path: Template::new("{node}").unwrap(),
                inside: None,
                permissions: "rw".into(),
            }],
            ..DeviceSpec::default()
        },
        devices: devices
            .iter()
            .map(|(id, numa)| ((*id).to_owned(), device(&format!("/dev/{id}"), numa)))
            .collect(),
    }
}
