//! Nodes that an operator leaves out of a rollout.

use std::time::Duration;

use machinist_kube_api::keys::{annotation, pool_annotation};
use machinist_pool::GrantOutcome;
use serde_json::{Value, json};

use super::{
    harness::Lab,
    objects::{WORKER, node_path},
};

fn skip(lab: &Lab, node: &str, is_skipped: bool) {
    let target = lab.target();
    lab.server.edit(&node_path(node), |node| {
        let annotations = node["metadata"]["annotations"].as_object_mut().unwrap();
        match is_skipped {
            true => annotations.insert(annotation::SKIP_ROLLOUT.to_owned(), json!(target)),
            false => annotations.remove(annotation::SKIP_ROLLOUT),
        };
    });
}

fn newest_rollout(lab: &Lab) -> Value {
    let pool = lab.server.object(WORKER);
    let text = pool["metadata"]["annotations"][pool_annotation::HISTORY].as_str();
    let history: Value = serde_json::from_str(text.unwrap()).unwrap();
    history["rollouts"][0].clone()
}

async fn update(lab: &Lab, node: &str) {
    lab.until("the grant", |lab| lab.placed(node).is_some())
        .await;
    lab.acknowledge(node);
    lab.end(node, GrantOutcome::Done, "");
}

#[tokio::test(start_paused = true)]
async fn a_rollout_is_completed_without_a_skipped_node_and_begins_again_for_it() {
    let lab = Lab::with_nodes(&["a", "b"]).await;
    let _running = lab.start("one").await;
    lab.until("a placed grant", |lab| lab.granted_nodes().len() == 1)
        .await;
    let first = lab.granted_nodes().remove(0);
    let other = if first == "a" { "b" } else { "a" };
    skip(&lab, other, true);
    update(&lab, &first).await;
    lab.until("the hold", |lab| lab.is("RolloutHeld", "NodesSkipped"))
        .await;
    let target = lab.target();
    let note = format!("all nodes but 1 skipped node ({other}) are on {target}");
    lab.until("the event", |lab| lab.has_event("RolloutCompleted", &note))
        .await;
    for kind in ["Updated", "Updating"] {
        let condition = lab.condition(kind);
        assert_eq!(
            (&condition["status"], &condition["reason"]),
            (&json!("False"), &json!("NodesSkipped"))
        );
    }
    let status = lab.server.object(WORKER)["status"].clone();
    assert_eq!(
        (&status["machineCount"], &status["updatedMachineCount"]),
        (&json!(2), &json!(1))
    );
    let record = newest_rollout(&lab);
    assert_eq!(record["result"], "Completed");
    assert_eq!(record["skipped"], 1);
    assert_eq!(record["skippedNodes"], json!([other]));

    skip(&lab, other, false);
    update(&lab, other).await;
    lab.until("the end", |lab| lab.is("Updated", "AllNodesUpdated"))
        .await;
    let note = format!("all nodes are on {target}");
    lab.until("the event", |lab| lab.has_event("RolloutCompleted", &note))
        .await;
    let record = newest_rollout(&lab);
    assert_eq!(
        (&record["result"], &record["skipped"]),
        (&json!("Completed"), &Value::Null)
    );
}

#[tokio::test(start_paused = true)]
async fn a_grant_of_a_skipped_node_is_withdrawn_unless_it_was_acknowledged() {
    for is_acknowledged in [false, true] {
        let lab = Lab::with_nodes(&["a"]).await;
        let _running = lab.start("one").await;
        lab.until("a placed grant", |lab| lab.placed("a").is_some())
            .await;
        if is_acknowledged {
            lab.acknowledge("a");
        }
        skip(&lab, "a", true);
        lab.pass(Duration::from_secs(60)).await;
        assert_eq!(lab.placed("a").is_some(), is_acknowledged);
        assert_eq!(lab.grants().len(), usize::from(is_acknowledged));
    }
}
