use std::collections::BTreeMap;

use serde_json::json;

use super::{keys::*, *};

#[test]
fn node_states_and_drain_requests_round_trip_through_text() {
    for state in [
        NodeUpdateState::Working,
        NodeUpdateState::Done,
        NodeUpdateState::Degraded,
        NodeUpdateState::Unreconcilable,
    ] {
        assert_eq!(NodeUpdateState::parse(&state.to_string()), Some(state));
    }
    assert_eq!(NodeUpdateState::parse(""), None);
    let drain = DrainRequest::parse("drain-rendered-worker-0a").unwrap();
    assert_eq!(drain, DrainRequest::Drain("rendered-worker-0a".to_owned()));
    assert_eq!(drain.to_string(), "drain-rendered-worker-0a");
    let uncordon = DrainRequest::Uncordon("rendered-worker-0a".to_owned());
    assert_eq!(DrainRequest::parse(&uncordon.to_string()), Some(uncordon));
    assert_eq!(DrainRequest::parse("reboot-x"), None);
}

#[test]
fn a_reason_is_truncated_at_a_character_boundary() {
    let long = "é".repeat(1500);
    let short = truncate_at_char(&long, MAX_REASON_BYTES - 1);
    assert_eq!((short.len(), short.chars().count()), (1998, 999));
    assert_eq!(truncate_at_char("short", MAX_REASON_BYTES), "short");
}

/// Order and reasons as in the end-to-end test of the real controller.
#[test]
fn machine_config_node_conditions_are_in_the_documented_order() {
    use NodeConditionKind::*;
    let message = [
        UpdatePrepared,
        UpdateExecuted,
        Cordoned,
        Drained,
        AppliedFilesAndOS,
        RebootedNode,
        Resumed,
        UpdateComplete,
        Uncordoned,
        Updated,
    ];
    assert!(message.is_sorted());
    assert_eq!(Cordoned.reason(), "UpdateExecutedCordoned");
    assert_eq!(Uncordoned.reason(), "UpdateCompleteUncordoned");
    assert_eq!(Resumed.reason(), "Resumed");
}

#[test]
fn a_label_selector_matches_as_in_the_api_server() {
    let spec: MachineConfigPoolSpec = serde_json::from_value(json!({
        "nodeSelector": {
            "matchLabels": {"node-role.kubernetes.io/infra": ""},
            "matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["b"]}],
        },
        "configuration": {"name": "rendered-infra-1", "source": []},
        "maxUnavailable": 1,
    }))
    .unwrap();
    let labels = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter();
        let owned = pairs.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        owned.collect::<BTreeMap<_, _>>()
    };
    let infra = "node-role.kubernetes.io/infra";
    assert!(spec.node_selector.selects(&labels(&[(infra, "")])));
    assert!(
        spec.node_selector
            .selects(&labels(&[(infra, ""), ("zone", "a")]))
    );
    assert!(
        !spec
            .node_selector
            .selects(&labels(&[(infra, ""), ("zone", "b")]))
    );
    assert!(!spec.node_selector.selects(&labels(&[("zone", "a")])));
    assert_eq!(spec.configuration.name, "rendered-infra-1");
}

#[test]
fn a_node_is_ready_only_if_reported_in_this_boot() {
    let status = json!({
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-21T20:00:00Z"}],
        "nodeInfo": {"bootID": "old", "kernelVersion": "6"},
    });
    let mut view = NodeView {
        status: serde_json::from_value(status).unwrap(),
        ..NodeView::default()
    };
    assert!(view.is_ready_in("old") && !view.is_ready_in("new"));
    view.status.conditions[0].status = "Unknown".to_owned();
    assert!(!view.is_ready_in("old"));
}

#[test]
fn an_empty_operator_annotation_counts_except_as_a_force_reason() {
    let mut view = NodeView::default();
    let empty = |name: &str| (name.to_owned(), String::new());
    view.annotations = BTreeMap::from([
        empty(annotation::KEEP_CORDONED),
        empty(annotation::FORCE_DRAIN),
        empty(protocol::DESIRED_CONFIG),
    ]);
    assert!(view.keeps_cordon());
    assert_eq!(view.forced_drain(), None);
    assert!(view.forces_without_a_reason());
    assert_eq!(view.desired_config(), None);
}

#[test]
fn resource_versions_are_compared_only_for_the_same_uid() {
    let version = |uid: &str, version: &str| NodeView {
        uid: uid.to_owned(),
        resource_version: version.to_owned(),
        ..NodeView::default()
    };
    assert!(version("1", "9").is_older_than(&version("1", "10")));
    assert!(!version("2", "9").is_older_than(&version("1", "10")));
    assert!(!version("1", "x").is_older_than(&version("1", "10")));
}

#[test]
fn invalid_object_names_are_rejected() {
    let long = "a".repeat(254);
    for name in ["rendered-worker-0a", "a", "0.b-c", &long[1..]] {
        assert!(keys::is_object_name(name), "{name}");
    }
    for name in [
        "", "Bad", "a b", "a/b", "../a", "..", "a?x=1", "-a", "a-", "a..b", "\u{e4}", &long,
    ] {
        assert!(!keys::is_object_name(name), "{name}");
    }
}
