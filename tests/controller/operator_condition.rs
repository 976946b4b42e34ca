//! The condition `Upgradeable` of the OperatorCondition that OLM reads.

use std::time::Duration;

use machinist_kube_api::keys::condition;
use machinist_pool::GrantOutcome;
use serde_json::{Value, json};

use super::{
    harness::{Lab, Running},
    objects::{WORKER, node_path},
};
use crate::cluster::server::InjectedFailure;

const NAME: &str = "machinist.v0.1.0";
const OBJECT: &str =
    "/apis/operators.coreos.com/v2/namespaces/machinist-system/operatorconditions/machinist.v0.1.0";

/// The object as OLM creates it.
fn put_object(lab: &Lab) {
    lab.server.put(
        OBJECT,
        json!({
            "apiVersion": "operators.coreos.com/v2", "kind": "OperatorCondition",
            "metadata": {"name": NAME, "namespace": "machinist-system", "uid": "of-olm"},
            "spec": {"serviceAccounts": ["machinist-controller"], "deployments": ["machinist-controller"]},
        }),
    );
}

fn upgradeable(lab: &Lab) -> Value {
    let object = lab.server.object(OBJECT);
    let conditions = object["spec"]["conditions"].as_array().cloned();
    let mut all = conditions.unwrap_or_default().into_iter();
    all.find(|it| it["type"] == "Upgradeable")
        .unwrap_or_default()
}

fn has_status(lab: &Lab, status: &str) -> bool {
    upgradeable(lab)["status"] == status
}

fn requests(lab: &Lab, verb: &str) -> usize {
    lab.server
        .requests_starting(&format!("{verb} {OBJECT}"))
        .len()
}

async fn until_ready(lab: &Lab, running: &Running) {
    lab.until("readiness", |_| running.monitor.ready().is_ok())
        .await;
}

fn set_paused(lab: &Lab, is_paused: bool) {
    lab.server
        .edit(WORKER, |pool| pool["spec"]["paused"] = json!(is_paused));
}

#[tokio::test(start_paused = true)]
async fn a_condition_exists_before_a_process_is_ready_and_is_not_replaced_by_the_default() {
    let lab = Lab::with_nodes(&["a"]).await;
    set_paused(&lab, true);
    put_object(&lab);
    let leader = lab.start("one").await;
    until_ready(&lab, &leader).await;
    assert_eq!(upgradeable(&lab), Value::Null, "OLM did not install it");
    assert_eq!(requests(&lab, "GET"), 0);

    // Another process, which OLM installed, is not the leader.
    for _ in 0..20 {
        let failure = InjectedFailure::Code(503, "ServiceUnavailable");
        lab.server.trouble(&format!("GET {OBJECT}"), failure);
    }
    let other = lab.start_with("two", Some(NAME)).await;
    lab.pass(Duration::from_secs(20)).await;
    let waits = other.monitor.ready().unwrap_err();
    assert_eq!(
        waits,
        "OperatorCondition machinist-system/machinist.v0.1.0 has no condition Upgradeable yet"
    );
    lab.server.stop_failing();
    until_ready(&lab, &other).await;
    let found = upgradeable(&lab);
    assert_eq!(
        (&found["status"], &found["reason"]),
        (&json!("False"), &json!("NotYetKnown"))
    );
    let since = found["lastTransitionTime"].as_str().unwrap();
    assert!(since.starts_with("2026-11-27T00:") && since.ends_with('Z'));

    // A third one finds it.
    let third = lab.start_with("three", Some(NAME)).await;
    until_ready(&lab, &third).await;
    assert_eq!(requests(&lab, "PATCH"), 1);
    assert_eq!(
        lab.server.object(OBJECT)["spec"]["deployments"],
        json!(["machinist-controller"])
    );
}

