use super::*;
use machinist_kube_api::{NodeView, PoolView, keys::protocol};

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn node(name: &str, config: &str) -> NodeView {
    let annotation = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    NodeView {
        name: name.to_owned(),
        annotations: [
            annotation(protocol::CURRENT_CONFIG, config),
            annotation(protocol::DESIRED_CONFIG, config),
            annotation(protocol::STATE, "Done"),
        ]
        .into(),
        ..NodeView::default()
    }
}

fn pool() -> PoolView {
    let mut pool = PoolView {
        name: "worker".to_owned(),
        uid: "u".to_owned(),
        resource_version: "7".to_owned(),
        generation: Some(3),
        ..PoolView::default()
    };
    pool.spec.configuration.name = "new".to_owned();
    pool
}

fn patch(pool: &PoolView, nodes: &[NodeView], now: &str) -> Option<Value> {
    let members = PoolMembers {
        pool,
        nodes: nodes.iter().collect(),
        positions: (0..nodes.len()).collect(),
        ambiguous: Vec::new(),
    };
    status_patch(&members, &[], None, StatusScope::Whole, time(now))
}

/// The pool after the API server has merged the patch.
fn applied(pool: &PoolView, patch: &Value) -> PoolView {
    let mut status = pool.status.clone();
    let fields = &patch["status"];
    let number = |name: &str, known| match fields.get(name) {
        Some(value) => serde_json::from_value(value.clone()).unwrap(),
        None => known,
    };
    status.machine_count = number("machineCount", status.machine_count);
    status.ready_machine_count = number("readyMachineCount", status.ready_machine_count);
    status.updated_machine_count = number("updatedMachineCount", status.updated_machine_count);
    status.unavailable_machine_count =
        number("unavailableMachineCount", status.unavailable_machine_count);
    status.degraded_machine_count = number("degradedMachineCount", status.degraded_machine_count);
    if let Some(generation) = fields.get("observedGeneration") {
        status.observed_generation = generation.as_i64();
    }
    if let Some(conditions) = fields.get("conditions") {
        status.conditions = serde_json::from_value(conditions.clone()).unwrap();
    }
    if let Some(configuration) = fields.get("configuration") {
        status.configuration = serde_json::from_value(configuration.clone()).unwrap();
    }
    PoolView {
        status,
        ..pool.clone()
    }
}

#[test]
fn a_status_that_is_up_to_date_is_not_written() {
    let nodes = [node("a", "new"), node("b", "old")];
    let pool = pool();
    let first = patch(&pool, &nodes, "2026-11-21T12:00:00Z").unwrap();
    assert_eq!(first["metadata"]["resourceVersion"], "7");
    assert_eq!(first["status"]["machineCount"], 2);
    assert_eq!(first["status"]["updatedMachineCount"], 1);
    assert_eq!(first["status"]["configuration"], Value::Null);
    let pool = applied(&pool, &first);
    assert_eq!(patch(&pool, &nodes, "2026-11-21T13:00:00Z"), None);
}

#[test]
fn the_config_is_recorded_when_all_nodes_are_on_it() {
    let found = patch(&pool(), &[node("a", "new")], "2026-11-21T12:00:00Z").unwrap();
    assert_eq!(found["status"]["configuration"]["name"], "new");
    assert_eq!(found["status"]["observedGeneration"], 3);
}

#[test]
fn conditions_of_other_writers_and_transition_times_are_kept() {
    let mut pool = pool();
    let begun = patch(&pool, &[node("a", "old")], "2026-11-21T12:00:00Z").unwrap();
    pool = applied(&pool, &begun);
    pool.status.conditions.push(
        serde_json::from_value(json!({
            "type": "ImageBuildDegraded",
            "status": "False",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }))
        .unwrap(),
    );
    let nodes = [node("a", "old"), node("b", "new")];
    let second = patch(&pool, &nodes, "2026-11-21T13:00:00Z").unwrap();
    let list = second["status"]["conditions"].as_array().unwrap();
    let of = |kind: &str| list.iter().find(|it| it["type"] == kind).unwrap();
    assert_eq!(
        of("ImageBuildDegraded")["lastTransitionTime"],
        "2026-01-01T00:00:00Z"
    );
    assert_eq!(of("Updating")["message"], "1 of 2 nodes is on new");
    assert_eq!(of("Updating")["lastTransitionTime"], "2026-11-21T12:00:00Z");
    pool = applied(&pool, &second);
    let done = patch(&pool, &[node("b", "new")], "2026-11-21T14:00:00Z").unwrap();
    let list = done["status"]["conditions"].as_array().unwrap();
    let updated = list.iter().find(|it| it["type"] == "Updated").unwrap();
    assert_eq!(updated["lastTransitionTime"], "2026-11-21T14:00:00Z");
}

#[test]
fn a_refused_rendering_is_a_condition() {
    let pool = pool();
    let members = PoolMembers {
        pool: &pool,
        nodes: Vec::new(),
        positions: Vec::new(),
        ambiguous: Vec::new(),
    };
    let outcome = RenderOutcome {
        is_degraded: true,
        reason: "PathInvalid".to_owned(),
        message: "MachineConfig 10-x: spec.config.storage.files[0].path: …".to_owned(),
    };
    let found = |scope| {
        let now = time("2026-11-21T12:00:00Z");
        status_patch(&members, &[], Some(&outcome), scope, now)
    };
    assert_eq!(found(StatusScope::RolloutConditions), None);
    let found = found(StatusScope::Whole).unwrap();
    let list = found["status"]["conditions"].as_array().unwrap();
    let render = list
        .iter()
        .find(|it| it["type"] == RENDER_DEGRADED)
        .unwrap();
    assert_eq!(
        (&render["status"], &render["reason"]),
        (&json!("True"), &json!("PathInvalid"))
    );
}
