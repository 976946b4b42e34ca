use super::*;
use machinist_status::DeviceStatus;

#[test]
fn what_is_served_by_claim_says_so_and_nothing_else_does() {
    let of = |serve: ServeMode| {
        let resource = ResourceStatus {
            resource: "acme.dev/x".to_owned(),
            serve: serve.as_str().to_owned(),
            ..ResourceStatus::default()
        };
        let known = serde_json::to_value(serve).unwrap();
        assert_eq!(serde_json::to_value(&resource).unwrap()["serve"], known);
        named(&resource)
    };
    assert_eq!(of(ServeMode::DevicePlugin), "acme.dev/x");
    assert_eq!(of(ServeMode::Dra), "acme.dev/x (dra)");
}

#[test]
fn what_is_not_known_of_a_device_is_an_empty_object() {
    let none = SmallMap::default();
    let found = MatchedDevice {
        id: "a",
        health: "Healthy".to_owned(),
        reason: None,
        nodes: Vec::new(),
        numa: &[],
        attributes: &none,
        capacity: &SmallMap::default(),
    };
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["attributes"], serde_json::json!({}));
}

#[test]
fn every_device_has_a_row() {
    let device = |id: &str, holder: Option<&str>, reason: &str| DeviceStatus {
        id: id.to_owned(),
        health: if reason.is_empty() {
            "Healthy"
        } else {
            "Unhealthy"
        }
        .into(),
        reason: reason.to_owned(),
        holder: holder.map(str::to_owned),
        ..DeviceStatus::default()
    };
    let resources = [ResourceStatus {
        resource: "machinist.dev/fuse".to_owned(),
        source: "fuse.yaml".to_owned(),
        serve: "devicePlugin".to_owned(),
        registered: true,
        since: None,
        reason: String::new(),
        devices: vec![
            device("fuse-0", Some("default/pod"), ""),
            device("fuse-1", None, "/dev/fuse does not exist"),
        ],
    }];
    insta::assert_snapshot!(table(&resources), @r"
    RESOURCE            DEVICE  HEALTH     HOLDER       REASON
    machinist.dev/fuse  fuse-0  Healthy    default/pod
    machinist.dev/fuse  fuse-1  Unhealthy  -            /dev/fuse does not exist
    ");
}
