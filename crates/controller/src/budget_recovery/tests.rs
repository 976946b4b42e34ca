use std::collections::BTreeMap;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use machinist_kube_api::{PoolView, keys::pool_annotation};
use machinist_pool::{DRAIN_PHASE, GrantEnd, GrantOutcome, UpdateTimes};
use serde_json::json;

use super::*;
use crate::{inbox::ReportedChanges, watched_budget::WatchedBudget};

fn now() -> Timestamp {
    "2026-11-27T12:00:00Z".parse().unwrap()
}

/// Budgets of three pods with so many healthy ones, of which two are required.
fn budgets(healthy: &[(&str, i32)]) -> EvictionBlockers {
    let budget = |(name, healthy): &(&str, i32)| {
        let object = json!({
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": name}}},
            "status": {
                "disruptionsAllowed": (healthy - 2).max(0), "currentHealthy": healthy,
                "desiredHealthy": 2, "expectedPods": 3,
            },
        });
        let object: PodDisruptionBudget = serde_json::from_value(object).unwrap();
        WatchedBudget::from(object)
    };
    let mut blockers = EvictionBlockers::default();
    blockers.take_budgets(ReportedChanges {
        listed: Some(healthy.iter().map(budget).collect()),
        changes: BTreeMap::default(),
    });
    blockers
}

/// A Node whose drain of these budgets ended `minutes` ago.
fn drained(name: &str, budgets: &[&str], minutes: i64) -> NodeView {
    let record = json!({"grant": format!("g-{name}"), "pool": "worker", "budgets": budgets});
    let phases = [(DRAIN_PHASE.to_owned(), 5)].into();
    let end = GrantEnd {
        id: format!("g-{name}"),
        outcome: GrantOutcome::Done,
        reason: String::new(),
        target: "new".to_owned(),
        time: now() - SignedDuration::from_mins(minutes),
        times: Some(UpdateTimes { phases, blocked: 0 }),
        rest: BTreeMap::new(),
    };
    let annotations = [
        (annotation::GRANT_BUDGETS, record.to_string()),
        (annotation::GRANT_ENDS, json!([end]).to_string()),
    ];
    NodeView {
        name: name.to_owned(),
        resource_version: "1".to_owned(),
        annotations: annotations
            .map(|(name, text)| (name.to_owned(), text))
            .into(),
        ..NodeView::default()
    }
}

fn view(nodes: Vec<NodeView>, timeout: &str) -> RolloutView {
    let mut view = RolloutView::default();
    let timeout = (!timeout.is_empty()).then(|| {
        let key = pool_annotation::BUDGET_RECOVERY_TIMEOUT.to_owned();
        (key, timeout.to_owned())
    });
    let pool = PoolView {
        name: "worker".to_owned(),
        annotations: timeout.into_iter().collect(),
        ..PoolView::default()
    };
    view.put_pool("worker", Some(pool));
    for node in nodes {
        view.put_node(&node.name.clone(), Some(node));
    }
    view
}

#[test]
fn a_gate_is_closed_until_the_budgets_of_each_drain_have_recovered() {
    let nodes = vec![
        drained("a", &["shop/web", "shop/db"], 1),
        drained("b", &["shop/web", "shop/gone"], 3),
    ];
    let view = view(nodes, "");
    let mut recovery = BudgetRecovery::default();
    let gates = recovery.gates(&view, &budgets(&[("web", 2), ("db", 3)]), now());
    let [gate] = gates.closed.as_slice() else {
        panic!("{gates:?}")
    };
    assert_eq!(gate.pool.as_deref(), Some("worker"));
    assert_eq!(gate.message.matches("shop/web").count(), 2);
    assert!(!gate.message.contains("shop/db"), "{}", gate.message);
    // Node b's ten minutes end first.
    assert_eq!(
        gates.next_opening,
        Some(now() + SignedDuration::from_mins(7))
    );
    let gates = recovery.gates(&view, &budgets(&[("web", 3), ("db", 3)]), now());
    assert!(gates.closed.is_empty(), "{gates:?}");
}

