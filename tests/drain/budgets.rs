//! Which budgets apply to a pod, and how the API server will answer an eviction.

use machinist_drain::{BudgetForecast, DisruptionBudget, prospect};
use serde_json::{Value, json};

use crate::drain::support::{Made, budget, from_api, made, merge};

/// A word for each prospect.
fn word(pod: &Made, budgets: &[DisruptionBudget]) -> &'static str {
    match prospect(&pod.pod(), budgets) {
        BudgetForecast::Free => "free",
        BudgetForecast::Allowed(_) => "allowed",
        BudgetForecast::Later(_) => "later",
        BudgetForecast::Never(_) => "never",
        BudgetForecast::Several(_) => "several",
    }
}

fn selecting(selector: Value) -> DisruptionBudget {
    let mut made = json!({"metadata": {"namespace": "shop", "name": "b"}, "spec": {}});
    merge(&mut made["spec"], json!({"selector": selector}));
    from_api(made)
}

#[test]
fn a_budget_that_never_allows_disruptions_is_detected_in_advance() {
    for (spec, counts, expected) in [
        (json!({"maxUnavailable": 0}), [0, 3, 3, 3], "never"),
        (json!({"maxUnavailable": "0%"}), [0, 3, 3, 3], "never"),
        (json!({"minAvailable": "100%"}), [0, 2, 3, 3], "never"),
        (json!({"minAvailable": 3}), [0, 3, 3, 3], "never"),
        (json!({"minAvailable": 5}), [0, 3, 5, 3], "never"),
        (json!({"minAvailable": 1}), [0, 1, 1, 1], "never"),
        (json!({"maxUnavailable": 1}), [0, 2, 2, 3], "later"),
        (json!({"maxUnavailable": 1}), [1, 3, 2, 3], "allowed"),
        // Nothing was counted, so the answer is not known.
        (json!({"maxUnavailable": 0}), [0, 0, 0, 0], "later"),
    ] {
        let message = word(&made("web"), &[budget("b", spec.clone(), counts)]);
        assert_eq!(message, expected, "{spec} {counts:?}");
    }
}

#[test]
fn a_budget_matches_pods_of_its_namespace_by_the_full_selector() {
    let pod = made("web").with(json!({"metadata": {"labels": {"app": "shop", "tier": "front"}}}));
    for (selector, counted) in [
        (json!({"matchLabels": {"app": "shop"}}), true),
        (
            json!({"matchLabels": {"app": "shop", "tier": "back"}}),
            false,
        ),
        (json!({}), true),
        (Value::Null, false),
        (expression("tier", "In", &["front", "back"]), true),
        (expression("tier", "In", &["back"]), false),
        (expression("tier", "NotIn", &["back"]), true),
        (expression("tier", "NotIn", &["front"]), false),
        (expression("zone", "NotIn", &["a"]), true),
        (expression("tier", "Exists", &[]), true),
        (expression("zone", "Exists", &[]), false),
        (expression("zone", "DoesNotExist", &[]), true),
        (expression("tier", "DoesNotExist", &[]), false),
        (expression("tier", "Like", &["front"]), false),
    ] {
        let budget = selecting(selector.clone());
        assert_eq!(budget.counts_pod(&pod.pod()), counted, "{selector}");
        let elsewhere = pod.clone().in_namespace("other").pod();
        assert!(!budget.counts_pod(&elsewhere), "{selector}");
    }
}

fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
}

#[test]
fn all_budgets_of_a_pod_are_reported() {
    let rule = || json!({"maxUnavailable": 1});
    let budgets = [
        budget("one", rule(), [1, 3, 2, 3]),
        budget("two", rule(), [1, 3, 2, 3]),
    ];
    let pod = made("web").pod();
    let BudgetForecast::Several(both) = prospect(&pod, &budgets) else {
        panic!("{:?}", prospect(&pod, &budgets));
    };
    let names: Vec<_> = both.iter().map(|budget| budget.name.as_str()).collect();
    assert_eq!(names, ["one", "two"]);
}

#[test]
fn an_unready_pod_is_evictable_by_policy_or_with_enough_healthy_pods() {
    let always = || json!({"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow"});
    let default = || json!({"maxUnavailable": 1});
    let named = || json!({"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "IfHealthyBudget"});
    let pod = made("web").unready();
    for (spec, counts, expected) in [
        (always(), [0, 0, 2, 3], "allowed"),
        (default(), [0, 1, 2, 3], "later"),
        (named(), [0, 1, 2, 3], "later"),
        (default(), [0, 2, 2, 3], "allowed"),
        // The budget requires no healthy pod: the rule for healthy pods applies.
        (default(), [0, 0, 0, 3], "later"),
    ] {
        let budget = budget("b", spec.clone(), counts);
        assert_eq!(
            word(&pod, std::slice::from_ref(&budget)),
            expected,
            "{spec} {counts:?}"
        );
        if expected == "allowed" {
            assert_eq!(
                word(&made("web"), &[budget]),
                "later",
                "{spec}: a ready pod"
            );
        }
    }
}

#[test]
fn pods_without_a_budget_are_evictable() {
    let never = [budget("b", json!({"maxUnavailable": 0}), [0, 3, 3, 3])];
    for pod in [
        made("web").finished("Succeeded"),
        made("web").finished("Failed"),
        made("web").finished("Pending"),
        made("web").deleting_by(crate::drain::support::at(30)),
        made("web").with(json!({"metadata": {"labels": {"app": "other"}}})),
    ] {
        assert_eq!(word(&pod, &never), "free");
    }
}

#[test]
fn a_budget_with_an_outdated_status_is_waited_for() {
    let stale = from_api(json!({
        "metadata": {"namespace": "shop", "name": "b", "generation": 2},
        "spec": {"selector": {}, "maxUnavailable": 0},
        "status": {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 3,
            "desiredHealthy": 3, "expectedPods": 3},
    }));
    assert_eq!(word(&made("web"), &[stale]), "later");
}
