mod counts;
mod grants;
mod model;
mod progress;
mod properties;
mod rollout;
mod scale;
mod several_pools;
mod skips;
mod slots;
mod taints;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use self::model::start;
use super::*;
use machinist_kube_api::{NodeView, PoolView, keys::protocol};

const ROLE: &str = "node-role.kubernetes.io/";

fn pool(name: &str, spec: Value) -> PoolView {
    PoolView {
        name: name.to_owned(),
        spec: serde_json::from_value(spec).unwrap(),
        ..PoolView::default()
    }
}

/// A pool that selects the role of its own name, as OpenShift's pools do.
fn of_role(name: &str) -> PoolView {
    let label = format!("{ROLE}{name}");
    pool(name, json!({"nodeSelector": {"matchLabels": {label: ""}}}))
}

fn with_roles(roles: &[&str]) -> BTreeMap<String, String> {
    let labels = roles
        .iter()
        .map(|role| (format!("{ROLE}{role}"), String::new()));
    labels.collect()
}

/// A healthy node; `with` adds conditions.
fn node(name: &str, current: &str, desired: &str, state: &str) -> NodeView {
    let annotation = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    NodeView {
        name: name.to_owned(),
        labels: with_roles(&["worker"]),
        annotations: BTreeMap::from([
            annotation(protocol::CURRENT_CONFIG, current),
            annotation(protocol::DESIRED_CONFIG, desired),
            annotation(protocol::STATE, state),
        ]),
        ..NodeView::default()
    }
}

fn with(mut node: NodeView, conditions: &[(&str, &str)]) -> NodeView {
    let made = |(kind, status): &(&str, &str)| json!({"type": kind, "status": status});
    let all: Vec<_> = conditions.iter().map(made).collect();
    node.status.conditions = serde_json::from_value(json!(all)).unwrap();
    node
}

fn cordoned(mut node: NodeView) -> NodeView {
    node.spec.unschedulable = true;
    node
}

fn target(name: &str) -> PoolView {
    let mut pool = of_role("worker");
    pool.spec.configuration.name = name.to_owned();
    pool
}

fn row(pool: &PoolView, nodes: &[NodeView]) -> PoolRow {
    let pools = std::slice::from_ref(pool);
    PoolRow::of(&split(pools, nodes).pools[0])
}

/// The inputs of a leader that has listed the nodes.
fn leader_inputs<'a>(pools: &'a [PoolView], nodes: &'a [NodeView]) -> RolloutInputs<'a> {
    let mut inputs = RolloutInputs::new(pools, nodes, start());
    for pool in pools {
        let read = PoolRead {
            is_confirmed: true,
            is_rebuilt: true,
            is_listed: true,
            is_not_kept: false,
        };
        inputs.reads.insert(&pool.name, read);
    }
    inputs
}

#[test]
fn max_unavailable_is_a_count_or_percentage_and_at_least_one() {
    let limit = |given: Value, machines| {
        let pool = pool("worker", json!({"maxUnavailable": given}));
        max_unavailable(&pool, machines).map(|limit| limit.at_most)
    };
    for (given, machines, at_most) in [
        (Value::Null, 4, 1),
        (json!(2), 4, 2),
        (json!(0), 4, 1),
        (json!("50%"), 4, 2),
        (json!("60%"), 4, 2),
        (json!("0%"), 4, 1),
        (json!("10%"), 4, 1),
        (json!("100%"), 0, 1),
        (json!("50%"), 1, 1),
        (json!(7), 4, 7),
    ] {
        assert_eq!(limit(given.clone(), machines), Ok(at_most), "{given}");
    }
    for given in [
        json!("60"),
        json!("40 %"),
        json!("50 percent"),
        json!("%"),
        json!("-1%"),
        json!("+1%"),
        json!(""),
        json!(-1),
    ] {
        let error = limit(given.clone(), 4).unwrap_err().to_string();
        assert!(error.contains("maxUnavailable of pool worker"), "{error}");
        assert!(error.contains(&given.to_string()), "{error}");
    }
}

#[test]
fn max_unavailable_above_100_percent_is_rejected() {
    let limit = |given| max_unavailable(&pool("worker", json!({"maxUnavailable": given})), 4);
    assert_eq!(limit("100%").unwrap().at_most, 4);
    let error = limit("150%").unwrap_err().to_string();
    assert!(
        error.contains("\"150%\"") && error.contains("100%"),
        "{error}"
    );
}

#[test]
fn an_invalid_pool_selector_selects_no_node_and_names_the_field() {
    let labels = with_roles(&["worker"]);
    let key = format!("{ROLE}worker");
    for (operator, values, part) in [
        (
            "Gt",
            json!(["1"]),
            "\"Gt\" for node-role.kubernetes.io/worker; expected In, NotIn",
        ),
        ("In", json!([]), "expected at least one"),
        ("NotIn", json!([]), "expected at least one"),
        ("Exists", json!(["x"]), "takes none"),
    ] {
        let expression = json!({"key": key, "operator": operator, "values": values});
        let pool = pool(
            "own",
            json!({"nodeSelector": {"matchExpressions": [expression]}, "maxUnavailable": "abc"}),
        );
        assert!(!pool.spec.node_selector.selects(&labels), "{operator}");
        let message = pool.mistakes();
        assert_eq!(message.len(), 1, "{message:?}");
        let field = "pool own: spec.nodeSelector.matchExpressions[0]: ";
        assert!(
            message[0].starts_with(field) && message[0].contains(part),
            "{message:?}"
        );
        // One mistake does not hide the next one.
        assert!(max_unavailable(&pool, 1).is_err());
    }
}

