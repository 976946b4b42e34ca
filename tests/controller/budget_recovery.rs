//! Grants that wait until the PodDisruptionBudgets of drained pods have recovered.

use std::time::Duration;

use machinist_kube_api::keys::annotation;
use machinist_pool::GrantOutcome;
use serde_json::{Value, json};

use super::{
    harness::Lab,
    objects::{BUDGETS, WORKER, node_path},
};

const PODS: &str = "/api/v1/pods";
const PODS_OF_SHOP: &str = "/api/v1/namespaces/shop/pods";
const BUDGET: &str = "/apis/policy/v1/poddisruptionbudgets/web";

fn budget(healthy: i32) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
        "status": {
            "disruptionsAllowed": healthy - 2, "currentHealthy": healthy,
            "desiredHealthy": 2, "expectedPods": 3,
        },
    })
}

/// Nodes `a` and `b`; a pod of the budget runs on `a`.
async fn lab() -> Lab {
    let lab = Lab::with_nodes(&["a", "b"]).await;
    lab.server.serve_collections(&[BUDGETS, PODS, PODS_OF_SHOP]);
    lab.server.put(BUDGET, budget(3));
    let pod = |name: &str, app: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "namespace": "shop", "name": name, "labels": {"app": app},
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": "1",
                    "controller": true,
                }],
            },
            "spec": {"nodeName": "a", "containers": []},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        })
    };
    lab.server.put(&format!("{PODS}/web"), pod("web", "web"));
    lab.server
        .put(&format!("{PODS}/other"), pod("other", "other"));
    lab
}

fn set_timeout(lab: &Lab, timeout: &str) {
    lab.server.edit(WORKER, |pool| {
        pool["metadata"]["annotations"]["machinist.dev/budget-recovery-timeout"] = json!(timeout);
    });
}

/// The update of `a` ends, and the evicted pod is not back.
async fn drain_a(lab: &Lab) {
    lab.until("the first grant", |lab| lab.granted_nodes() == ["a"])
        .await;
    lab.acknowledge("a");
    lab.server.put(BUDGET, budget(2));
    lab.end("a", GrantOutcome::Done, "");
}

#[tokio::test(start_paused = true)]
async fn the_next_grant_waits_for_the_budgets_of_the_last_drain() {
    let lab = lab().await;
    let running = lab.start("one").await;
    drain_a(&lab).await;
    lab.until("the gate", |lab| lab.is("RolloutHeld", "GateClosed"))
        .await;
    let message = lab.condition("RolloutHeld")["message"].to_string();
    assert!(
        message.contains(
            "PodDisruptionBudget shop/web has not recovered since the drain of a: \
             2 of 3 pods healthy, 2 required"
        ),
        "{message}"
    );
    // Another replica knows the budgets from the Node.
    let node = lab.server.object(&node_path("a"));
    let recorded = &node["metadata"]["annotations"][annotation::GRANT_BUDGETS];
    let recorded: Value = serde_json::from_str(recorded.as_str().unwrap()).unwrap();
    assert_eq!(recorded["budgets"], json!(["shop/web"]));
    drop(running);
    let _running = lab.start("two").await;
    lab.pass(Duration::from_secs(60)).await;
    assert_eq!(lab.granted_nodes(), [""; 0]);

    lab.server.put(BUDGET, budget(3));
    lab.until("the next grant", |lab| lab.granted_nodes() == ["b"])
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_rollout_goes_on_after_the_timeout_and_reports_the_budget() {
    let lab = lab().await;
    let _running = lab.start("one").await;
    drain_a(&lab).await;
    lab.pass(Duration::from_secs(580)).await;
    assert_eq!(lab.granted_nodes(), [""; 0]);
    assert!(!lab.has_event("BudgetNotRecovered", ""));
    lab.pass(Duration::from_secs(25)).await;
    lab.until("the next grant", |lab| lab.granted_nodes() == ["b"])
        .await;
    let reported = |lab: &Lab| lab.has_event("BudgetNotRecovered", "shop/web");
    lab.until("the event", reported).await;
    lab.pass(Duration::from_secs(120)).await;
    let events = lab.events();
    let count = events
        .iter()
        .filter(|(reason, _)| reason == "BudgetNotRecovered");
    assert_eq!(count.count(), 1, "{events:#?}");
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_a_pool_may_be_never_or_zero() {
    let lab = lab().await;
    set_timeout(&lab, "never");
    let _running = lab.start("one").await;
    drain_a(&lab).await;
    // Less than the time after which the agent counts as silent.
    lab.pass(Duration::from_secs(800)).await;
    assert_eq!(lab.granted_nodes(), [""; 0]);
    set_timeout(&lab, "0s");
    lab.until("the next grant", |lab| lab.granted_nodes() == ["b"])
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_update_without_a_drain_touches_no_budget() {
    let lab = lab().await;
    let _running = lab.start("one").await;
    lab.until("the first grant", |lab| lab.granted_nodes() == ["a"])
        .await;
    lab.acknowledge("a");
    lab.server.put(BUDGET, budget(2));
    lab.end_after("a", GrantOutcome::Done, "", &[("Staging", 1)]);
    lab.until("the next grant", |lab| lab.granted_nodes() == ["b"])
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_budget_holds_nothing_back() {
    let lab = lab().await;
    set_timeout(&lab, "never");
    let _running = lab.start("one").await;
    drain_a(&lab).await;
    lab.until("the gate", |lab| lab.is("RolloutHeld", "GateClosed"))
        .await;
    lab.server.remove(BUDGET);
    lab.until("the next grant", |lab| lab.granted_nodes() == ["b"])
        .await;
}
