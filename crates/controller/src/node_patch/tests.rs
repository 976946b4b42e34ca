use serde_json::{Value, json};

use super::*;

fn node() -> NodeView {
    NodeView {
        name: "a".to_owned(),
        uid: "u".to_owned(),
        resource_version: "7".to_owned(),
        has_annotations: true,
        ..NodeView::default()
    }
}

fn operations(node: &NodeView, change: NodeChange) -> Vec<Value> {
    let request = NodePatchRequest {
        node: node.name.clone(),
        uid: node.uid.clone(),
        resource_version: node.resource_version.clone(),
        change,
    };
    let patch = node_patch(node, &request, None);
    let all = patch.as_array().unwrap();
    let tests = json!([
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
    ]);
    assert_eq!(all[..2], *tests.as_array().unwrap());
    all[2..].to_vec()
}

fn place(removes_taint: bool) -> NodeChange {
    NodeChange::PlaceGrant {
        grant: "{}".to_owned(),
        desired: "new".to_owned(),
        removes_taint,
    }
}

#[test]
fn a_grant_is_placed_in_one_patch_with_the_desired_config_and_without_the_taint() {
    let mut node = node();
    let key = annotation::GRANT_ACKNOWLEDGED.to_owned();
    node.annotations.insert(key, "old".to_owned());
    node.spec.taints = serde_json::from_value(json!([
        {"key": "UpdateInProgress", "effect": "PreferNoSchedule"},
        {"key": "other", "effect": "NoSchedule", "value": "x", "timeAdded": "2026-01-01T00:00:00Z"},
    ]))
    .unwrap();
    let found = operations(&node, place(true));
    let expected = json!([
        {"op": "add", "path": "/metadata/annotations/machinist.dev~1grant", "value": "{}"},
        {"op": "remove", "path": "/metadata/annotations/machinist.dev~1grant-acknowledged"},
        {
            "op": "add",
            "path": "/metadata/annotations/machineconfiguration.openshift.io~1desiredConfig",
            "value": "new"
        },
        {"op": "add", "path": "/spec/taints", "value": [
            {"key": "other", "effect": "NoSchedule", "value": "x", "timeAdded": "2026-01-01T00:00:00Z"},
        ]},
    ]);
    assert_eq!(Value::Array(found), expected);
}

#[test]
fn annotations_are_created_on_a_node_without_any() {
    let node = NodeView {
        has_annotations: false,
        ..node()
    };
    let found = operations(&node, place(false));
    assert_eq!(
        found[0],
        json!({"op": "add", "path": "/metadata/annotations", "value": {}})
    );
}

#[test]
fn a_withdrawn_grant_leaves_its_end_mark_and_a_fresh_node_without_a_desired_config() {
    let mut node = node();
    for name in [annotation::GRANT, protocol::DESIRED_CONFIG] {
        node.annotations.insert(name.to_owned(), "x".to_owned());
    }
    let change = NodeChange::WithdrawGrant {
        id: "1".to_owned(),
        ends: "[]".to_owned(),
        is_placed: true,
        resets_desired: true,
        desired: None,
    };
    let found = operations(&node, change);
    let expected = json!([
        {"op": "add", "path": "/metadata/annotations/machinist.dev~1grant-ends", "value": "[]"},
        {"op": "remove", "path": "/metadata/annotations/machinist.dev~1grant"},
        {
            "op": "remove",
            "path": "/metadata/annotations/machineconfiguration.openshift.io~1desiredConfig"
        },
    ]);
    assert_eq!(Value::Array(found), expected);
}

#[test]
fn the_last_taint_is_removed_with_the_list() {
    let mut node = node();
    let found = operations(&node, NodeChange::AddTaint);
    let taint = json!([{"key": "UpdateInProgress", "effect": "PreferNoSchedule"}]);
    assert_eq!(
        found,
        [json!({"op": "add", "path": "/spec/taints", "value": taint})]
    );
    node.spec.taints = serde_json::from_value(taint).unwrap();
    let found = operations(&node, NodeChange::RemoveTaint);
    assert_eq!(found, [json!({"op": "remove", "path": "/spec/taints"})]);
}
