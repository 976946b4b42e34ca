//! Tests of the status of devices.

use super::*;

#[test]
fn device_since_moves_only_when_health_or_reason_changes() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let mut before = Vec::new();
    let mut problem = |reason: &str, holder: Option<&str>, second| {
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
    assert_eq!(problem("", None, 1), (Some(at(1)), None));
    assert_eq!(problem("", Some("x/y/z"), 2), (Some(at(1)), Some(at(2))));
    assert_eq!(problem("hot", Some("x/y/z"), 3), (Some(at(3)), Some(at(2))));
    assert_eq!(problem("hot", None, 4), (Some(at(3)), None));
}
