use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};

use super::*;

fn now() -> Timestamp {
    "2026-11-27T12:00:00Z".parse().unwrap()
}

fn budget(name: &str, app: &str, allowed: i32) -> PodDisruptionBudget {
    let object = json!({
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}},
        "status": {
            "disruptionsAllowed": allowed, "currentHealthy": 1 + allowed,
            "desiredHealthy": 1, "expectedPods": 2,
        },
    });
    serde_json::from_value(object).unwrap()
}

fn pod(app: &str, node: &str, owner: &str) -> BoundPod {
    let object: Value = json!({
        "metadata": {
            "namespace": "shop", "name": format!("{app}-0"), "labels": {"app": app},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": owner, "name": app, "uid": "1", "controller": true},
            ],
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let object: k8s_openapi::api::core::v1::Pod = serde_json::from_value(object).unwrap();
    BoundPod {
        node: node.to_owned(),
        pod: Pod::from(&object),
    }
}

fn blocked(pods: &[BoundPod], budgets: &[PodDisruptionBudget]) -> BlockedNodes {
    let budgets: Vec<_> = budgets.iter().map(DisruptionBudget::from).collect();
    let mut nodes = BlockedNodes::new();
    add_blocked(&mut nodes, pods, &budgets, now());
    nodes
}

#[test]
fn a_node_is_blocked_by_pods_that_a_drain_evicts_and_a_budget_keeps() {
    let web = "PodDisruptionBudget shop/web (minAvailable 1): 0 disruptions allowed, 1 of 2 pods \
        healthy, 1 required";
    let pods = [
        pod("web", "a", "ReplicaSet"),
        pod("web", "b", "DaemonSet"),
        pod("db", "c", "StatefulSet"),
    ];
    let budgets = [budget("web", "web", 0), budget("db", "db", 1)];
    let expected = BTreeMap::from([("a".to_owned(), BTreeSet::from([web.to_owned()]))]);
    assert_eq!(blocked(&pods, &budgets), expected);
}

#[test]
fn a_pod_of_two_budgets_blocks_and_both_are_named() {
    let budgets = [budget("one", "web", 0), budget("two", "web", 1)];
    let found = blocked(&[pod("web", "a", "ReplicaSet")], &budgets);
    let blocker = "pod shop/web-0 is selected by several PodDisruptionBudgets: one, two";
    assert_eq!(found["a"], BTreeSet::from([blocker.to_owned()]));
}

#[test]
fn only_a_change_of_a_budget_that_allows_no_disruption_makes_a_read_stale() {
    let mut blockers = EvictionBlockers::default();
    let report = |budget: Option<PodDisruptionBudget>| ReportedChanges {
        listed: None,
        changes: BTreeMap::from([("shop/web".to_owned(), budget.map(WatchedBudget::from))]),
    };
    let mut is_stale = |budget| {
        blockers.is_stale = false;
        blockers.take_budgets(report(budget));
        blockers.is_stale
    };
    assert!(!is_stale(Some(budget("web", "web", 2))));
    assert!(!is_stale(Some(budget("web", "web", 1))));
    assert!(is_stale(Some(budget("web", "web", 0))));
    assert!(!is_stale(Some(budget("web", "web", 0))));
    assert!(is_stale(Some(budget("web", "web", 1))));
    assert!(!is_stale(None));
}

#[test]
fn the_selector_of_a_request_selects_the_same_pods_as_the_budget() {
    let selector = |spec: Value| {
        let object = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec});
        let object: PodDisruptionBudget = serde_json::from_value(object).unwrap();
        WatchedBudget::from(object).selector
    };
    let several = json!({"selector": {
        "matchLabels": {"app": "web"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["a", "b"]},
            {"key": "old", "operator": "DoesNotExist"},
        ],
    }});
    let text = selector(several).unwrap();
    for part in ["app=web", "tier in (a,b)", "!old"] {
        assert!(
            text.split(',').any(|it| it == part) || text.contains(part),
            "{text}"
        );
    }
    assert_eq!(selector(json!({"selector": {}})), Some(String::new()));
    assert_eq!(selector(json!({})), None);
}
