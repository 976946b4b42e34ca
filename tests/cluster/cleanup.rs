//! Uninstalling machinist from a node: its own fields are removed, and no others.

use machinist_cluster::machine_config_node;
use serde_json::{Value, json};

use super::{
    node::{NODE, node, with_node},
    server::InjectedFailure,
};

const OBJECT: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfignodes/a";

/// The Node during a drain.
fn marked() -> Value {
    let mut marked = node();
    for (name, value) in [
        ("machinist.dev/cordoned", "update"),
        (
            "machinist.dev/blocked-by",
            "shop/web-1 (DrainBlockedByBudget)",
        ),
        ("machinist.dev/owns-remediation-exclusion", "update"),
    ] {
        marked["metadata"]["annotations"][name] = json!(value);
    }
    marked["metadata"]["labels"]["remediation.medik8s.io/exclude-from-remediation"] = json!("true");
    marked["spec"]["unschedulable"] = json!(true);
    let taints = marked["spec"]["taints"].as_array_mut().unwrap();
    taints.push(json!({"key": "machinist.dev/not-ready", "effect": "NoSchedule"}));
    let conditions = marked["status"]["conditions"].as_array_mut().unwrap();
    conditions.insert(1, json!({"type": "machinist.dev/Ready", "status": "True"}));
    marked
}

fn without_version(mut object: Value) -> Value {
    object["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    object
}

#[tokio::test]
async fn cleanup_removes_only_keys_that_machinist_wrote() {
    let (server, own) = with_node().await;
    server.put(NODE, marked());
    let looked = own.clean_up_node(true).await.unwrap().unwrap();
    assert_eq!(server.writes().len(), 0, "dry run: no write");
    let left = own.clean_up_node(false).await.unwrap().unwrap();
    assert_eq!(looked, left);
    assert!(left.uncordoned && !left.kept_cordoned);
    assert_eq!(left.conditions, ["machinist.dev/Ready"]);
    assert_eq!(without_version(server.object(NODE)), node());

    let writes = server.writes().len();
    assert_eq!(
        own.clean_up_node(false).await.unwrap().unwrap(),
        Default::default()
    );
    assert_eq!(
        server.writes().len(),
        writes,
        "a repeated call writes nothing"
    );
}

#[tokio::test]
async fn cleanup_removes_a_remediation_label_with_the_former_ownership_annotation() {
    let (server, own) = with_node().await;
    let mut left = marked();
    let notes = left["metadata"]["annotations"].as_object_mut().unwrap();
    let value = notes.remove("machinist.dev/owns-remediation-exclusion");
    notes.insert("machinist.dev/stands-back".to_owned(), value.unwrap());
    server.put(NODE, left);
    own.clean_up_node(false).await.unwrap().unwrap();
    assert_eq!(without_version(server.object(NODE)), node());
}

#[tokio::test]
async fn cleanup_keeps_an_operators_cordon_and_annotations() {
    let (server, own) = with_node().await;
    // Cordoned by an operator: there is no mark of the agent.
    server.edit(NODE, |node| node["spec"]["unschedulable"] = json!(true));
    assert!(!own.clean_up_node(false).await.unwrap().unwrap().uncordoned);
    assert_eq!(server.object(NODE)["spec"]["unschedulable"], true);
    assert_eq!(server.writes().len(), 0);

    // The agent's cordon, which an operator wants to keep.
    server.put(NODE, marked());
    server.edit(NODE, |node| {
        node["metadata"]["annotations"]["machinist.dev/keep-cordoned"] = json!("disk");
    });
    let left = own.clean_up_node(false).await.unwrap().unwrap();
    assert!(left.kept_cordoned && !left.uncordoned);
    let now = server.object(NODE);
    assert_eq!(now["spec"]["unschedulable"], true);
    assert_eq!(
        now["metadata"]["annotations"]["machinist.dev/keep-cordoned"],
        "disk"
    );
    assert!(now["metadata"]["annotations"]["machinist.dev/cordoned"].is_null());
}

#[tokio::test]
async fn cleanup_keeps_concurrent_changes_by_other_writers() {
    let (server, own) = with_node().await;
    let status = "PATCH /api/v1/nodes/a/status";
    server.put(NODE, marked());
    server.trouble(status, InjectedFailure::Code(409, "Conflict"));
    own.clean_up_node(false).await.unwrap().unwrap();
    assert_eq!(without_version(server.object(NODE)), node());
    assert_eq!(server.requests_starting(status).len(), 2);

    let mut without_condition = marked();
    without_condition["status"] = node()["status"].clone();
    server.put(NODE, without_condition);
    let add: fn(&mut Value) = |node| node["metadata"]["labels"]["example.com/new"] = json!("1");
    server.trouble("PATCH /api/v1/nodes/a", InjectedFailure::Meanwhile(add));
    own.clean_up_node(false).await.unwrap().unwrap();
    let mut expected = node();
    add(&mut expected);
    assert_eq!(without_version(server.object(NODE)), expected);
}

#[tokio::test]
async fn cleanup_without_a_node_does_nothing() {
    let (server, own) = with_node().await;
    server.remove(NODE);
    assert_eq!(own.clean_up_node(false).await.unwrap(), None);
}

#[tokio::test]
async fn cleanup_deletes_only_a_machine_config_node_that_machinist_created() {
    let writer = |manager: &str, subresource: &str| json!({"manager": manager, "operation": "Apply", "subresource": subresource});
    let cases = [
        (
            vec![writer("machinist", ""), writer("machinist", "status")],
            true,
        ),
        (
            vec![
                writer("machine-config-controller", ""),
                writer("machinist", ""),
            ],
            false,
        ),
        (vec![writer("machinist", "status")], false),
        (vec![], false),
    ];
    for (writers, ours) in cases {
        let (server, _) = with_node().await;
        let cluster = server.cluster().await;
        let object = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigNode",
            "metadata": {"name": "a", "uid": "it", "managedFields": writers},
        });
        server.put(OBJECT, object);
        let remove = async |look| {
            machine_config_node::remove(&cluster, "a", look)
                .await
                .unwrap()
        };
        assert_eq!(remove(true).await, ours);
        assert!(!server.object(OBJECT).is_null());
        assert_eq!(remove(false).await, ours);
        assert_eq!(server.object(OBJECT).is_null(), ours);
        if ours {
            let sent = server.requests_starting("DELETE ").remove(0).body;
            assert_eq!(sent["preconditions"]["uid"], "it");
            assert!(!remove(false).await, "the same again");
        }
    }
    let (server, _) = with_node().await;
    server.trouble(
        &format!("GET {OBJECT}"),
        InjectedFailure::Code(403, "Forbidden"),
    );
    let cluster = server.cluster().await;
    assert!(
        !machine_config_node::remove(&cluster, "a", false)
            .await
            .unwrap()
    );
}
