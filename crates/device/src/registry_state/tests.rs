use super::*;
use crate::{discovery::DiscoveredDevice, resource_name::device_id};

const NOW: Duration = Duration::from_secs(1000);

fn path(text: &str) -> AbsPath {
    text.parse().unwrap()
}

fn text(resource: &str, node: &str) -> String {
    format!(
        "{{apiVersion: machinist.dev/v1, kind: DeviceDeclaration, metadata: {{name: x}}, \
         spec: {{resource: {resource}, match: [{{path: {node}}}]}}}}"
    )
}

fn files(given: &[(&str, &str)]) -> ConfigFiles {
    given
        .iter()
        .map(|(file, text)| (path(file), Ok((*text).to_owned())))
        .collect()
}

/// Records a scan in which every path that a declaration in force names is a device, or is absent.
fn see(state: &mut RegistryState, there: bool) {
    let discoveries = state
        .in_force()
        .map(|declaration| {
            let mut seen = Discovery::default();
            for node in declaration.paths().filter_map(|glob| glob.literal()) {
                if there {
                    let sighted = DiscoveredDevice {
                        nodes: vec![node.clone().into()],
                        ..DiscoveredDevice::default()
                    };
                    seen.found.insert(device_id(node.as_str()), sighted);
                } else {
                    let why = format!("{node} does not exist");
                    seen.absent.insert(node.clone(), why);
                }
            }
            (declaration.resource.clone(), seen)
        })
        .collect();
    state.record_scan(&discoveries, NOW, false);
}

fn device_lines(state: &RegistryState) -> Vec<String> {
    let inventory = state.inventory();
    let resources = inventory.resources.values();
    resources
        .flat_map(|resource| {
            let of = resource.name.clone();
            resource
                .devices
                .iter()
                .map(move |(id, device)| format!("{of} {id} {}", device.health))
        })
        .chain(inventory.problems.iter().map(ToString::to_string))
        .collect()
}

#[test]
fn an_invalid_file_is_reported_and_its_last_valid_version_stays_active() {
    let mut state = RegistryState::default();
    let good = text("acme.dev/a", "/dev/a");
    state.set_files(files(&[
        ("/etc/a.yaml", &good),
        ("/etc/b.yaml", &text("acme.dev/b", "/dev/b")),
    ]));
    see(&mut state, true);
    state.set_files(files(&[
        ("/etc/a.yaml", "spec: {resource: [}"),
        ("/etc/b.yaml", &text("acme.dev/b", "/dev/b")),
    ]));
    see(&mut state, true);
    let now = device_lines(&state);
    assert_eq!(now[..2], ["acme.dev/a a Healthy", "acme.dev/b b Healthy"]);
    assert!(now[2].starts_with("/etc/a.yaml:1:"), "{now:?}");
    state.set_files(files(&[("/etc/a.yaml", &good)]));
    assert_eq!(device_lines(&state), ["acme.dev/a a Healthy"]);
}

#[test]
fn the_last_valid_version_of_a_file_survives_an_agent_restart() {
    let mut before = RegistryState::default();
    before.set_files(files(&[("/etc/a.yaml", &text("acme.dev/a", "/dev/a"))]));
    see(&mut before, true);
    before.set_files(files(&[("/etc/a.yaml", "broken")]));
    let saved = serde_json::to_string(&before.save("boot-1")).unwrap();
    let mut after = RegistryState::default();
    after.restore(serde_json::from_str(&saved).unwrap(), "boot-1", |_| false);
    assert_eq!(device_lines(&after), ["acme.dev/a a Healthy"]);
    after.set_files(files(&[("/etc/a.yaml", "broken")]));
    see(&mut after, true);
    assert_eq!(after.in_force().count(), 1);
    assert_eq!(after.inventory().problems.len(), 1);
}

#[test]
fn after_a_reboot_only_devices_whose_node_exists_start_healthy() {
    let mut before = RegistryState::default();
    before.set_files(files(&[
        ("/etc/a.yaml", &text("acme.dev/a", "/dev/a")),
        ("/etc/b.yaml", &text("acme.dev/b", "/dev/b")),
    ]));
    see(&mut before, true);
    let mut after = RegistryState::default();
    after.restore(before.save("boot-1"), "boot-2", |node| {
        node.as_str() == "/dev/b"
    });
    assert_eq!(
        device_lines(&after),
        ["acme.dev/a a Unhealthy", "acme.dev/b b Healthy"]
    );
    let mut newer = RegistryState::default();
    newer.restore(
        RegistryCheckpoint {
            version: CHECKPOINT_VERSION + 1,
            ..before.save("boot-1")
        },
        "boot-1",
        |_| true,
    );
    assert!(device_lines(&newer).is_empty());
}

