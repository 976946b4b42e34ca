use super::*;
use crate::{Allowances, declaration};

const NOW: Duration = Duration::from_secs(1000);

fn declared(path: &str) -> Declaration {
    let text = format!(
        "{{apiVersion: machinist.dev/v1, kind: DeviceDeclaration, metadata: {{name: x}}, \
         spec: {{resource: acme.dev/x, match: [{{path: \"{path}\"}}]}}}}"
    );
    declaration::parse("x.yaml", &text, &Allowances::default()).unwrap()
}

/// The object at a path.
#[derive(Clone)]
enum Look {
    Device,
    Absent,
    Other(&'static str),
}

fn discovery(looks: &[(&str, Look)]) -> Discovery {
    let mut discovery = Discovery::default();
    for (path, look) in looks {
        let node: AbsPath = path.parse().unwrap();
        match look {
            Look::Device => {
                let discovered = DiscoveredDevice {
                    nodes: vec![node.into()],
                    numa: vec![1],
                    ..DiscoveredDevice::default()
                };
                discovery.found.insert(device_id(path), discovered);
            }
            Look::Absent => drop(
                discovery
                    .absent
                    .insert(node, format!("{path} does not exist")),
            ),
            Look::Other(kind) => {
                let why = format!("{path} is {kind}, not a device node");
                discovery.absent.insert(node, why);
            }
        }
    }
    discovery
}

fn there() -> Look {
    Look::Device
}

fn reported(merged: &DiscoveryDiff) -> Vec<String> {
    let devices = merged.devices.iter();
    devices
        .map(|(id, device)| {
            format!(
                "{id} {} {}",
                device.health,
                device.reason.as_deref().unwrap_or("-")
            )
        })
        .collect()
}

#[test]
fn a_declaration_can_omit_the_numa_topology() {
    let numa = |words: Option<&str>| {
        let spec = words
            .map(|words| format!(", numa: {words}"))
            .unwrap_or_default();
        let text = format!(
            "{{apiVersion: machinist.dev/v1, kind: DeviceDeclaration, metadata: {{name: x}}, \
             spec: {{resource: acme.dev/x, match: [{{path: /dev/fuse}}]{spec}}}}}"
        );
        let declared = declaration::parse("x.yaml", &text, &Allowances::default()).unwrap();
        let discovery = discovery(&[("/dev/fuse", there())]);
        let merged = merge(
            None,
            &declared,
            &discovery,
            &mut FlapStates::new(),
            (NOW, false),
        );
        merged.devices["fuse"].numa.clone()
    };
    assert_eq!(numa(None), [1], "as in sysfs");
    assert_eq!(numa(Some("auto")), [1]);
    assert_eq!(numa(Some("[0, 2]")), [0, 2]);
    assert_eq!(numa(Some("none")), [0; 0]);
}

#[test]
fn a_removed_device_stays_listed_until_absent_devices_are_dropped() {
    let (declared, mut flap_states) = (declared("/dev/tty*"), FlapStates::new());
    let both = discovery(&[("/dev/ttyA", there()), ("/dev/ttyB", there())]);
    let first = merge(None, &declared, &both, &mut flap_states, (NOW, false));
    assert_eq!(reported(&first), ["ttyA Healthy -", "ttyB Healthy -"]);
    let one = discovery(&[("/dev/ttyA", there())]);
    let later = (NOW * 2, false);
    let second = merge(
        Some(&first.devices),
        &declared,
        &one,
        &mut flap_states,
        later,
    );
    assert_eq!(
        reported(&second),
        ["ttyA Healthy -", "ttyB Unhealthy /dev/ttyB is gone"]
    );
    let third = merge(
        Some(&second.devices),
        &declared,
        &one,
        &mut flap_states,
        (NOW * 3, true),
    );
    assert_eq!(reported(&third), ["ttyA Healthy -"]);
    assert_eq!(flap_states.len(), 1);
}

#[test]
fn a_device_that_its_declaration_no_longer_covers_is_dropped() {
    let mut flap_states = FlapStates::new();
    let both = discovery(&[("/dev/ttyA", there()), ("/dev/ttyB", there())]);
    let first = merge(
        None,
        &declared("/dev/tty*"),
        &both,
        &mut flap_states,
        (NOW, false),
    );
    let one = discovery(&[("/dev/ttyA", there())]);
    let only = declared("/dev/ttyA");
    let second = merge(
        Some(&first.devices),
        &only,
        &one,
        &mut flap_states,
        (NOW, false),
    );
    assert_eq!(reported(&second), ["ttyA Healthy -"]);
}

#[test]
fn an_absent_device_is_missing_if_named_and_unlisted_if_matched() {
    let mut flap_states = FlapStates::new();
    let absent = discovery(&[("/dev/fuse", Look::Absent)]);
    let merged = merge(
        None,
        &declared("/dev/fuse"),
        &absent,
        &mut flap_states,
        (NOW, false),
    );
    assert_eq!(reported(&merged), ["fuse Missing /dev/fuse does not exist"]);
    let missing = merged
        .devices
        .values()
        .all(|one| one.health == Health::Missing);
    assert!(missing);
    let file = discovery(&[("/dev/fuse", Look::Other("a regular file"))]);
    let merged = merge(
        None,
        &declared("/dev/fus?"),
        &file,
        &mut flap_states,
        (NOW, false),
    );
    assert!(reported(&merged).is_empty());
}

#[test]
fn a_flapping_device_is_unhealthy_and_rescanned() {
    let (declared, mut flap_states) = (declared("/dev/fuse"), FlapStates::new());
    let (here, away) = (
        discovery(&[("/dev/fuse", there())]),
        discovery(&[("/dev/fuse", Look::Absent)]),
    );
    let mut known = merge(None, &declared, &here, &mut flap_states, (NOW, false));
    for look in [&away, &here, &away, &here] {
        known = merge(
            Some(&known.devices),
            &declared,
            look,
            &mut flap_states,
            (NOW, false),
        );
    }
    assert_eq!(
        reported(&known),
        ["fuse Unhealthy /dev/fuse is flapping; it must stay present for a while"]
    );
    let wait = known.rescan_in.unwrap();
    let after = (NOW + wait, false);
    let known = merge(
        Some(&known.devices),
        &declared,
        &here,
        &mut flap_states,
        after,
    );
    assert_eq!(
        (reported(&known), known.rescan_in),
        (vec!["fuse Healthy -".to_owned()], None)
    );
}

#[test]
fn a_node_that_moved_to_another_device_is_not_advertised_twice() {
    let declaration = declared("/dev/a*");
    let mut flap_states = FlapStates::new();
    let apart = discovery(&[("/dev/a0", there()), ("/dev/a1", there())]);
    let first = merge(None, &declaration, &apart, &mut flap_states, (NOW, false));
    let mut grouped = Discovery::default();
    let nodes = ["/dev/a0", "/dev/a1"].map(|node| node.parse::<AbsPath>().unwrap().into());
    let discovered = DiscoveredDevice {
        nodes: nodes.into(),
        ..DiscoveredDevice::default()
    };
    grouped.found.insert("usb-1-2".to_owned(), discovered);
    let known = Some(&first.devices);
    let second = merge(
        known,
        &declaration,
        &grouped,
        &mut flap_states,
        (NOW, false),
    );
    assert_eq!(reported(&second), ["usb-1-2 Healthy -"]);
}

#[test]
fn a_device_with_two_definitions_reports_the_conflict() {
    let text = "{apiVersion: machinist.dev/v1, kind: DeviceDeclaration, metadata: {name: x}, \
                spec: {resource: acme.dev/x, match: [{cdi: {kind: acme.dev/gpu}}]}}";
    let declaration = declaration::parse("x.yaml", text, &Allowances::default()).unwrap();
    let mut flap_states = FlapStates::new();
    let mut discover = |known: Option<&BTreeMap<String, Device>>, discovery: &Discovery| {
        merge(
            known,
            &declaration,
            discovery,
            &mut flap_states,
            (NOW, false),
        )
    };
    let mut discovery = Discovery::default();
    discovery
        .found
        .insert("1".to_owned(), DiscoveredDevice::default());
    let first = discover(None, &discovery);
    discovery.found.clear();
    let why = "acme.dev/gpu=1 is defined by a and b: conflict, none is used".to_owned();
    discovery.contested.insert("1".to_owned(), why.clone());
    let next = discover(Some(&first.devices), &discovery);
    assert_eq!(reported(&next), [format!("1 Unhealthy {why}")]);
    discovery.contested.clear();
    let gone = discover(Some(&next.devices), &discovery);
    assert_eq!(reported(&gone), ["1 Unhealthy 1 is gone"]);
}