#[tokio::test(start_paused = true)]
async fn it_is_false_with_the_pools_while_a_node_updates_and_true_otherwise() {
    let lab = Lab::with_nodes(&["a", "b"]).await;
    set_paused(&lab, true);
    put_object(&lab);
    let _running = lab.start_with("one", Some(NAME)).await;
    lab.until("no update", |lab| has_status(lab, "True")).await;
    assert_eq!(upgradeable(&lab)["reason"], "NoNodeUpdates");
    let before = requests(&lab, "PATCH");

    set_paused(&lab, false);
    lab.until("a placed grant", |lab| !lab.granted_nodes().is_empty())
        .await;
    lab.until("an update", |lab| has_status(lab, "False")).await;
    let found = upgradeable(&lab);
    assert_eq!(found["reason"], "NodesUpdate");
    let message = "nodes of these pools are in the middle of an update: worker";
    assert_eq!(found["message"], message);
    let first = lab.granted_nodes().remove(0);
    lab.acknowledge(&first);
    lab.pass(Duration::from_secs(120)).await;
    assert_eq!(
        requests(&lab, "PATCH"),
        before + 1,
        "it is written on change"
    );

    set_paused(&lab, true);
    lab.end(&first, GrantOutcome::Done, "");
    lab.until("no update", |lab| has_status(lab, "True")).await;

    // A node that is cordoned for an update without a grant.
    let maintenance = |lab: &Lab, status: &str| {
        lab.server.edit(&node_path("b"), |node| {
            let conditions = node["status"]["conditions"].as_array_mut().unwrap();
            conditions.retain(|it| it["type"] != condition::MAINTENANCE);
            conditions.push(json!({"type": condition::MAINTENANCE, "status": status}));
        });
    };
    maintenance(&lab, "True");
    lab.until("an update", |lab| has_status(lab, "False")).await;
    maintenance(&lab, "False");
    lab.until("no update", |lab| has_status(lab, "True")).await;
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_decided_again_and_keeps_what_the_other_client_wrote() {
    let lab = Lab::with_nodes(&["a"]).await;
    set_paused(&lab, true);
    put_object(&lab);
    let other = |object: &mut Value| {
        object["spec"]["conditions"] = json!([{"type": "Other", "status": "True"}]);
        object["spec"]["overrides"] = json!([{"type": "Upgradeable", "status": "True"}]);
    };
    lab.server.trouble(
        &format!("PATCH {OBJECT}"),
        InjectedFailure::Meanwhile(other),
    );
    let running = lab.start_with("one", Some(NAME)).await;
    lab.until("no update", |lab| has_status(lab, "True")).await;
    let spec = lab.server.object(OBJECT)["spec"].clone();
    assert_eq!(spec["conditions"][0]["type"], "Other");
    assert_eq!(spec["overrides"][0]["status"], "True");
    let refused = "api_requests_total{verb=\"patch\",resource=\"operatorconditions\",code=\"409\"}";
    assert!(running.metric(refused) >= Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn a_missing_or_forbidden_object_keeps_neither_the_process_nor_the_rollout() {
    for failure in [None, Some(InjectedFailure::Code(403, "Forbidden"))] {
        let lab = Lab::with_nodes(&["a"]).await;
        if let Some(failure) = failure {
            put_object(&lab);
            for _ in 0..50 {
                lab.server
                    .trouble(&format!("GET {OBJECT}"), failure.clone());
            }
        }
        let running = lab.start_with("one", Some(NAME)).await;
        until_ready(&lab, &running).await;
        lab.until("a placed grant", |lab| !lab.granted_nodes().is_empty())
            .await;
        lab.pass(Duration::from_secs(300)).await;
        let sent = requests(&lab, "GET");
        assert!((4..=8).contains(&sent), "{sent} requests in 5 min");
        assert_eq!(requests(&lab, "PATCH"), 0);
        lab.server.stop_failing();
        put_object(&lab);
        lab.pass(Duration::from_secs(61)).await;
        lab.until("the condition", |lab| !upgradeable(lab).is_null())
            .await;
    }
}
