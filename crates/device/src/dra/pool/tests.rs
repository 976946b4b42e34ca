use super::*;
use crate::{inventory::AllocationDisabled, testing::resource};

fn inventory(replicas: u32, devices: &[(&str, &[u32])]) -> Inventory {
    let mut one = resource(replicas, devices);
    one.serve = ServeMode::Dra;
    Inventory {
        resources: [(one.name.clone(), one.into())].into(),
        ..Inventory::default()
    }
}

fn edit(inventory: &mut Inventory, edit: impl FnOnce(&mut Resource)) {
    let resource = inventory.resources.values_mut().next().unwrap();
    edit(std::sync::Arc::make_mut(resource));
}

#[test]
fn a_pool_device_has_its_resource_id_numa_node_and_attributes() {
    let mut inventory = inventory(1, &[("a", &[1])]);
    edit(&mut inventory, |one| {
        let device = one.devices.get_mut("a").unwrap();
        device.attributes = [
            ("serial", "A5XK"),
            ("pci-address", "0000:01:00.0"),
            ("resource.kubernetes.io/pcieRoot", "pci0000:01"),
            ("resource", "a lie"),
            ("Bad_Domain/x", "left out"),
            ("a name that is far too long for it", "left out"),
            ("2nd", "second"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into_iter()
        .collect();
        device
            .attributes
            .insert("long".to_owned(), "v".repeat(MAX_VALUE_LEN + 1));
    });
    let pool = Pool::of(&inventory);
    let [device] = pool.devices.as_slice() else {
        panic!("{pool:?}");
    };
    assert_eq!(
        device.spelled(ApiFlavor::Plain),
        json!({
            "name": device.name,
            "attributes": {
                "resource": {"string": "acme.dev/x"},
                "id": {"string": "a"},
                "numaNode": {"int": 1},
                "serial": {"string": "A5XK"},
                "pci_address": {"string": "0000:01:00.0"},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:01"},
                "_2nd": {"string": "second"},
            },
        })
    );
    let basic = device.spelled(ApiFlavor::Basic);
    assert_eq!(basic["basic"]["attributes"]["id"]["string"], "a");
    assert!(basic.get("attributes").is_none());
}

#[test]
fn capacities_have_the_form_of_each_api_version() {
    let mut inventory = inventory(1, &[("a", &[])]);
    edit(&mut inventory, |one| {
        let device = one.devices.get_mut("a").unwrap();
        let amounts = [("memory", "1024Mi"), ("acme.dev/slices", "7")];
        device.capacity = amounts
            .map(|(name, amount)| (name.to_owned(), Quantity::new(amount).unwrap()))
            .into_iter()
            .collect();
        let many = (0..40).map(|n| (format!("k{n}"), "v".to_owned()));
        device.attributes = many.collect();
    });
    let pool = Pool::of(&inventory);
    let device = &pool.devices[0];
    let reported = json!({"memory": {"value": "1Gi"}, "acme.dev/slices": {"value": "7"}});
    assert_eq!(device.spelled(ApiFlavor::Plain)["capacity"], reported);
    assert_eq!(
        device.spelled(ApiFlavor::Basic)["basic"]["capacity"],
        reported
    );
    assert_eq!(device.attributes.len(), 30, "32 of both together");
    for name in ["memory", "acme.dev/slices", "_x9"] {
        assert!(is_name(name), "{name}");
    }
    for name in ["", "2nd", "a-b", "Acme/x", "a b", &"x".repeat(33)] {
        assert!(!is_name(name), "{name}");
    }
}

#[test]
fn attributes_never_exceed_the_api_servers_limit() {
    let mut inventory = inventory(2, &[("a", &[0])]);
    edit(&mut inventory, |one| {
        let many = (0..40).map(|n| (format!("k{n}"), "v".to_owned()));
        one.devices.get_mut("a").unwrap().attributes = many.collect();
    });
    let pool = Pool::of(&inventory);
    assert!(
        pool.devices
            .iter()
            .all(|device| device.attributes.len() == 32)
    );
    assert!(
        pool.devices
            .iter()
            .all(|one| one.attributes.contains_key("share"))
    );
}

#[test]
fn unhealthy_devices_are_tainted_and_only_dra_resources_are_listed() {
    let mut inventory = inventory(1, &[("a", &[0, 1]), ("b", &[])]);
    edit(&mut inventory, |one| {
        one.devices.get_mut("a").unwrap().health = Health::Unhealthy;
        one.devices.get_mut("b").unwrap().health = Health::Missing;
    });
    let pool = Pool::of(&inventory);
    assert_eq!(
        pool.devices.len(),
        1,
        "a device that never existed is not published"
    );
    assert!(!pool.devices[0].attributes.contains_key("numaNode"));
    assert_eq!(pool.devices[0].taints, BTreeSet::from([UNHEALTHY_TAINT]));
    assert_eq!(
        pool.devices[0].spelled(ApiFlavor::Plain)["taints"],
        json!([{"key": "machinist.dev/unhealthy", "effect": "NoSchedule"}])
    );
    inventory.allocation_disabled = Some(AllocationDisabled {
        why: "update".into(),
        refuses: false,
    });
    let both = BTreeSet::from([UNHEALTHY_TAINT, ALLOCATION_DISABLED_TAINT]);
    assert_eq!(Pool::of(&inventory).devices[0].taints, both);
    edit(&mut inventory, |one| one.serve = ServeMode::DevicePlugin);
    assert_eq!(Pool::of(&inventory), Pool::default());
}

#[test]
fn slices_fit_the_server_limits_and_tainted_devices_are_dropped_without_taint_support() {
    let ids: Vec<String> = (0..300).map(|n| format!("d{n:03}")).collect();
    let devices: Vec<(&str, &[u32])> = ids.iter().map(|id| (id.as_str(), &[][..])).collect();
    let mut inventory = inventory(1, &devices);
    let sizes = |inventory: &Inventory, taints| {
        let pool = Pool::of(inventory);
        let slices = pool.slices(taints);
        slices.iter().map(Vec::len).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&inventory, true), [128, 128, 44]);
    edit(&mut inventory, |one| {
        one.devices.get_mut("d130").unwrap().health = Health::Unhealthy;
    });
    assert_eq!(sizes(&inventory, true), [128, 64, 64, 44]);
    assert_eq!(sizes(&inventory, false), [128, 128, 43]);
}
