//! Grants in the presence of other clients, and of servers that lose what was written.

use std::time::Duration;

use machinist_pool::GrantOutcome;
use serde_json::{Value, json};

use super::{
    harness::Lab,
    objects::{self, GRANTOR, GRANTS, WORKER, node_path},
};
use crate::cluster::server::InjectedFailure;

const POOL_WRITE: &str =
    "PATCH /apis/machineconfiguration.openshift.io/v1/machineconfigpools/worker";

fn set_paused(lab: &Lab, is_paused: bool) {
    lab.server
        .edit(WORKER, |pool| pool["spec"]["paused"] = json!(is_paused));
}

/// Starts with a pool that is paused and has a target.
async fn paused_lab(names: &[&str]) -> (Lab, super::harness::Running) {
    let lab = Lab::with_nodes(names).await;
    set_paused(&lab, true);
    let running = lab.start("one").await;
    lab.until("the hold", |lab| lab.is("RolloutHeld", "Paused"))
        .await;
    (lab, running)
}

#[tokio::test(start_paused = true)]
async fn nodes_are_updated_one_after_the_other() {
    let lab = Lab::with_nodes(&["a", "b"]).await;
    let running = lab.start("one").await;
    for _ in 0..2 {
        lab.until("a placed grant", |lab| !lab.granted_nodes().is_empty())
            .await;
        lab.pass(Duration::from_secs(30)).await;
        let placed = lab.granted_nodes();
        assert_eq!(placed.len(), 1, "{placed:?}");
        lab.acknowledge(&placed[0]);
        lab.end(&placed[0], GrantOutcome::Done, "");
    }
    lab.until("the end", |lab| lab.is("Updated", "AllNodesUpdated"))
        .await;
    assert!(lab.grants().is_empty());
    lab.until("the events", |lab| lab.events().len() == 2).await;
    let target = lab.target();
    let reported = [
        (
            "RolloutStarted".to_owned(),
            format!("the rollout of {target} has begun"),
        ),
        (
            "RolloutCompleted".to_owned(),
            format!("all nodes are on {target}"),
        ),
    ];
    assert_eq!(lab.events(), reported);
    let status = lab.server.object(WORKER)["status"].clone();
    assert_eq!(status["updatedMachineCount"], 2);
    assert_eq!(status["configuration"]["name"], lab.target());
    // The leader publishes them after the response about the status.
    let updated = "pool_machines{pool=\"worker\",state=\"updated\"}";
    lab.until("the metrics", |_| running.metric(updated) == Some(2.0))
        .await;
    let shown = [
        ("grants_total{pool=\"worker\",outcome=\"Done\"}", 2.0),
        ("grants_total{pool=\"worker\",outcome=\"Failed\"}", 0.0),
        ("node_update_duration_seconds_count{pool=\"worker\"}", 2.0),
        ("rollouts_total{pool=\"worker\",result=\"Completed\"}", 1.0),
        ("pool_grants{pool=\"worker\"}", 0.0),
        ("pool_stuck_seconds{pool=\"worker\"}", 0.0),
    ];
    for (name, expected) in shown {
        assert_eq!(running.metric(name), Some(expected), "{name}");
    }
    let target = format!(
        "pool_target_info{{pool=\"worker\",config=\"{}\"}}",
        lab.target()
    );
    assert_eq!(running.metric(&target), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_another_client_pauses_meanwhile_is_decided_about_again() {
    let (lab, _running) = paused_lab(&["a", "b"]).await;
    let pause = |pool: &mut Value| pool["spec"]["paused"] = json!(true);
    lab.server
        .trouble(POOL_WRITE, InjectedFailure::Meanwhile(pause));
    let before = lab.server.requests_starting(POOL_WRITE).len();
    set_paused(&lab, false);
    lab.until("the refused write", |lab| {
        lab.server.requests_starting(POOL_WRITE).len() > before
    })
    .await;
    lab.pass(Duration::from_secs(20)).await;
    assert_eq!(lab.server.object(WORKER)["spec"]["paused"], true);
    assert!(lab.grants().is_empty(), "{:?}", lab.grants());
    assert!(lab.granted_nodes().is_empty());

    set_paused(&lab, false);
    lab.until("a placed grant", |lab| lab.granted_nodes().len() == 1)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_conflict_on_the_pool_is_read_and_decided_again_without_waiting() {
    let (lab, running) = paused_lab(&["a", "b"]).await;
    let label = |pool: &mut Value| pool["metadata"]["labels"] = json!({"x": "y"});
    lab.server
        .trouble(POOL_WRITE, InjectedFailure::Meanwhile(label));
    let began = lab.now();
    set_paused(&lab, false);
    lab.until("a placed grant", |lab| lab.granted_nodes().len() == 1)
        .await;
    let waited = lab.now().duration_since(began).as_secs_f64();
    assert!(
        waited < 0.9,
        "{waited} s, which is as long as the wait after a failed turn"
    );
    assert_eq!(lab.server.object(WORKER)["metadata"]["labels"]["x"], "y");
    let grants = lab.grants();
    assert_eq!(grants.len(), 1, "{grants:?}");
    let placed = lab.placed(&grants[0].node).unwrap();
    assert_eq!(
        placed.id, grants[0].id,
        "the Node has the grant that the pool lists"
    );
    let refused = "api_requests_total{verb=\"patch\",resource=\"machineconfigpools\",code=\"422\"}";
    assert_eq!(running.metric(refused), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_granted_while_the_server_does_not_keep_grants() {
    let (lab, running) = paused_lab(&["a", "b"]).await;
    lab.server.keep_annotation(GRANTS, false);
    set_paused(&lab, false);
    lab.until("the condition", |lab| {
        lab.is("GrantsNotKept", "GrantsNotKept")
    })
    .await;
    assert!(
        lab.is("RolloutHeld", "GrantsNotKept"),
        "{}",
        lab.condition("RolloutHeld")
    );
    lab.pass(Duration::from_secs(590)).await;
    assert!(
        lab.granted_nodes().is_empty(),
        "a Node has a grant that no pool lists"
    );

    let annotation = "did not return annotation machinist.dev/grants of MachineConfigPool worker";
    assert!(
        lab.has_event("RolloutHeld", annotation),
        "{:?}",
        lab.events()
    );
    assert!(!lab.has_event("RolloutStarted", ""), "{:?}", lab.events());
    let held = "pool_held{pool=\"worker\",reason=\"GrantsNotKept\"}";
    assert_eq!(running.metric(held), Some(1.0));
    assert!(running.metric("pool_stuck_seconds{pool=\"worker\"}") > Some(580.0));

    lab.server.keep_annotation(GRANTS, true);
    lab.pass(Duration::from_secs(15)).await;
    lab.until("a placed grant", |lab| lab.granted_nodes().len() == 1)
        .await;
    lab.until("the condition's end", |lab| {
        lab.condition("GrantsNotKept")["status"] == "False"
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_controller_config_stops_grants_and_is_named() {
    let lab = Lab::with_nodes(&["a", "b"]).await;
    let running = lab.start("one").await;
    lab.until("a placed grant", |lab| lab.granted_nodes().len() == 1)
        .await;
    let first = lab.granted_nodes().remove(0);
    // Until then the kind does not exist, and is looked for once a minute.
    lab.server.put(
        GRANTOR,
        json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "ControllerConfig",
            "metadata": {"name": "machine-config-controller", "uid": "openshift"},
        }),
    );
    lab.until("the hold", |lab| lab.is("RolloutHeld", "OtherGrantor"))
        .await;
    let message = lab.condition("RolloutHeld")["message"].clone();
    let object = "ControllerConfig.machineconfiguration.openshift.io machine-config-controller";
    assert!(message.as_str().unwrap().contains(object), "{message}");
    lab.acknowledge(&first);
    lab.end(&first, GrantOutcome::Done, "");
    let granted = lab.grants();
    lab.pass(Duration::from_secs(120)).await;
    assert_eq!(lab.grants(), granted, "the record is not written");
    assert!(
        lab.granted_nodes().is_empty(),
        "the other node is not granted"
    );

    assert!(lab.has_event("RolloutHeld", object), "{:?}", lab.events());
    let held = "pool_held{pool=\"worker\",reason=\"OtherGrantor\"}";
    assert_eq!(running.metric(held), Some(1.0));
    assert_eq!(
        running.metric("pool_stuck_seconds{pool=\"worker\"}"),
        Some(0.0)
    );

    lab.server.remove(GRANTOR);
    lab.until("the other node's grant", |lab| {
        lab.granted_nodes().len() == 1
    })
    .await;
    assert_ne!(lab.granted_nodes()[0], first);
}

#[tokio::test(start_paused = true)]
async fn grants_of_a_pool_that_was_deleted_and_created_anew_are_rebuilt_from_a_live_list() {
    rebuilds_grants_of(objects::pool("second")).await;
}

#[tokio::test(start_paused = true)]
async fn grants_of_a_pool_that_was_restored_from_an_old_backup_are_rebuilt_from_a_live_list() {
    let mut backup = objects::pool("second");
    backup["metadata"]["annotations"][GRANTS] = json!("{\"grants\":[]}");
    rebuilds_grants_of(backup).await;
}

/// Deletes the pool while one of its two nodes is updated, and creates `restored`.
async fn rebuilds_grants_of(restored: Value) {
    let lab = Lab::with_nodes(&["a", "b"]).await;
    let _running = lab.start("one").await;
    lab.until("a placed grant", |lab| lab.granted_nodes().len() == 1)
        .await;
    let name = lab.granted_nodes().remove(0);
    lab.acknowledge(&name);
    let grant = lab.placed(&name).unwrap();
    lab.server.remove(WORKER);
    lab.pass(Duration::from_secs(5)).await;
    let lists = |lab: &Lab| {
        let lists = lab.server.requests_starting("GET /api/v1/nodes");
        let lists = lists.iter().filter(|it| it.what == "GET /api/v1/nodes");
        lists.filter(|it| !it.query.contains("watch")).count()
    };
    let before = lists(&lab);
    lab.server.put(WORKER, restored);
    lab.until("the rebuilt grants", |lab| !lab.grants().is_empty())
        .await;
    assert!(lists(&lab) > before, "the Nodes were listed again");
    lab.pass(Duration::from_secs(60)).await;
    let rebuilt = lab.grants();
    let ids: Vec<_> = rebuilt.iter().map(|it| (&it.id, &it.node)).collect();
    assert_eq!(ids, [(&grant.id, &name)], "and nothing else is granted");
    assert_eq!(lab.granted_nodes(), std::slice::from_ref(&name));

    lab.end(&name, GrantOutcome::Done, "");
    let other = |lab: &Lab| lab.granted_nodes().iter().any(|it| *it != name);
    lab.until("the next grant", other).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_acknowledges_is_withdrawn() {
    let lab = Lab::with_nodes(&["a"]).await;
    let _running = lab.start("one").await;
    lab.until("a placed grant", |lab| lab.placed("a").is_some())
        .await;
    let id = lab.placed("a").unwrap().id;
    lab.pass(Duration::from_secs(590)).await;
    assert_eq!(lab.placed("a").map(|it| it.id), Some(id.clone()));
    lab.pass(Duration::from_secs(15)).await;
    let annotations = lab.server.object(&node_path("a"))["metadata"]["annotations"].clone();
    let ends = annotations["machinist.dev/grant-ends"]
        .as_str()
        .unwrap_or_default();
    assert!(
        ends.contains(&id) && ends.contains("Withdrawn"),
        "{annotations}"
    );
    assert_eq!(
        annotations["machineconfiguration.openshift.io/desiredConfig"],
        objects::OLD
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_fails_stops_the_rollout_and_is_named_once_with_its_code() {
    let lab = Lab::with_nodes(&["a", "b"]).await;
    lab.server.edit(WORKER, |pool| {
        pool["metadata"]["annotations"]["machinist.dev/canary"] = json!("1");
    });
    let running = lab.start("one").await;
    lab.until("a placed grant", |lab| lab.granted_nodes().len() == 1)
        .await;
    let name = lab.granted_nodes().remove(0);
    lab.acknowledge(&name);
    lab.end(&name, GrantOutcome::RolledBack, "VerifyFailed");
    lab.until("the hold", |lab| lab.is("RolloutHeld", "CanaryFailed"))
        .await;
    lab.pass(Duration::from_secs(30)).await;
    assert!(lab.granted_nodes().is_empty());
    let failed = format!(
        "node {name} failed on {}: RolledBack, VerifyFailed",
        lab.target()
    );
    let failures: Vec<_> = lab
        .events()
        .into_iter()
        .filter(|it| it.0 == "NodeFailed")
        .collect();
    assert_eq!(failures, [("NodeFailed".to_owned(), failed)]);
    assert!(
        lab.has_event("RolloutStopped", "CanaryFailed"),
        "{:?}",
        lab.events()
    );
    assert!(
        lab.has_event("RolloutHeld", "CanaryFailed"),
        "{:?}",
        lab.events()
    );
    let shown = [
        ("grants_total{pool=\"worker\",outcome=\"RolledBack\"}", 1.0),
        (
            "rollouts_total{pool=\"worker\",result=\"CanaryFailed\"}",
            1.0,
        ),
        ("pool_held{pool=\"worker\",reason=\"CanaryFailed\"}", 1.0),
        ("node_update_duration_seconds_count{pool=\"worker\"}", 0.0),
    ];
    for (name, expected) in shown {
        assert_eq!(running.metric(name), Some(expected), "{name}");
    }
}
