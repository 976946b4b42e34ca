//! Nodes whose drain a PodDisruptionBudget would block.

use std::time::Duration;

use machinist_kube_api::keys::annotation;
use machinist_pool::GrantOutcome;
use serde_json::{Value, json};

use super::{
    harness::Lab,
    objects::{BUDGETS, WORKER, node_path},
};

const PODS: &str = "/api/v1/namespaces/shop/pods";
const BUDGET: &str = "/apis/policy/v1/poddisruptionbudgets/web";

fn budget(allowed: i32) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
        "status": {
            "disruptionsAllowed": allowed, "currentHealthy": 2 + allowed,
            "desiredHealthy": 2, "expectedPods": 2,
        },
    })
}

/// Runs a pod of the budget on each node.
fn run_pods(lab: &Lab, nodes: &[&str]) {
    for node in nodes {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "namespace": "shop", "name": format!("web-{node}"), "labels": {"app": "web"},
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "1",
                    "controller": true,
                }],
            },
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        lab.server.put(&format!("{PODS}/web-{node}"), pod);
    }
}

async fn lab(nodes: &[&str], blocked: &[&str]) -> Lab {
    let lab = Lab::with_nodes(nodes).await;
    lab.server.serve_collections(&[BUDGETS, PODS]);
    lab.server.put(BUDGET, budget(0));
    run_pods(&lab, blocked);
    lab
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_pods_a_budget_keeps_is_granted_last() {
    let lab = lab(&["a", "b"], &["a"]).await;
    let _running = lab.start("one").await;
    lab.until("a placed grant", |lab| !lab.granted_nodes().is_empty())
        .await;
    assert_eq!(lab.granted_nodes(), ["b"]);
    let reads = lab.server.requests_starting(&format!("GET {PODS}"));
    assert!(
        reads
            .iter()
            .all(|it| it.query.contains("labelSelector=app%3Dweb")),
        "{reads:#?}"
    );
    assert_eq!(reads.len(), 1, "pods are read only before a grant");

    lab.acknowledge("b");
    lab.end("b", GrantOutcome::Done, "");
    lab.until("the last node", |lab| lab.granted_nodes() == ["a"])
        .await;
    let reads = lab.server.requests_starting(&format!("GET {PODS}"));
    assert_eq!(reads.len(), 1, "the budget has not changed");
}

#[tokio::test(start_paused = true)]
async fn the_rollout_stops_when_all_nodes_are_blocked_and_goes_on_with_the_budget() {
    let lab = lab(&["a", "b"], &["a", "b"]).await;
    lab.server.edit(WORKER, |pool| {
        pool["metadata"]["annotations"]["machinist.dev/step-aside-after"] = json!("1m");
    });
    let _running = lab.start("one").await;
    for node in ["a", "b"] {
        lab.until("a placed grant", |lab| lab.granted_nodes() == [node])
            .await;
        lab.acknowledge(node);
        lab.server.edit(&node_path(node), |node| {
            let annotations = &mut node["metadata"]["annotations"];
            annotations[annotation::BLOCKED_BY] = json!("shop/web (DrainBlockedByBudget)");
        });
        let is_asked = |lab: &Lab| {
            let node = lab.server.object(&node_path(node));
            node["metadata"]["annotations"][annotation::CANCEL].is_string()
        };
        lab.until("the request to cancel", is_asked).await;
        lab.end(node, GrantOutcome::Cancelled, "");
        lab.server.edit(&node_path(node), |node| {
            let annotations = node["metadata"]["annotations"].as_object_mut().unwrap();
            annotations.remove(annotation::BLOCKED_BY);
            annotations.remove(annotation::CANCEL);
            annotations["machineconfiguration.openshift.io/state"] = json!("Done");
        });
    }
    let message = |lab: &Lab| lab.condition("RolloutHeld")["message"].to_string();
    lab.until("the stop", |lab| {
        lab.is("RolloutHeld", "AllBlocked") && message(lab).contains("(a, b)")
    })
    .await;
    let message = message(&lab);
    assert_eq!(
        message.matches("PodDisruptionBudget shop/web").count(),
        1,
        "{message}"
    );
    lab.pass(Duration::from_secs(660)).await;
    assert!(
        lab.granted_nodes().is_empty(),
        "no node is drained for nothing"
    );

    let began = lab.now();
    lab.server.put(BUDGET, budget(1));
    lab.until("a placed grant", |lab| lab.granted_nodes().len() == 1)
        .await;
    let waited = lab.now().duration_since(began).as_secs();
    assert!(waited <= 10, "{waited} s");
    assert_eq!(
        lab.server.object(&node_path("a"))["metadata"]["annotations"]["machineconfiguration.openshift.io/desiredConfig"],
        json!(lab.target())
    );
}

#[tokio::test(start_paused = true)]
async fn a_role_without_pods_leaves_the_ordinary_order() {
    let lab = lab(&["a", "b"], &["a"]).await;
    let refused = crate::cluster::server::InjectedFailure::Code(403, "Forbidden");
    lab.server.trouble(&format!("GET {PODS}"), refused);
    let _running = lab.start("one").await;
    lab.until("a placed grant", |lab| !lab.granted_nodes().is_empty())
        .await;
    assert_eq!(lab.granted_nodes(), ["a"]);
}