#[test]
fn one_file_owns_a_resource_and_both_files_report_the_conflict() {
    let mut state = RegistryState::default();
    let (first, second) = (text("acme.dev/x", "/dev/a"), text("acme.dev/x", "/dev/b"));
    state.set_files(files(&[("/run/b.yaml", &second)]));
    state.set_files(files(&[("/etc/a.yaml", &first), ("/run/b.yaml", &second)]));
    see(&mut state, true);
    assert_eq!(
        device_lines(&state),
        [
            "acme.dev/x b Healthy",
            "/etc/a.yaml: spec.resource: acme.dev/x is already offered by /run/b.yaml, which takes precedence [EntryDuplicate]",
            "/run/b.yaml: spec.resource: acme.dev/x is also offered by /etc/a.yaml, which is ignored [EntryDuplicate]",
        ]
    );
    state.set_files(files(&[("/etc/a.yaml", &first)]));
    see(&mut state, true);
    assert_eq!(device_lines(&state), ["acme.dev/x a Healthy"]);
}

#[test]
fn a_removed_name_is_reported_at_once_and_confirmed_by_the_next_scan() {
    let mut state = RegistryState::default();
    state.set_files(files(&[
        ("/etc/a.yaml", &text("acme.dev/a", "/dev/a")),
        ("/etc/b.yaml", &text("acme.dev/b", "/dev/b")),
        ("/etc/z.yaml", &text("acme.dev/z", "/dev/z*")),
    ]));
    see(&mut state, true);
    let names: BTreeSet<_> = ["/dev/a", "/dev/c"].map(path).into();
    assert_eq!(state.mark_removed(&names, NOW), [path("/dev/a")].into());
    let at_once = state.inventory();
    assert_eq!(
        device_lines(&state),
        ["acme.dev/a a Unhealthy", "acme.dev/b b Healthy"]
    );
    let mut discoveries = BTreeMap::new();
    let mut seen = Discovery::default();
    let why = "/dev/a does not exist".to_owned();
    seen.absent.insert(path("/dev/a"), why);
    discoveries.insert(ResourceName::new("acme.dev/a").unwrap(), seen);
    state.record_scan(&discoveries, NOW, false);
    assert_eq!(state.inventory(), at_once);
    let grouped = text("acme.dev/b", "/dev/b").replace("match", "group: {by: usbPath}, match");
    state.set_files(files(&[("/etc/b.yaml", &grouped)]));
    let other = state.mark_removed(&[path("/dev/b")].into(), NOW);
    assert_eq!(other, BTreeSet::new(), "a card may have other nodes");
}

#[test]
fn an_unchanged_resource_is_shared_between_inventories() {
    let mut state = RegistryState::default();
    state.set_files(files(&[("/etc/a.yaml", &text("acme.dev/a", "/dev/a"))]));
    see(&mut state, true);
    let first = state.inventory();
    see(&mut state, true);
    let (_, one) = first.resources.first_key_value().unwrap();
    let second = state.inventory();
    assert!(Arc::ptr_eq(one, second.resources.values().next().unwrap()));
    see(&mut state, false);
    assert_eq!(device_lines(&state), ["acme.dev/a a Unhealthy"]);
}

fn offer(source: ResourceSource, name: &str) -> Resource {
    Resource {
        name: ResourceName::new(name).unwrap(),
        source,
        ..crate::testing::resource(1, &[("a", &[])])
    }
}

#[test]
fn the_first_owner_keeps_a_name_until_it_is_withdrawn() {
    let (acme, other) = (
        ResourceSource::Vendor("acme".into()),
        ResourceSource::Plugin("other".into()),
    );
    let name = ResourceName::new("acme.dev/x").unwrap();
    let mut state = RegistryState::default();
    assert_eq!(
        state.offer(offer(acme.clone(), "acme.dev/x"), Duration::ZERO),
        acme
    );
    assert_eq!(
        state.offer(offer(other.clone(), "acme.dev/x"), Duration::ZERO),
        acme
    );
    let inventory = state.inventory();
    assert_eq!(inventory.resources[&name].source, acme);
    assert_eq!(inventory.problems.len(), 2, "reported for both");
    state.withdraw(&acme, None);
    assert_eq!(state.inventory().resources[&name].source, other);
    state.withdraw(&other, Some(&name));
    assert_eq!(state.inventory(), Inventory::default());
}

