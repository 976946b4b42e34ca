//! The command `release-grant`.

use machinist_pool::Action;
use serde_json::{Value, json};

use crate::{
    cluster::server::{InjectedFailure, Server},
    fleet::{
        cluster::{NEW, ago},
        out,
        pool_changes::{failed, succeeded},
        pool_world::{
            annotate, annotation, decision, grant, machinist, node, node_path, pool, pool_path,
            record, rollout, world,
        },
    },
};

/// A control plane of two nodes, of which the pool lists a grant for the second, which is gone.
async fn without_master() -> Server {
    let server = world().await;
    server.put(&node_path("m1"), node("m1", "master", NEW));
    server.put(&pool_path("master"), pool("master", NEW));
    rollout(&server, "master", |_| {});
    let mut held = grant("g7", "master", "m2");
    held.acknowledged = true;
    record(&server, "master", &[held]);
    server
}

/// The IDs of the grants that the controller would free now.
async fn freed(server: &Server) -> Vec<String> {
    let actions = decision(server).await.actions;
    let writes = actions.into_iter().filter_map(|action| match action {
        Action::WritePool(write) => Some(write.freed),
        _ => None,
    });
    writes.flatten().map(|(grant, _)| grant.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn release_grant_frees_the_slot_of_a_control_plane_node_that_is_gone() {
    let server = without_master().await;
    let path = pool_path("master");
    annotate(&server, &path, "machinist.dev/released-grants", "g1, g2");
    assert_eq!(freed(&server).await, Vec::<String>::new());
    let writes = server.writes().len();
    let output = machinist(&server, &["release-grant", "m2"]).await;
    succeeded(
        &output,
        "machineconfigpool/master released grant g7 of node m2",
    );
    assert_eq!(
        annotation(&server, &path, "machinist.dev/released-grants"),
        "g1,g2,g7"
    );
    assert_eq!(freed(&server).await, ["g7"]);
    let output = machinist(&server, &["release-grant", "m2"]).await;
    succeeded(
        &output,
        "machineconfigpool/master grant g7 of node m2 was released before",
    );
    assert_eq!(server.writes().len(), writes + 1);
    failed(
        &machinist(&server, &["release-grant", "m1"]).await,
        &["no pool lists a grant of node m1"],
    );
    let output = machinist(&server, &["release-grant", "m9"]).await;
    failed(
        &output,
        &["no pool lists a grant of node m9; the Node does not exist"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn release_grant_leaves_a_grant_to_an_agent_that_reports() {
    let server = world().await;
    let held = grant("g1", "worker", "w2");
    record(&server, "worker", std::slice::from_ref(&held));
    annotate(
        &server,
        &node_path("w2"),
        "machinist.dev/grant",
        &held.to_annotation(),
    );
    annotate(
        &server,
        &node_path("w2"),
        "machinist.dev/grant-acknowledged",
        "g1",
    );
    let writes = server.writes().len();
    let output = machinist(&server, &["release-grant", "w2"]).await;
    failed(
        &output,
        &[
            "grant g1 of node w2 is acknowledged, and its agent reported 2m",
            "--force",
        ],
    );
    assert_eq!(server.writes().len(), writes);
    let output = machinist(&server, &["release-grant", "w2", "--force"]).await;
    assert!(
        out(&output).contains("released grant g1 of node w2; the Node still has it"),
        "{output:?}"
    );
    assert_eq!(freed(&server).await, ["g1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn release_grant_frees_the_slot_of_an_uninstalled_or_silent_agent() {
    let server = world().await;
    let grants = [grant("g1", "worker", "w2"), grant("g2", "worker", "w3")];
    record(&server, "worker", &grants);
    // `uninstall` removes the agent's conditions.
    server.edit(&node_path("w2"), |node| {
        node["status"]["conditions"].as_array_mut().unwrap().pop();
    });
    server.edit(&node_path("w3"), |node| {
        node["status"]["conditions"][1]["lastHeartbeatTime"] = json!(ago(0, 15));
    });
    let output = machinist(&server, &["release-grant", "node/w2"]).await;
    succeeded(
        &output,
        "machineconfigpool/worker released grant g1 of node w2",
    );
    let other = |pool: &mut Value| {
        pool["metadata"]["annotations"]["machinist.dev/released-grants"] = json!("g1,g9");
    };
    server.trouble("PATCH", InjectedFailure::Meanwhile(other));
    let output = machinist(&server, &["release-grant", "w3"]).await;
    succeeded(
        &output,
        "machineconfigpool/worker released grant g2 of node w3",
    );
    let path = pool_path("worker");
    assert_eq!(
        annotation(&server, &path, "machinist.dev/released-grants"),
        "g1,g9,g2"
    );
    annotate(&server, &path, "machinist.dev/grants", "{");
    let output = machinist(&server, &["release-grant", "w3"]).await;
    failed(
        &output,
        &["annotation machinist.dev/grants of MachineConfigPool worker cannot be parsed"],
    );
}
