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

fn seen(looks: &[(&str, Look)]) -> Discovery {
    let mut seen = Discovery::default();
    for (path, look) in looks {
        let node: AbsPath = path.parse().unwrap();
        match look {
            Look::Device => {
                let sighted = DiscoveredDevice {
                    nodes: vec![node.into()],
                    numa: vec![1],
                    ..DiscoveredDevice::default()
                };
                seen.found.insert(device_id(path), sighted);
            }
            Look::Absent => drop(seen.absent.insert(node, format!("{path} does not exist"))),
            Look::Other(kind) => {
                let why = format!("{path} is {kind}, not a device node");
                seen.absent.insert(node, why);
            }
        }
    }
    seen
}

fn there() -> Look {
    Look::Device
}

fn told(merged: &DiscoveryDiff) -> Vec<String> {
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
fn a_declaration_that_keeps_topology_out_is_heeded() {
    let numa = |words: Option<&str>| {
        let spec = words
            .map(|words| format!(", numa: {words}"))
            .unwrap_or_default();
        let text = format!(
            "{{apiVersion: machinist.dev/v1, kind: DeviceDeclaration, metadata: {{name: x}}, \
             spec: {{resource: acme.dev/x, match: [{{path: /dev/fuse}}]{spec}}}}}"
        );
        let declared = declaration::parse("x.yaml", &text, &Allowances::default()).unwrap();
        let seen = seen(&[("/dev/fuse", there())]);
        let merged = merge(None, &declared, &seen, &mut FlapStates::new(), (NOW, false));
        merged.devices["fuse"].numa.clone()
    };
    assert_eq!(numa(None), [1], "as in sysfs");
    assert_eq!(numa(Some("auto")), [1]);
    assert_eq!(numa(Some("[0, 2]")), [0, 2]);
    assert_eq!(numa(Some("none")), [0; 0]);
}

#[test]
fn a_device_that_vanishes_stays_listed_until_it_is_forgotten() {
    let (declared, mut presences) = (declared("/dev/tty*"), FlapStates::new());
    let both = seen(&[("/dev/ttyA", there()), ("/dev/ttyB", there())]);
    let first = merge(None, &declared, &both, &mut presences, (NOW, false));
    assert_eq!(told(&first), ["ttyA Healthy -", "ttyB Healthy -"]);
    let one = seen(&[("/dev/ttyA", there())]);
    let later = (NOW * 2, false);
    let second = merge(Some(&first.devices), &declared, &one, &mut presences, later);
    assert_eq!(
        told(&second),
        ["ttyA Healthy -", "ttyB Unhealthy /dev/ttyB is gone"]
    );
    let third = merge(
        Some(&second.devices),
        &declared,
        &one,
        &mut presences,
        (NOW * 3, true),
    );
    assert_eq!(told(&third), ["ttyA Healthy -"]);
    assert_eq!(presences.len(), 1);
}

#[test]
fn a_device_that_its_declaration_no_longer_covers_is_dropped() {
    let mut presences = FlapStates::new();
    let both = seen(&[("/dev/ttyA", there()), ("/dev/ttyB", there())]);
    let first = merge(
        None,
        &declared("/dev/tty*"),
        &both,
        &mut presences,
        (NOW, false),
    );
    let one = seen(&[("/dev/ttyA", there())]);
    let only = declared("/dev/ttyA");
    let second = merge(
        Some(&first.devices),
        &only,
        &one,
        &mut presences,
        (NOW, false),
    );
    assert_eq!(told(&second), ["ttyA Healthy -"]);
}

#[test]
fn what_never_was_is_missing_when_named_and_nothing_when_matched() {
    let mut presences = FlapStates::new();
    let absent = seen(&[("/dev/fuse", Look::Absent)]);
    let merged = merge(
        None,
        &declared("/dev/fuse"),
        &absent,
        &mut presences,
        (NOW, false),
    );
    assert_eq!(told(&merged), ["fuse Missing /dev/fuse does not exist"]);
    let missing = merged
        .devices
        .values()
        .all(|one| one.health == Health::Missing);
    assert!(missing);
    let file = seen(&[("/dev/fuse", Look::Other("a regular file"))]);
    let merged = merge(
        None,
        &declared("/dev/fus?"),
        &file,
        &mut presences,
        (NOW, false),
    );
    assert!(told(&merged).is_empty());
}

#[test]
fn a_flapping_device_is_held_back_and_looked_at_again() {
    let (declared, mut presences) = (declared("/dev/fuse"), FlapStates::new());
    let (here, away) = (
        seen(&[("/dev/fuse", there())]),
        seen(&[("/dev/fuse", Look::Absent)]),
    );
    let mut known = merge(None, &declared, &here, &mut presences, (NOW, false));
    for look in [&away, &here, &away, &here] {
        known = merge(
            Some(&known.devices),
            &declared,
            look,
            &mut presences,
            (NOW, false),
        );
    }
    assert_eq!(
        told(&known),
        ["fuse Unhealthy /dev/fuse is flapping; it must stay present for a while"]
    );
    let wait = known.again_in.unwrap();
    let after = (NOW + wait, false);
    let known = merge(
        Some(&known.devices),
        &declared,
        &here,
        &mut presences,
        after,
    );
    assert_eq!(
        (told(&known), known.again_in),
        (vec!["fuse Healthy -".to_owned()], None)
    );
}

#[test]
fn a_node_that_is_part_of_another_device_now_is_not_lent_twice() {
    let declaration = declared("/dev/a*");
    let mut presences = FlapStates::new();
    let apart = seen(&[("/dev/a0", there()), ("/dev/a1", there())]);
    let first = merge(None, &declaration, &apart, &mut presences, (NOW, false));
    let mut grouped = Discovery::default();
    let nodes = ["/dev/a0", "/dev/a1"].map(|node| node.parse::<AbsPath>().unwrap().into());
    let sighted = DiscoveredDevice {
        nodes: nodes.into(),
        ..DiscoveredDevice::default()
    };
    grouped.found.insert("usb-1-2".to_owned(), sighted);
    let known = Some(&first.devices);
    let second = merge(known, &declaration, &grouped, &mut presences, (NOW, false));
    assert_eq!(told(&second), ["usb-1-2 Healthy -"]);
}

#[test]
fn a_device_that_two_now_define_says_so_and_not_that_it_is_gone() {
    let text = "{apiVersion: machinist.dev/v1, kind: DeviceDeclaration, metadata: {name: x}, \
                spec: {resource: acme.dev/x, match: [{cdi: {kind: acme.dev/gpu}}]}}";
    let declaration = declaration::parse("x.yaml", text, &Allowances::default()).unwrap();
    let mut presences = FlapStates::new();
    let mut look = |known: Option<&BTreeMap<String, Device>>, seen: &Discovery| {
        merge(known, &declaration, seen, &mut presences, (NOW, false))
    };
    let mut seen = Discovery::default();
    seen.found
        .insert("1".to_owned(), DiscoveredDevice::default());
    let first = look(None, &seen);
    seen.found.clear();
    let why = "acme.dev/gpu=1 is defined by a and b: conflict, none is used".to_owned();
    seen.contested.insert("1".to_owned(), why.clone());
    let next = look(Some(&first.devices), &seen);
    assert_eq!(told(&next), [format!("1 Unhealthy {why}")]);
    seen.contested.clear();
    let gone = look(Some(&next.devices), &seen);
    assert_eq!(told(&gone), ["1 Unhealthy 1 is gone"]);
}
