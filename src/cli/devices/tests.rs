use super::*;
use machinist_status::DeviceStatus;

#[test]
fn only_dra_resources_are_shown_as_served_by_claim() {
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
fn unknown_device_details_are_an_empty_json_object() {
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
fn device_table_has_a_row_per_device() {
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
