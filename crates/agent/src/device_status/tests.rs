//! Tests of the status of devices.

use super::*;

#[test]
fn a_device_is_as_it_is_since_its_health_or_its_reason_changed() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let mut before = Vec::new();
    let mut told = |reason: &str, holder: Option<&str>, second| {
        let device = DeviceStatus {
            id: "a".to_owned(),
            reason: reason.to_owned(),
            holder: holder.map(str::to_owned),
            ..DeviceStatus::default()
        };
        let mut resources = vec![ResourceStatus {
            devices: vec![device],
            ..ResourceStatus::default()
        }];
        since(&before, &mut resources, at(second));
        before = resources;
        let device = &before[0].devices[0];
        (device.since, device.held_since)
    };
    assert_eq!(told("", None, 1), (Some(at(1)), None));
    assert_eq!(told("", Some("x/y/z"), 2), (Some(at(1)), Some(at(2))));
    assert_eq!(told("hot", Some("x/y/z"), 3), (Some(at(3)), Some(at(2))));
    assert_eq!(told("hot", None, 4), (Some(at(3)), None));
}
