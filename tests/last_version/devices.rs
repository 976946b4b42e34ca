//! The saved device list and the checkpoint of prepared claims, with every field and variant.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use machinist_base::abs_path::AbsPath;
use machinist_device::{
    Device, DeviceNode, Health, Resource, ResourceName, ResourceSource, ServeMode, SmallMap,
    dra::{
        claim::ClaimName,
        claim_checkpoint::{CHECKPOINT_VERSION, ClaimCheckpoint, PreparedClaim, PreparedDevice},
    },
    inventory::{BackendOptions, DeviceNodeSpec, DeviceSpec, MountSpec, Share, SharePolicy},
    quantity::Quantity,
    registry_state::{self, RegistryCheckpoint},
    template::Template,
};
use serde_json::json;

use crate::last_version::fixture;

fn at(path: &str) -> AbsPath {
    path.parse().unwrap()
}

fn template(text: &str) -> Template {
    Template::new(text).unwrap()
}

fn name(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

fn pairs<V>(key: &str, value: V) -> SmallMap<V> {
    std::iter::once((key.to_owned(), value)).collect()
}

fn recipe() -> DeviceSpec {
    DeviceSpec {
        nodes: vec![DeviceNodeSpec {
            path: template("/dev/{name}"),
            inside: Some(template("/dev/inside/{id}")),
            permissions: "rw".to_owned(),
        }],
        mounts: vec![MountSpec {
            from: at("/usr/lib/acme"),
            to: at("/opt/acme"),
            read_only: true,
        }],
        env: pairs("ACME", template("{id}")),
        annotations: pairs("acme.dev/id", template("{id}")),
        cdi: vec![template("acme.dev/gpu={id}")],
    }
}

fn device(health: Health) -> Device {
    Device {
        nodes: vec![DeviceNode {
            host: at("/dev/acme/by-id/0"),
            inside: at("/dev/acme0"),
        }],
        health,
        reason: (health != Health::Healthy).then(|| "92 °C".to_owned()),
        numa: vec![0, 1],
        attributes: pairs("serial", "A5XK3RJT".to_owned()),
        capacity: pairs("memory", Quantity::new("40Gi").unwrap()),
        recipe: Some(Box::new(recipe())),
    }
}

fn resource(number: u32, source: ResourceSource) -> Arc<Resource> {
    let healths = [Health::Healthy, Health::Unhealthy, Health::Missing];
    let devices = healths.map(|health| (health.as_str().to_lowercase(), device(health)));
    let odd = number % 2 == 1;
    Arc::new(Resource {
        name: name(&format!("acme.dev/gpu-{number}")),
        source,
        serve: if odd {
            ServeMode::Dra
        } else {
            ServeMode::DevicePlugin
        },
        share: Share {
            replicas: 2 + number,
            policy: match odd {
                true => SharePolicy::Packed,
                false => SharePolicy::Spread,
            },
            strict: true,
        },
        recipe: recipe(),
        asks: BackendOptions {
            allocate: true,
            preferred: true,
            pre_start: true,
        },
        devices: devices.into(),
    })
}

fn saved() -> RegistryCheckpoint {
    let file = at("/etc/machinist/devices.d/gpu.yaml");
    RegistryCheckpoint {
        version: registry_state::CHECKPOINT_VERSION,
        boot_id: "boot-1".to_owned(),
        declarations: BTreeMap::from([(file.clone(), "spec: {}\n".to_owned())]),
        resources: vec![
            resource(0, ResourceSource::File(file)),
            resource(1, ResourceSource::Vendor("acme".to_owned())),
            resource(2, ResourceSource::Plugin("other".to_owned())),
        ],
    }
}

fn claims() -> ClaimCheckpoint {
    let held = PreparedDevice {
        request: "gpu".to_owned(),
        pool: "node-1".to_owned(),
        device: "gpu-0".to_owned(),
        resource: name("acme.dev/gpu-1"),
        share: "healthy::1".to_owned(),
        admin: true,
        cdi: vec!["dra.machinist.dev/claim=uid-gpu".to_owned()],
    };
    let prepared = PreparedClaim {
        claim: ClaimName {
            namespace: "lab".to_owned(),
            name: "claim".to_owned(),
            uid: "uid".to_owned(),
        },
        devices: vec![held],
        spec: Some(json!({"cdiVersion": "0.5.0"})),
        links: BTreeMap::from([(at("/dev/acme/by-id/0"), at("/dev/acme0"))]),
        boot: Some("boot-1".to_owned()),
    };
    ClaimCheckpoint {
        version: CHECKPOINT_VERSION,
        generation: 7,
        offered: BTreeSet::from([name("acme.dev/gpu-3")]),
        claims: BTreeMap::from([("uid".to_owned(), prepared)]),
    }
}

fn pretty(value: &impl serde::Serialize) -> Vec<u8> {
    (serde_json::to_string_pretty(value).unwrap() + "\n").into_bytes()
}

#[test]
fn a_device_checkpoint_of_the_last_version_is_read_with_every_field() {
    fixture::document("devices.json", || pretty(&saved()));
    assert_eq!(fixture::json::<RegistryCheckpoint>("devices.json"), saved());
}

#[test]
fn a_claim_checkpoint_of_the_last_version_is_read_with_every_field() {
    fixture::document("claims.json", || pretty(&claims()));
    let read = fixture::json::<ClaimCheckpoint>("claims.json");
    assert_eq!(read, claims());
    let holding = [name("acme.dev/gpu-1"), name("acme.dev/gpu-3")];
    assert_eq!(read.claimed_resources(), holding.into());
}
