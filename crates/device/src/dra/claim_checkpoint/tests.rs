use super::*;
use crate::{
    dra::claim::DeviceToleration,
    holders::Holder,
    inventory::{AllocationDisabled, ServeMode},
    testing::resource,
};

fn name(claim: &str) -> ClaimName {
    ClaimName {
        namespace: "lab".into(),
        name: claim.into(),
        uid: format!("{claim}-uid"),
    }
}

fn inventory() -> Inventory {
    let mut one = resource(1, &[("a", &[]), ("b", &[])]);
    one.serve = ServeMode::Dra;
    Inventory {
        resources: [(one.name.clone(), one.into())].into(),
        ..Inventory::default()
    }
}

fn mark_unhealthy(inventory: &mut Inventory, id: &str) {
    for resource in inventory.resources.values_mut() {
        let device = Arc::make_mut(resource).devices.get_mut(id).unwrap();
        (device.health, device.reason) = (Health::Unhealthy, Some("it smokes".into()));
    }
}

fn given(request: &str, id: &str) -> AllocatedDevice {
    let x = ResourceName::new("acme.dev/x").unwrap();
    AllocatedDevice {
        request: request.into(),
        pool: "node".into(),
        device: device_names::device_name(&x, id),
        admin: false,
        tolerations: Vec::new(),
    }
}

fn claim(of: &str, allocated: Vec<AllocatedDevice>) -> ResourceClaim {
    ResourceClaim {
        uid: name(of).uid,
        allocated: Some(allocated),
        parameters: false,
    }
}

/// The decision about a claim with the given state of the node.
fn judged(
    inventory: &Inventory,
    claim: &ResourceClaim,
    book: &ClaimCheckpoint,
    plain: &DeviceHolders,
) -> String {
    match select_devices(inventory, "node", (&name("c"), claim), book, plain) {
        Ok(chosen) => {
            let shares: Vec<_> = chosen.iter().map(|one| one.share.as_str()).collect();
            shares.join(" ")
        }
        Err(why) => why.to_string(),
    }
}

#[test]
fn claim_devices_are_found_and_rejections_name_claim_device_and_remedy() {
    let mut inventory = inventory();
    let (none, nobody) = (ClaimCheckpoint::default(), DeviceHolders::default());
    let judge = |claim: &ResourceClaim| judged(&inventory, claim, &none, &nobody);
    let good = claim("c", vec![given("one", "a"), given("one", "b")]);
    assert_eq!(judge(&good), "a b");
    let of = |edit: fn(&mut ResourceClaim)| {
        let mut claim = good.clone();
        edit(&mut claim);
        judge(&claim)
    };
    for (reported, part) in [
        (of(|it| it.uid = "other".into()), "with another UID"),
        (of(|it| it.allocated = None), "no device allocated yet"),
        (of(|it| it.parameters = true), "takes none"),
    ] {
        assert!(
            reported.contains(part) && reported.contains("lab/c"),
            "{reported}"
        );
    }
    let mut far = given("one", "a");
    far.pool = "elsewhere".into();
    let reported = judge(&claim("c", vec![far]));
    assert!(
        reported.contains("pool elsewhere") && reported.contains("is node"),
        "{reported}"
    );
    let reported = judge(&claim("c", vec![given("one", "z")]));
    assert!(reported.contains("no longer publishes"), "{reported}");
    mark_unhealthy(&mut inventory, "b");
    let reported = judged(&inventory, &good, &none, &nobody);
    assert!(
        reported.contains("b of acme.dev/x") && reported.contains("it smokes"),
        "{reported}"
    );
    let mut tolerant = good.clone();
    for one in tolerant.allocated.iter_mut().flatten() {
        one.tolerations = vec![DeviceToleration {
            key: UNHEALTHY_TAINT.into(),
            operator: "Exists".into(),
            ..DeviceToleration::default()
        }];
    }
    assert_eq!(judged(&inventory, &tolerant, &none, &nobody), "a b");
}