#[test]
fn offers_survive_the_agent_and_are_unhealthy_after_a_boot() {
    let acme = ResourceSource::Vendor("acme".into());
    let mut before = RegistryState::default();
    before.offer(offer(acme.clone(), "acme.dev/x"), Duration::ZERO);
    let saved = before.save("boot");
    for (boot, health) in [("boot", Health::Healthy), ("next", Health::Unhealthy)] {
        let mut state = RegistryState::default();
        state.restore(saved.clone(), boot, |_| true);
        let inventory = state.inventory();
        let resource = inventory.resources.values().next().unwrap();
        assert_eq!(
            (&resource.source, resource.devices["a"].health),
            (&acme, health)
        );
    }
}

#[test]
fn resource_ownership_survives_an_agent_restart() {
    let acme = ResourceSource::Vendor("acme".into());
    let name = ResourceName::new("acme.dev/x").unwrap();
    let mut before = RegistryState::default();
    before.offer(offer(acme.clone(), "acme.dev/x"), Duration::ZERO);
    before.set_files(files(&[("/etc/a.yaml", &text("acme.dev/x", "/dev/a"))]));
    assert_eq!(before.inventory().resources[&name].source, acme);
    let mut after = RegistryState::default();
    after.restore(before.save("boot"), "boot", |_| true);
    assert_eq!(after.inventory().resources[&name].source, acme);
}

#[test]
fn files_of_an_unreadable_directory_stay_active() {
    let mut state = RegistryState::default();
    state.set_files(files(&[("/etc/d/a.yaml", &text("acme.dev/a", "/dev/a"))]));
    see(&mut state, true);
    let unread = Refusal::new(Reason::SourceUnreadable, "too many open files");
    state.set_files([(path("/etc/d"), Err(unread))].into());
    assert_eq!(state.inventory().resources.len(), 1);
    assert_eq!(state.inventory().problems.len(), 1);
    state.set_files(ConfigFiles::new());
    assert!(state.inventory().resources.is_empty());
}

#[test]
fn a_flapping_device_of_a_live_source_is_held_back() {
    let acme = ResourceSource::Vendor("acme".into());
    let mut state = RegistryState::default();
    let set_health = |state: &mut RegistryState, well: bool, at: u64| {
        let mut offer = offer(acme.clone(), "acme.dev/x");
        if !well {
            let device = offer.devices.get_mut("a").unwrap();
            (device.health, device.reason) = (Health::Unhealthy, Some("hot".into()));
        }
        state.offer(offer, Duration::from_secs(at));
        state.release_held_devices(Duration::from_secs(at))
    };
    set_health(&mut state, true, 0);
    set_health(&mut state, false, 100);
    assert_eq!(
        set_health(&mut state, true, 101),
        None,
        "once is no flapping"
    );
    set_health(&mut state, false, 103);
    assert_eq!(
        set_health(&mut state, true, 104),
        Some(Duration::from_secs(1))
    );
    let device = |state: &RegistryState| {
        let inventory = state.inventory();
        let resource = inventory.resources.values().next().unwrap();
        (
            resource.devices["a"].health,
            resource.devices["a"].reason.clone(),
        )
    };
    let (health, why) = device(&state);
    assert_eq!(health, Health::Unhealthy);
    assert_eq!(
        why.unwrap(),
        "a is flapping; it must stay present for a while"
    );
    assert_eq!(state.release_held_devices(Duration::from_secs(105)), None);
    assert_eq!(device(&state), (Health::Healthy, None));
    assert_eq!(state.save("boot").resources.len(), 1);
}

#[test]
fn withdrawn_offers_are_dropped_even_if_another_source_has_the_name() {
    let (acme, other) = (
        ResourceSource::Vendor("acme".into()),
        ResourceSource::Plugin("other".into()),
    );
    let mut state = RegistryState::default();
    state.offer(offer(acme.clone(), "acme.dev/x"), Duration::ZERO);
    state.offer(offer(other.clone(), "acme.dev/x"), Duration::ZERO);
    state.retain_offers(&other, &BTreeSet::new());
    state.withdraw(&acme, None);
    assert_eq!(state.inventory(), Inventory::default());
}
