use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use machinist_device::{
    Device, Health, SmallMap,
    inventory::{BackendOptions, DeviceSpec, ServeMode, Share},
};

fn resource(devices: &[&str]) -> Arc<Resource> {
    let device = |id: &&str| {
        let device = Device {
            nodes: Vec::new(),
            health: Health::Healthy,
            reason: None,
            numa: Vec::new(),
            attributes: SmallMap::default(),
            capacity: SmallMap::default(),
            recipe: None,
        };
        ((*id).to_owned(), device)
    };
    let resource = Resource {
        name: ResourceName::new("acme.dev/x").unwrap(),
        source: ResourceSource::Vendor("acme".into()),
        serve: ServeMode::DevicePlugin,
        share: Share::EXCLUSIVE,
        recipe: DeviceSpec::default(),
        asks: BackendOptions::default(),
        devices: devices.iter().map(device).collect(),
    };
    Arc::new(resource)
}

#[test]
fn a_repeated_generation_must_have_the_same_content() {
    let mut offers = VendorResources::default();
    offers.begin_session("one");
    offers.accept(resource(&["a"]), 3, 10, None);
    assert_eq!(offers.check_generation(&resource(&["a"]), 3), Ok(()));
    for (devices, generation) in [(&["b"][..], 3), (&["a"], 2), (&["a"], 0)] {
        let refused = offers
            .check_generation(&resource(devices), generation)
            .unwrap_err();
        assert_eq!(refused.reason, Reason::GenerationOld);
    }
    assert_eq!(offers.check_generation(&resource(&["b"]), 4), Ok(()));
}

#[test]
fn another_instance_starts_unconfirmed_and_confirms_by_sending() {
    let mut offers = VendorResources::restored([resource(&["a"])]);
    assert!(offers.has_unconfirmed() && offers.confirmed_offers().is_empty());
    offers.begin_session("one");
    offers.accept(resource(&["a"]), 7, 10, None);
    assert!(!offers.has_unconfirmed());
    offers.begin_session("one");
    assert_eq!(
        offers.confirmed_offers()[0].generation,
        7,
        "the same one resumes"
    );
    offers.begin_session("two");
    assert!(offers.has_unconfirmed());
    assert_eq!(offers.check_generation(&resource(&["b"]), 1), Ok(()));
}

#[test]
fn devices_of_a_disconnected_vendor_keep_their_own_reason() {
    let mut whole = Resource::clone(&resource(&["a", "b"]));
    let b = whole.devices.get_mut("b").unwrap();
    (b.health, b.reason) = (Health::Unhealthy, Some("hot".into()));
    let lapsed = lapsed(&whole, "vendor acme is disconnected");
    let reason = |id: &str| lapsed.devices[id].reason.as_deref();
    assert_eq!(reason("a"), Some("vendor acme is disconnected"));
    assert_eq!(reason("b"), Some("hot"));
    assert!(
        lapsed
            .devices
            .values()
            .all(|one| one.health == Health::Unhealthy)
    );
}

proptest! {
    /// Within an instance the generation in force never decreases, whatever is sent in whatever
    /// order.
    #[test]
    fn generations_never_decrease_within_an_instance(steps in prop::collection::vec((0_u8..3, 0_u64..6, 0_u8..3), 0..60)) {
        let mut offers = VendorResources::default();
        let mut highest: BTreeMap<u8, (u64, u8)> = BTreeMap::new();
        let mut last = None;
        for (instance, generation, content) in steps {
            if last != Some(instance) {
                highest.clear();
                last = Some(instance);
            }
            offers.begin_session(&instance.to_string());
            let offer = resource(&[&content.to_string()]);
            if offers.check_generation(&offer, generation).is_err() {
                continue;
            }
            offers.accept(offer, generation, 1, None);
            if let Some((before, with)) = highest.insert(instance, (generation, content)) {
                prop_assert!(generation > before || generation == before && content == with);
            }
            prop_assert_eq!(offers.confirmed_offers()[0].generation, generation);
        }
    }
}
