//! The commands `pause` and `resume`, and what all commands that change a pool share.

use std::process::Output;

use serde_json::{Value, json};

use crate::{
    cluster::server::{InjectedFailure, Server},
    fleet::{
        cluster::{NEW, OLD, ago},
        err, json_of, out,
        pool_world::{
            OLDER, annotate, annotation, grant, has_run, holds, machinist, pool_path, record,
            rollout, world,
        },
    },
};

#[track_caller]
pub(crate) fn succeeded(output: &Output, line: &str) {
    assert_eq!(output.status.code(), Some(0), "{}", err(output));
    assert_eq!(out(output), format!("{line}\n"));
}

#[track_caller]
pub(crate) fn failed(output: &Output, parts: &[&str]) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for part in parts {
        assert!(err(output).contains(part), "{part}: {}", err(output));
    }
}

pub(crate) fn paused(server: &Server) -> Value {
    server.object(&pool_path("worker"))["spec"]["paused"].clone()
}

pub(crate) fn pause_reason(server: &Server) -> Value {
    annotation(server, &pool_path("worker"), "machinist.dev/pause-reason")
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_stops_the_pool_with_its_reason_and_writes_nothing_twice() {
    let server = world().await;
    rollout(&server, "worker", |_| {});
    let mut running = grant("g1", "worker", "w2");
    running.acknowledged = true;
    record(&server, "worker", &[running]);
    let call = ["pause", "--pool", "worker", "--reason", "new switches"];
    let output = machinist(&server, &call).await;
    succeeded(
        &output,
        "machineconfigpool/worker paused: new switches; updates that have begun continue on w2",
    );
    assert_eq!(
        (paused(&server), pause_reason(&server)),
        (json!(true), json!("new switches"))
    );
    assert!(holds(&server, "worker").await.contains(&"Paused"));
    let writes = server.writes();
    assert_eq!(writes.len(), 1);
    assert_eq!(writes[0].body[0]["path"], "/metadata/uid");
    assert_eq!(writes[0].body[1]["path"], "/metadata/resourceVersion");
    for arguments in [&call[..], &["pause", "--pool", "mcp/worker"]] {
        let output = machinist(&server, arguments).await;
        assert!(
            out(&output).contains("already paused: new switches"),
            "{output:?}"
        );
    }
    assert_eq!(server.writes().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_a_pool_command_changes_nothing() {
    let server = world().await;
    let call = ["pause", "--pool", "worker", "--dry-run"];
    succeeded(
        &machinist(&server, &call).await,
        "machineconfigpool/worker paused (dry run)",
    );
    assert_eq!(server.writes().len(), 0);
    let call = [
        "pause",
        "--pool",
        "worker",
        "--dry-run=server",
        "-o",
        "json",
    ];
    let document = json_of(&machinist(&server, &call).await);
    let expected = json!({"apiVersion": "machinist.dev/v1", "kind": "Pause", "dryRun": "server",
        "pool": "worker", "changed": true, "message": "paused"});
    assert_eq!(document, expected);
    assert_eq!((server.writes().len(), paused(&server)), (1, json!(false)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_another_client_changes_is_read_and_changed_again() {
    let server = world().await;
    let other = |pool: &mut Value| pool["metadata"]["annotations"]["example.com/a"] = json!("b");
    server.trouble("PATCH", InjectedFailure::Meanwhile(other));
    let output = machinist(&server, &["pause", "--pool", "worker"]).await;
    succeeded(&output, "machineconfigpool/worker paused");
    let kept = annotation(&server, &pool_path("worker"), "example.com/a");
    assert_eq!((paused(&server), kept), (json!(true), json!("b")));
    assert_eq!(server.writes().len(), 2);
    for _ in 0..20 {
        server.trouble("PATCH", InjectedFailure::Code(409, "Conflict"));
    }
    let output = machinist(&server, &["resume", "--pool", "worker"]).await;
    failed(
        &output,
        &["cannot patch MachineConfigPool worker", "409 Conflict"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_commands_name_an_unknown_pool_and_the_existing_ones() {
    let server = world().await;
    for arguments in [
        &["pause", "--pool", "gpu"][..],
        &["resume", "--pool", "gpu"],
        &["rollback", "--pool", "gpu", "--yes"],
        &["explain", "--pool", "gpu"],
        &["pool", "gpu"],
        &["estimate", "--pool", "gpu"],
    ] {
        let output = machinist(&server, arguments).await;
        failed(
            &output,
            &["MachineConfigPool gpu not found; existing: worker"],
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_commands_name_the_permission_that_is_missing() {
    let server = world().await;
    has_run(&server, "worker", &[NEW, OLD], 8);
    for (request, arguments, parts) in [
        (
            "PATCH",
            &["pause", "--pool", "worker"][..],
            "cannot patch MachineConfigPool worker",
        ),
        (
            "PATCH",
            &["resume", "--pool", "worker"],
            "cannot patch MachineConfigPool worker",
        ),
        (
            "PATCH",
            &["rollback", "--pool", "worker", "-y"],
            "cannot patch MachineConfigPool worker",
        ),
        (
            "GET /apis/machineconfiguration.openshift.io/v1/machineconfigs",
            &["rollback", "--pool", "worker", "-y"],
            "cannot get MachineConfig rendered-worker-0a0a",
        ),
        (
            "GET",
            &["pause", "--pool", "worker"],
            "cannot get MachineConfigPool worker",
        ),
        (
            "GET /api/v1/nodes",
            &["pool", "worker"],
            "cannot list the Nodes",
        ),
        (
            "GET",
            &["release-grant", "w1"],
            "cannot list the MachineConfigPools",
        ),
    ] {
        server.trouble(request, InjectedFailure::Code(403, "Forbidden"));
        failed(
            &machinist(&server, arguments).await,
            &[parts, "403 Forbidden"],
        );
        server.stop_failing();
    }
    assert_eq!(paused(&server), json!(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn resume_unpauses_unpins_and_starts_the_first_rollout() {
    let server = world().await;
    let path = pool_path("worker");
    annotate(&server, &path, "machinist.dev/pause-reason", "disk");
    annotate(&server, &path, "machinist.dev/pinned-config", OLDER);
    server.edit(&path, |pool| pool["spec"]["paused"] = json!(true));
    let held = holds(&server, "worker").await;
    assert!(
        held.contains(&"Paused") && held.contains(&"FirstRollout"),
        "{held:?}"
    );
    let output = machinist(&server, &["resume", "--pool", "worker"]).await;
    let line = format!(
        "machineconfigpool/worker resumed: unpaused, no longer pinned to {OLDER}, its nodes update to {NEW}"
    );
    succeeded(&output, &line);
    assert_eq!(
        (paused(&server), pause_reason(&server)),
        (json!(false), Value::Null)
    );
    assert_eq!(
        annotation(&server, &path, "machinist.dev/pinned-config"),
        Value::Null
    );
    assert_eq!(holds(&server, "worker").await, Vec::<&str>::new());
    assert_eq!(server.writes().len(), 1, "in one patch");
    let first = annotation(&server, &path, "machinist.dev/resume");
    machinist(&server, &["resume", "--pool", "worker"]).await;
    assert_ne!(annotation(&server, &path, "machinist.dev/resume"), first);
}

#[tokio::test(flavor = "multi_thread")]
async fn resume_continues_a_rollout_that_failures_stopped() {
    let server = world().await;
    rollout(&server, "worker", |state| {
        state.started = Some(ago(1, 0));
        state.failures = 1;
        state.stopped = Some("CanaryFailed".to_owned());
    });
    assert_eq!(holds(&server, "worker").await, ["CanaryFailed"]);
    machinist(&server, &["resume", "--pool", "worker"]).await;
    assert_eq!(holds(&server, "worker").await, Vec::<&str>::new());
}