#[test]
fn claims_are_not_prepared_while_allocation_is_refused() {
    let mut inventory = inventory();
    let one = claim("c", vec![given("one", "a")]);
    for (refuses, expected) in [(false, true), (true, false)] {
        inventory.allocation_disabled = Some(AllocationDisabled {
            why: "update".into(),
            refuses,
        });
        let reported = judged(
            &inventory,
            &one,
            &ClaimCheckpoint::default(),
            &DeviceHolders::default(),
        );
        assert_eq!(reported == "a", expected, "{reported}");
    }
}

#[test]
fn a_device_in_use_by_a_claim_or_container_is_not_prepared_for_another_claim() {
    let inventory = inventory();
    let held = PreparedDevice {
        request: "one".into(),
        pool: "node".into(),
        device: given("one", "a").device,
        resource: ResourceName::new("acme.dev/x").unwrap(),
        share: "a".into(),
        admin: false,
        cdi: Vec::new(),
    };
    let prepared = |of: &str, admin| PreparedClaim {
        claim: name(of),
        devices: vec![PreparedDevice {
            admin,
            ..held.clone()
        }],
        spec: None,
        links: [].into(),
        boot: None,
    };
    let book = |one: PreparedClaim| ClaimCheckpoint {
        claims: [(one.claim.uid.clone(), one)].into(),
        ..ClaimCheckpoint::default()
    };
    let nobody = DeviceHolders::default();
    let mut wanted = claim("c", vec![given("one", "a")]);
    let say =
        |claim: &ResourceClaim, book: &ClaimCheckpoint| judged(&inventory, claim, book, &nobody);
    let reported = say(&wanted, &book(prepared("other", false)));
    assert!(
        reported.contains("still in use by claim lab/other"),
        "{reported}"
    );
    assert_eq!(say(&wanted, &book(prepared("other", true))), "a");
    assert_eq!(say(&wanted, &book(prepared("c", false))), "a", "its own");
    let mut plain = DeviceHolders::default();
    let holder = Holder {
        namespace: "lab".into(),
        pod: "old".into(),
        container: "main".into(),
    };
    plain.add("acme.dev/x", "a".into(), holder);
    let reported = judged(&inventory, &wanted, &ClaimCheckpoint::default(), &plain);
    assert!(reported.contains("container lab/old/main"), "{reported}");
    // Admin access to devices that others have.
    wanted
        .allocated
        .iter_mut()
        .flatten()
        .for_each(|one| one.admin = true);
    assert_eq!(
        judged(&inventory, &wanted, &book(prepared("other", false)), &plain),
        "a"
    );
    let x = ResourceName::new("acme.dev/x").unwrap();
    assert_eq!(
        book(prepared("c", false)).claimed_resources(),
        BTreeSet::from([x])
    );
}

#[test]
fn devices_of_one_request_share_one_container_allocation() {
    let mut inventory = inventory();
    for resource in inventory.resources.values_mut() {
        let recipe = &mut Arc::make_mut(resource).recipe;
        let ids = crate::template::Template::new("{id}").unwrap();
        recipe.env.insert("IDS".to_owned(), ids);
    }
    let wanted = claim(
        "c",
        vec![given("one", "a"), given("one", "b"), given("two", "a")],
    );
    let mut wanted_twice = wanted.clone();
    wanted_twice
        .allocated
        .iter_mut()
        .flatten()
        .for_each(|one| one.admin = true);
    let chosen = select_devices(
        &inventory,
        "node",
        (&name("c"), &wanted_twice),
        &ClaimCheckpoint::default(),
        &DeviceHolders::default(),
    );
    let parts = group_by_request(&chosen.unwrap()).into_iter().map(|batch| {
        let grant = batch.grant().unwrap();
        (batch, grant)
    });
    let grants = join(&name("c"), parts).unwrap();
    let shown = |request: &str| {
        let grant = &grants[request];
        let nodes: Vec<_> = grant.nodes.iter().map(|node| node.host.as_str()).collect();
        (grant.env["IDS"].clone(), nodes.join(" "))
    };
    assert_eq!(shown("one"), ("a,b".into(), "/dev/a /dev/b".into()));
    assert_eq!(shown("two"), ("a".into(), "/dev/a".into()));
}
