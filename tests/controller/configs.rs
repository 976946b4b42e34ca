//! Rendered configs: refused, created, restored and collected.

use std::time::Duration;

use super::{
    harness::Lab,
    objects::{self, CONFIGS, WORKER, config_path, node_path},
};
use crate::cluster::server::InjectedFailure;
use machinist_kube_api::keys::protocol;
use machinist_pool::GrantOutcome;
use serde_json::json;

fn rendered(lab: &Lab) -> Vec<String> {
    let paths = lab.server.below(CONFIGS);
    let names = paths
        .iter()
        .map(|path| path[CONFIGS.len() + 1..].to_owned());
    names.filter(|name| name.starts_with("rendered-")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_refused_rendering_names_the_object_and_the_field_and_keeps_the_target() {
    let lab = Lab::with_nodes(&["a"]).await;
    let running = lab.start("one").await;
    lab.until("a target", |lab| !lab.target().is_empty()).await;
    let target = lab.target();
    let bad = objects::config("60-bad", "etc/no-slash", "x");
    lab.server.put(&config_path("60-bad"), bad);
    lab.until("the condition", |lab| {
        lab.is("RenderDegraded", "PathInvalid")
    })
    .await;
    let message = lab.condition("RenderDegraded")["message"].clone();
    let place = "MachineConfig 60-bad: spec.config.storage.files[0].path: ";
    assert!(message.as_str().unwrap().starts_with(place), "{message}");
    lab.until("the pool", |lab| {
        lab.condition("Degraded")["status"] == "True"
    })
    .await;
    assert_eq!(lab.condition("Degraded")["reason"], "RenderDegraded");
    assert_eq!(lab.target(), target);
    assert_eq!(
        rendered(&lab),
        std::slice::from_ref(&target),
        "nothing else is rendered"
    );

    lab.until("the event", |lab| lab.has_event("RenderDegraded", place))
        .await;
    let failures = "render_failures_total{pool=\"worker\"}";
    assert_eq!(
        running.metric(failures),
        Some(1.0),
        "each selection is rendered once"
    );

    lab.server.remove(&config_path("60-bad"));
    lab.until("the end", |lab| {
        lab.condition("RenderDegraded")["status"] == "False"
    })
    .await;
    assert_eq!(lab.target(), target);
}

#[tokio::test(start_paused = true)]
async fn a_rendered_config_that_the_api_server_refuses_is_a_condition() {
    let lab = Lab::with_nodes(&["a"]).await;
    let _running = lab.start("one").await;
    lab.until("a target", |lab| !lab.target().is_empty()).await;
    let target = lab.target();
    for _ in 0..20 {
        let refusal = InjectedFailure::Code(403, "Forbidden");
        lab.server.trouble(&format!("POST {CONFIGS}"), refusal);
    }
    let config = objects::config("60-b", "/etc/b", "b");
    lab.server.put(&config_path("60-b"), config);
    lab.until("the condition", |lab| {
        lab.is("RenderDegraded", "ApiServerForbidden")
    })
    .await;
    let message = lab.condition("RenderDegraded")["message"].clone();
    assert!(
        message
            .as_str()
            .unwrap()
            .contains("MachineConfig rendered-worker-"),
        "{message}"
    );
    assert_eq!(lab.target(), target);
    lab.server.stop_failing();
    lab.until("the next attempt", |lab| lab.target() != target)
        .await;
    lab.until("the end", |lab| {
        lab.condition("RenderDegraded")["status"] == "False"
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_change_is_rendered_once_five_seconds_after_the_last_one() {
    let lab = Lab::with_nodes(&["a"]).await;
    let _running = lab.start("one").await;
    lab.until("a target", |lab| !lab.target().is_empty()).await;
    let first = lab.target();
    for number in 1..=3 {
        let config = objects::config("60-b", "/etc/b", &number.to_string());
        lab.server.put(&config_path("60-b"), config);
        lab.pass(Duration::from_secs(3)).await;
        assert_eq!(lab.target(), first, "change {number}");
    }
    lab.until("the new target", |lab| lab.target() != first)
        .await;
    assert_eq!(
        rendered(&lab).len(),
        2,
        "only the last of the three changes"
    );
}

#[tokio::test(start_paused = true)]
async fn a_rendered_config_in_use_that_is_deleted_is_created_again_from_the_same_bytes() {
    let lab = Lab::with_nodes(&["a"]).await;
    let _running = lab.start("one").await;
    lab.until("a placed grant", |lab| lab.placed("a").is_some())
        .await;
    let path = config_path(&lab.target());
    let before = lab.server.object(&path);
    lab.server.remove(&path);
    lab.until("the config", |lab| !lab.server.object(&path).is_null())
        .await;
    let after = lab.server.object(&path);
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["spec"].to_string(), before["spec"].to_string());
    assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"]);
}

#[tokio::test(start_paused = true)]
async fn unused_rendered_configs_are_removed_and_the_newest_five_and_those_in_use_are_kept() {
    let lab = Lab::with_nodes(&["a"]).await;
    // The node is on the oldest of eight configs, and another controller wrote a ninth one.
    lab.server.put(
        &config_path(objects::OLD),
        objects::rendered(objects::OLD, "2026-10-01T00:00:00Z"),
    );
    for day in 2..=8 {
        let name = format!("rendered-worker-{day}");
        let created = format!("2026-10-{day:02}T00:00:00Z");
        lab.server
            .put(&config_path(&name), objects::rendered(&name, &created));
    }
    let mut foreign = objects::rendered("rendered-foreign", "2026-09-01T00:00:00Z");
    foreign["metadata"]["labels"] = json!({});
    lab.server.put(&config_path("rendered-foreign"), foreign);
    let _running = lab.start("one").await;
    lab.until("a placed grant", |lab| lab.placed("a").is_some())
        .await;
    lab.pass(Duration::from_secs(500)).await;
    assert_eq!(
        rendered(&lab).len(),
        10,
        "it is not due yet: {:?}",
        rendered(&lab)
    );
    lab.acknowledge("a");
    lab.pass(Duration::from_secs(110)).await;
    let target = lab.target();
    let mut expected = vec![
        "rendered-foreign".to_owned(),
        objects::OLD.to_owned(),
        target.clone(),
    ];
    expected.extend((5..=8).map(|day| format!("rendered-worker-{day}")));
    expected.sort();
    assert_eq!(rendered(&lab), expected);
    let deletions = lab.server.requests_starting("DELETE");
    assert!(
        deletions
            .iter()
            .all(|it| it.body["preconditions"]["uid"].is_string())
    );

    // The node has left its first config, which is the target of nothing.
    lab.end("a", GrantOutcome::Done, "");
    lab.pass(Duration::from_secs(600)).await;
    expected.retain(|name| name != objects::OLD);
    assert_eq!(rendered(&lab), expected);
    assert_eq!(
        lab.server.object(WORKER)["status"]["configuration"]["name"],
        target
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_failed_returns_when_the_bad_config_is_deleted() {
    let lab = Lab::with_nodes(&["a"]).await;
    let _running = lab.start("one").await;
    lab.until("the first grant", |lab| lab.granted_nodes() == ["a"])
        .await;
    lab.acknowledge("a");
    lab.end("a", GrantOutcome::Done, "");
    let good = lab.target();
    lab.server.put(
        &config_path("60-bad"),
        objects::config("60-bad", "/etc/b", "1"),
    );
    lab.until("the bad config", |lab| {
        lab.target() != good && lab.granted_nodes() == ["a"]
    })
    .await;
    lab.acknowledge("a");
    lab.end("a", GrantOutcome::RolledBack, "HealthRegressed");
    set_annotation(&lab, protocol::CURRENT_CONFIG, &good);
    lab.until("the failure", |lab| {
        lab.condition("NodeDegraded")["status"] == "True"
    })
    .await;

    lab.server.remove(&config_path("60-bad"));
    let desired = |lab: &Lab| {
        let node = lab.server.object(&node_path("a"));
        node["metadata"]["annotations"][protocol::DESIRED_CONFIG].clone()
    };
    lab.until("the earlier config", |lab| {
        lab.target() == good && desired(lab) == good.as_str()
    })
    .await;
    // The agent finds that its config is the desired one.
    if lab.granted_nodes() == ["a"] {
        lab.end("a", GrantOutcome::Done, "");
    }
    set_annotation(&lab, protocol::STATE, "Done");
    lab.until("the pool", |lab| {
        lab.condition("Updated")["status"] == "True"
            && lab.condition("NodeDegraded")["status"] == "False"
    })
    .await;
}

fn set_annotation(lab: &Lab, name: &str, value: &str) {
    lab.server.edit(&node_path("a"), |node| {
        node["metadata"]["annotations"][name] = json!(value);
    });
}