#[test]
fn a_drain_is_forgotten_with_its_node_and_replaced_by_the_next_one() {
    let mut view = view(vec![drained("a", &["shop/web"], 1)], "never");
    let mut recovery = BudgetRecovery::default();
    let unhealthy = budgets(&[("web", 1), ("db", 1)]);
    let mut messages = |view: &RolloutView| {
        let gates = recovery.gates(view, &unhealthy, now());
        let closed = gates.closed.into_iter().map(|gate| gate.message);
        closed.collect::<String>()
    };
    assert!(messages(&view).contains("shop/web"));
    let mut next = drained("a", &["shop/db"], 0);
    next.resource_version = "2".to_owned();
    view.put_node("a", Some(next));
    let text = messages(&view);
    assert!(
        text.contains("shop/db") && !text.contains("shop/web"),
        "{text}"
    );
    view.put_node("a", None);
    assert_eq!(messages(&view), "");
    view.put_node("b", Some(drained("b", &["shop/web"], 1)));
    assert!(messages(&view).contains("shop/web"));
    view.take_nodes(ReportedChanges {
        listed: Some(Vec::new()),
        changes: BTreeMap::default(),
    });
    assert_eq!(messages(&view), "");
}

#[test]
fn a_drain_is_reported_once_when_its_time_is_over() {
    let view = view(vec![drained("a", &["shop/web"], 9)], "");
    let mut recovery = BudgetRecovery::default();
    let budgets = budgets(&[("web", 1)]);
    assert_eq!(recovery.gates(&view, &budgets, now()).closed.len(), 1);
    let later = now() + SignedDuration::from_mins(1);
    let gates = recovery.gates(&view, &budgets, later);
    assert!(gates.closed.is_empty());
    assert_eq!(gates.overdue.len(), 1, "{gates:?}");
    assert!(recovery.gates(&view, &budgets, later).overdue.is_empty());
}

#[test]
fn an_old_drain_that_another_leader_has_seen_is_neither_waited_for_nor_reported() {
    let unhealthy = budgets(&[("web", 1)]);
    for (timeout, minutes) in [("", 10), ("never", 24 * 60)] {
        let view = view(vec![drained("a", &["shop/web"], minutes)], timeout);
        let gates = BudgetRecovery::default().gates(&view, &unhealthy, now());
        assert!(gates.closed.is_empty(), "{timeout}: {gates:?}");
        assert!(gates.overdue.is_empty(), "{timeout}: {gates:?}");
    }
}

#[test]
fn a_budget_that_has_recovered_holds_nothing_back_when_it_degrades_later() {
    let view = view(vec![drained("a", &["shop/web"], 1)], "never");
    let mut recovery = BudgetRecovery::default();
    let closed = |recovery: &mut BudgetRecovery, healthy| {
        let budgets = budgets(&[("web", healthy)]);
        recovery.gates(&view, &budgets, now()).closed.len()
    };
    assert_eq!(closed(&mut recovery, 2), 1);
    assert_eq!(closed(&mut recovery, 3), 0);
    assert_eq!(closed(&mut recovery, 2), 0);
}

#[test]
fn settings_and_marks_that_cannot_be_used_close_no_gate() {
    let budgets = budgets(&[("web", 1)]);
    let closed = |node: NodeView, timeout: &str| {
        let view = view(vec![node], timeout);
        let mut recovery = BudgetRecovery::default();
        recovery.gates(&view, &budgets, now()).closed.len()
    };
    let drained = || drained("a", &["shop/web"], 1);
    assert_eq!(closed(drained(), "never"), 1);
    assert_eq!(closed(drained(), "0s"), 0);
    assert_eq!(closed(drained(), "soon"), 0);
    let mut other_grant = drained();
    let key = annotation::GRANT_BUDGETS.to_owned();
    let record = json!({"grant": "g-2", "pool": "worker", "budgets": ["shop/web"]});
    other_grant
        .annotations
        .insert(key.clone(), record.to_string());
    assert_eq!(closed(other_grant, ""), 0);
    let mut unreadable = drained();
    unreadable.annotations.insert(key, "shop/web".to_owned());
    assert_eq!(closed(unreadable, ""), 0);
}
