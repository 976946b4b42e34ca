//! `machinist estimate`: the time of a rollout, from recorded updates or without.

use serde_json::json;

use crate::{
    cluster::server::{InjectedFailure, Server},
    fleet::{
        assert_contains,
        cluster::{GROUP, NEW, OLD, ago},
        err, json_of,
        pool_reports::page,
        pool_world::{annotate, config_path, has_run, machinist, pool_path, rollout, world},
    },
};

/// Makes the new config differ by a file that no policy covers, so that nodes reboot for it.
fn change_a_file(server: &Server) {
    let file = json!({"path": "/etc/own", "contents": {"source": "data:,a"}});
    server.edit(&config_path(NEW), |config| {
        config["spec"]["config"] =
            json!({"ignition": {"version": "3.4.0"}, "storage": {"files": [file]}});
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_without_records_uses_the_formula() {
    let server = world().await;
    annotate(
        &server,
        &pool_path("worker"),
        "machinist.dev/canary-soak",
        "1h",
    );
    annotate(
        &server,
        &pool_path("worker"),
        "machinist.dev/reboot-time",
        "10m",
    );
    // The configs are equal so far.
    let shown = page(&server, &["estimate", "--pool", "worker"]).await;
    assert_contains(
        &shown,
        &["per node 5m: no update of this pool is recorded; the change needs no reboot"],
    );
    change_a_file(&server);
    let shown = page(&server, &["estimate", "--pool", "worker"]).await;
    assert_contains(
        &shown,
        &[
            "worker: 2 of 3 nodes not on",
            "per node 15m: no update of this pool is recorded: 5m and 10m for a reboot",
            "wave 1, from 0s to 15m, 1 node, canary: w2",
            "wave 2, from 1h 15m to 1h 30m, 1 node: w3",
            "total 1h 30m\n",
            "whole cluster update with this pool: 1h",
            "note: the rollout is held now: FirstRollout",
        ],
    );
    let configs = format!("GET /apis/{GROUP}/v1/machineconfigs");
    server.trouble(&configs, InjectedFailure::Code(403, "Forbidden"));
    let shown = page(&server, &["estimate", "--pool", "worker"]).await;
    assert_contains(
        &shown,
        &["per node 15m", "note: a reboot of each machine is assumed"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_uses_the_times_of_earlier_updates() {
    let server = world().await;
    has_run(&server, "worker", &[NEW, OLD], 8);
    change_a_file(&server);
    rollout(&server, "worker", |state| {
        state.canary_passed = Some(ago(0, 5))
    });
    server.edit(&pool_path("worker"), |pool| {
        pool["spec"]["maxUnavailable"] = json!(2)
    });
    let document =
        json_of(&machinist(&server, &["estimate", "--pool", "worker", "-o", "json"]).await);
    assert_eq!(document["kind"], "RolloutEstimate");
    assert_eq!(document["basis"]["kind"], "History");
    assert_eq!(document["basis"]["successes"], 2);
    let seconds = document["nodeSeconds"].as_i64().unwrap();
    assert!((480..=600).contains(&seconds), "{seconds}");
    assert_eq!(document["canaryNodes"], 0);
    let waves = document["waves"].as_array().unwrap();
    assert_eq!(
        (waves.len(), &waves[0]["nodes"], &waves[0]["names"]),
        (1, &json!(2), &json!(["w2", "w3"]))
    );
    assert_eq!(document["totalSeconds"], seconds);
    assert_eq!(document["typicalSeconds"], seconds);
    let phases = document["phases"].as_array().unwrap();
    let names: Vec<_> = phases.iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["RebootPending", "Draining"]);
    assert!((71..=90).contains(&phases[0]["p90Seconds"].as_i64().unwrap()));
    let shown = page(&server, &["estimate", "--pool", "worker"]).await;
    assert!(
        shown.contains("phases (median/p90): RebootPending 1m"),
        "{shown}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_refuses_settings_that_the_controller_refuses() {
    let server = world().await;
    annotate(
        &server,
        &pool_path("worker"),
        "machinist.dev/canary",
        "some",
    );
    let output = machinist(&server, &["estimate", "--pool", "worker"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = "annotation machinist.dev/canary of MachineConfigPool worker is \"some\"; expected a number from 0";
    assert!(err(&output).contains(text), "{}", err(&output));
    annotate(&server, &pool_path("worker"), "machinist.dev/canary", "1");
    server.edit(&pool_path("worker"), |pool| {
        pool["spec"]["maxUnavailable"] = json!("many")
    });
    let output = machinist(&server, &["estimate", "--pool", "worker"]).await;
    assert!(
        err(&output).contains("maxUnavailable of pool worker is \"many\""),
        "{}",
        err(&output)
    );
}