#[test]
fn max_unavailable_that_breaks_etcd_quorum_is_rejected() {
    let limit = |name: &str, given: Value, machines| {
        max_unavailable(&pool(name, json!({"maxUnavailable": given})), machines)
    };
    assert_eq!(limit("master", json!(1), 1).unwrap().warning, None);
    assert!(limit("master", json!(2), 5).unwrap().warning.is_some());
    for (name, given, machines) in [
        ("master", json!(2), 3),
        ("master", json!(3), 3),
        ("control-plane", json!(3), 5),
        ("master", json!("100%"), 3),
    ] {
        let error = limit(name, given, machines).unwrap_err();
        assert!(matches!(error, BadLimit::Quorum { .. }), "{error}");
    }
    assert_eq!(limit("arbiter", json!(3), 5).unwrap().at_most, 1);
    // A pool of another name is a control-plane pool because of its selector.
    let selects = json!({"key": format!("{ROLE}control-plane"), "operator": "Exists"});
    let own = json!({"maxUnavailable": 2, "nodeSelector": {"matchExpressions": [selects]}});
    assert!(max_unavailable(&pool("cp", own), 3).is_err());
}

#[test]
fn a_node_matching_several_pools_belongs_to_the_one_with_precedence() {
    let pools = [
        of_role("worker"),
        of_role("infra"),
        of_role("master"),
        of_role("gpu"),
    ];
    for (roles, pool, passed_over) in [
        (&[][..], None, &[][..]),
        (&["edge"], None, &[]),
        (&["master"], Some("master"), &[]),
        (&["master", "worker"], Some("master"), &[]),
        (&["worker"], Some("worker"), &[]),
        (&["worker", "infra"], Some("infra"), &[]),
        (&["infra"], Some("infra"), &[]),
        (&["master", "infra"], Some("master"), &["infra"]),
        (&["worker", "infra", "gpu"], Some("gpu"), &["infra"]),
        (&["infra", "gpu"], Some("gpu"), &["infra"]),
    ] {
        let found = Membership::of(&with_roles(roles), &pools);
        assert_eq!(
            found.pool.map(|it| it.name.as_str()),
            pool,
            "pool of {roles:?}"
        );
        assert_eq!(found.passed_over, passed_over, "beside that of {roles:?}");
        let warning = found.warning("a");
        assert_eq!(warning.is_some(), !passed_over.is_empty(), "{roles:?}");
        for name in passed_over {
            assert!(warning.as_deref().unwrap().contains(name));
        }
    }
    let mut labels = with_roles(&["worker"]);
    labels.insert("kubernetes.io/os".to_owned(), "windows".to_owned());
    assert_eq!(Membership::of(&labels, &pools).pool, None);
}

#[test]
fn a_pool_with_an_empty_selector_has_no_nodes() {
    let all = pool("all", json!({"nodeSelector": {}}));
    let found = Membership::of(&with_roles(&["worker"]), [&all]);
    assert_eq!(found, Membership::default());
}

#[test]
fn node_readiness_follows_conditions_and_cordon_with_missing_ones_healthy() {
    let well = || node("a", "c1", "c1", "Done");
    for (node, ready) in [
        (well(), true),
        (with(well(), &[("Ready", "True")]), true),
        (with(well(), &[("Ready", "False")]), false),
        (with(well(), &[("Ready", "Unknown")]), false),
        (with(well(), &[("DiskPressure", "False")]), true),
        (with(well(), &[("DiskPressure", "True")]), false),
        (with(well(), &[("DiskPressure", "Unknown")]), false),
        (with(well(), &[("NetworkUnavailable", "True")]), false),
        (with(well(), &[("MemoryPressure", "True")]), true),
        (cordoned(well()), false),
        (cordoned(with(well(), &[("Ready", "True")])), false),
    ] {
        let standing = NodePoolStatus::of(&node, None);
        assert_eq!(standing.ready, ready, "{:?}", node.status.conditions);
        assert_eq!(standing.unavailable, !ready);
        assert!(standing.done, "a cordon takes nothing of the config away");
    }
}

#[test]
fn a_node_is_unavailable_if_unschedulable_or_updating() {
    let image = |mut node: NodeView, current: &str, desired: &str| {
        for (name, value) in [
            (protocol::CURRENT_IMAGE, current),
            (protocol::DESIRED_IMAGE, desired),
        ] {
            node.annotations.insert(name.to_owned(), value.to_owned());
        }
        node
    };
    for (what, node, unavailable) in [
        ("done", node("a", "c1", "c1", "Done"), false),
        ("has not begun", node("a", "c0", "c1", "Done"), true),
        ("works", node("a", "c0", "c1", "Working"), true),
        ("works to its end", node("a", "c1", "c1", "Working"), true),
        ("has no state", node("a", "c1", "c1", ""), true),
        ("has nothing desired", node("a", "c1", "", "Done"), true),
        ("failed", node("a", "c0", "c1", "Degraded"), false),
        ("refused", node("a", "c0", "c1", "Unreconcilable"), false),
        (
            "failed and cordoned",
            cordoned(node("a", "c0", "c1", "Degraded")),
            true,
        ),
        ("drifted", node("a", "c1", "c1", "Degraded"), true),
        (
            "done and not ready",
            with(node("a", "c1", "c1", "Done"), &[("Ready", "False")]),
            true,
        ),
        (
            "the same image",
            image(node("a", "c1", "c1", "Done"), "i1", "i1"),
            false,
        ),
        (
            "another image",
            image(node("a", "c1", "c1", "Done"), "i0", "i1"),
            true,
        ),
        (
            "an image before it began",
            image(node("a", "c1", "c1", "Done"), "", "i1"),
            true,
        ),
    ] {
        assert_eq!(
            NodePoolStatus::of(&node, None).unavailable,
            unavailable,
            "{what}"
        );
    }
}
