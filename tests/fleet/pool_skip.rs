//! The command `skip`.

use serde_json::{Value, json};

use crate::{
    cluster::server::{InjectedFailure, Server},
    fleet::{
        cluster::{NEW, OLD},
        err, json_of, out,
        pool_changes::{failed, succeeded},
        pool_world::{
            OLDER, annotate, annotation, decision, grant, holds, machinist, node_path, pool_path,
            record, rollout, world,
        },
    },
};

const SKIP: &str = "machinist.dev/skip-rollout";

/// The nodes that the controller would grant next.
async fn next(server: &Server) -> Vec<String> {
    decision(server).await.pools[0].next.clone()
}

fn skipped(server: &Server, node: &str) -> Value {
    annotation(server, &node_path(node), SKIP)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skipped_node_keeps_its_config_and_the_others_are_updated() {
    let server = world().await;
    rollout(&server, "worker", |_| {});
    assert_eq!(next(&server).await, ["w2", "w3"]);
    let before = server.writes().len();
    let output = machinist(&server, &["skip", "w2"]).await;
    succeeded(
        &output,
        &format!(
            "node/w2 skipped: it keeps {OLD}, and pool worker rolls out {NEW} to its other nodes; ends with machinist \
             skip w2 --undo, or with the pool's next config"
        ),
    );
    assert_eq!(skipped(&server, "w2"), NEW);
    assert_eq!(next(&server).await, ["w3"]);
    let writes = server.writes().split_off(before);
    assert_eq!(writes.len(), 1);
    assert_eq!(writes[0].body[0]["path"], "/metadata/uid");
    assert_eq!(writes[0].body[1]["path"], "/metadata/resourceVersion");
    let output = machinist(&server, &["skip", "node/w2"]).await;
    assert!(
        out(&output).starts_with("node/w2 already skipped"),
        "{output:?}"
    );
    assert_eq!(server.writes().len(), before + 1);
    server.edit(&pool_path("worker"), |pool| {
        pool["spec"]["configuration"]["name"] = json!(OLDER);
    });
    assert!(next(&server).await.contains(&"w2".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn skip_undo_brings_the_node_back_into_the_rollout() {
    let server = world().await;
    rollout(&server, "worker", |_| {});
    machinist(&server, &["skip", "w2"]).await;
    machinist(&server, &["skip", "w3"]).await;
    assert_eq!(holds(&server, "worker").await, ["NodesSkipped"]);
    succeeded(
        &machinist(&server, &["skip", "w2", "--undo"]).await,
        &format!("node/w2 no longer skipped: it updates to {NEW} when its turn comes"),
    );
    assert_eq!(skipped(&server, "w2"), Value::Null);
    assert_eq!(next(&server).await, ["w2"]);
    let writes = server.writes().len();
    succeeded(
        &machinist(&server, &["skip", "w2", "--undo"]).await,
        "node/w2 was not skipped",
    );
    assert_eq!(server.writes().len(), writes);
    annotate(&server, &node_path("w3"), SKIP, OLDER);
    let output = machinist(&server, &["skip", "w3", "--undo"]).await;
    assert!(
        out(&output).contains(&format!("no longer marked to skip {OLDER}")),
        "{output:?}"
    );
    assert_eq!(skipped(&server, "w3"), Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_another_client_changes_is_read_and_skipped_again() {
    let server = world().await;
    let other = |node: &mut Value| node["metadata"]["annotations"]["example.com/a"] = json!("b");
    server.trouble("PATCH", InjectedFailure::Meanwhile(other));
    let output = machinist(&server, &["skip", "w2"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(skipped(&server, "w2"), NEW);
    assert_eq!(
        annotation(&server, &node_path("w2"), "example.com/a"),
        json!("b")
    );
    assert_eq!(server.writes().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_skip_changes_nothing() {
    let server = world().await;
    let call = ["skip", "w2", "--dry-run"];
    let output = machinist(&server, &call).await;
    assert!(out(&output).ends_with(" (dry run)\n"), "{output:?}");
    assert_eq!(server.writes().len(), 0);
    let call = ["skip", "w2", "--dry-run=server", "-o", "json"];
    let document = json_of(&machinist(&server, &call).await);
    assert_eq!(
        (&document["kind"], &document["dryRun"], &document["node"]),
        (&json!("Skip"), &json!("server"), &json!("w2"))
    );
    assert_eq!(
        (&document["pool"], &document["target"]),
        (&json!("worker"), &json!(NEW))
    );
    assert_eq!(
        (&document["changed"], &document["grant"]),
        (&json!(true), &Value::Null)
    );
    assert_eq!(
        (server.writes().len(), skipped(&server, "w2")),
        (1, Value::Null)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn skip_of_a_node_with_a_grant_names_what_becomes_of_the_grant() {
    let server = world().await;
    let held = grant("g1", "worker", "w2");
    record(&server, "worker", std::slice::from_ref(&held));
    let path = node_path("w2");
    annotate(&server, &path, "machinist.dev/grant", &held.to_annotation());
    let output = machinist(&server, &["skip", "w2", "--dry-run"]).await;
    let begins = "it has grant g1 (not acknowledged), which the controller withdraws, unless the agent acknowledges it before";
    assert!(out(&output).contains(begins), "{output:?}");
    annotate(&server, &path, "machinist.dev/grant-acknowledged", "g1");
    let document = json_of(&machinist(&server, &["skip", "w2", "-o", "json"]).await);
    let message = document["message"].as_str().unwrap();
    let continues =
        "it has grant g1 (acknowledged), which is not withdrawn: the agent completes this update";
    assert!(message.contains(continues), "{message}");
    assert_eq!(document["grant"]["state"], "Acknowledged");
    assert_eq!(skipped(&server, "w2"), NEW);
}

#[tokio::test(flavor = "multi_thread")]
async fn skip_refuses_nodes_that_no_rollout_includes() {
    let server = world().await;
    succeeded(
        &machinist(&server, &["skip", "w1"]).await,
        &format!("node/w1 not skipped: it is on {NEW} already"),
    );
    failed(
        &machinist(&server, &["skip", "w9"]).await,
        &["cannot get Node w9"],
    );
    server.edit(&node_path("w2"), |node| {
        node["metadata"]["labels"] = json!({});
    });
    failed(
        &machinist(&server, &["skip", "w2"]).await,
        &["node w2 is in no MachineConfigPool"],
    );
    server.edit(&pool_path("worker"), |pool| {
        pool["spec"]["configuration"]["name"] = json!("");
    });
    failed(
        &machinist(&server, &["skip", "w3"]).await,
        &["MachineConfigPool worker has no rendered config yet"],
    );
    assert_eq!(server.writes().len(), 0);
}
