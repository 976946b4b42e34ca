//! The command `rollback --pool`.

use serde_json::{Value, json};

use crate::{
    cluster::server::{InjectedFailure, Server},
    fleet::{
        cluster::{NEW, OLD},
        err, json_of, out,
        pool_changes::{failed, pause_reason, paused, succeeded},
        pool_world::{
            OLDER, annotation, config_path, decision, has_run, holds, machinist, pool_path,
            rollout, world,
        },
    },
};

fn pin(server: &Server) -> Value {
    annotation(server, &pool_path("worker"), "machinist.dev/pinned-config")
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_pins_an_earlier_config_after_confirmation() {
    let server = world().await;
    has_run(&server, "worker", &[NEW, OLD, OLDER], 8);
    rollout(&server, "worker", |_| {});
    let output = machinist(&server, &["rollback", "--pool", "worker"]).await;
    failed(&output, &["cannot ask for confirmation"]);
    for part in [
        format!("pool worker: {NEW} →"),
        "1 of 3 nodes change: w1".to_owned(),
    ] {
        assert!(out(&output).contains(&part), "{}", out(&output));
    }
    assert_eq!(server.writes().len(), 0);
    let output = machinist(&server, &["rollback", "--pool", "worker", "--yes"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let line =
        format!("machineconfigpool/worker pinned to {OLD}, before: {NEW}; 1 of 3 nodes change\n");
    assert!(out(&output).ends_with(&line), "{}", out(&output));
    assert_eq!(pin(&server), json!(OLD));
    let decided = decision(&server).await;
    assert_eq!(decided.pools[0].target.as_deref(), Some(OLD));
    assert_eq!(
        (decided.pools[0].pending, &decided.pools[0].holds),
        (1, &Vec::new())
    );
    assert_eq!(
        annotation(&server, &pool_path("worker"), "machinist.dev/resume"),
        "earlier",
        "a new target needs no new value"
    );
    // The config that the pool is pinned to is no longer among the earlier ones.
    let output = machinist(
        &server,
        &["rollback", "--pool", "worker", "--to", OLD, "-y"],
    )
    .await;
    succeeded(
        &output,
        &format!("machineconfigpool/worker already pinned to {OLD}"),
    );
    // A repeated command does not return to the config that it left.
    let output = machinist(&server, &["rollback", "--pool", "worker", "-y"]).await;
    failed(
        &output,
        &[
            &format!("already pinned to {OLD}"),
            "machinist resume --pool worker",
        ],
    );
    assert_eq!(server.writes().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_goes_back_several_configs_or_to_one_by_name() {
    let server = world().await;
    has_run(&server, "worker", &[NEW, OLD, OLDER], 8);
    rollout(&server, "worker", |_| {});
    for to in ["2", OLDER] {
        let call = [
            "rollback",
            "--pool",
            "worker",
            "--to",
            to,
            "--dry-run",
            "-o",
            "json",
        ];
        let document = json_of(&machinist(&server, &call).await);
        assert_eq!(document["to"], OLDER);
        assert_eq!(document["nodes"], json!(["w1", "w2", "w3"]));
        assert_eq!(
            (&document["from"], &document["resumes"]),
            (&json!(NEW), &json!(false))
        );
    }
    assert_eq!(server.writes().len(), 0);
    // The last config that all nodes were on comes first, whatever the history lists.
    server.edit(&pool_path("worker"), |pool| {
        pool["status"] = json!({"machineCount": 3, "configuration": {"name": OLDER}});
    });
    let call = ["rollback", "--pool", "worker", "--dry-run", "-o", "json"];
    assert_eq!(json_of(&machinist(&server, &call).await)["to"], OLDER);
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_refuses_configs_that_never_ran_or_are_gone() {
    let server = world().await;
    has_run(&server, "worker", &[NEW, OLD], 8);
    let roll_back = async |to: &str| {
        machinist(
            &server,
            &["rollback", "--pool", "worker", "--to", to, "--yes"],
        )
        .await
    };
    let text = format!("pool worker has never run config {OLDER}; it ran, latest first: {OLD}");
    failed(&roll_back(OLDER).await, &[&text]);
    failed(
        &roll_back("2").await,
        &["pool worker cannot go back 2 configs", OLD],
    );
    failed(
        &roll_back(NEW).await,
        &["is the present config of pool worker"],
    );
    server.remove(&config_path(OLD));
    failed(
        &roll_back(OLD).await,
        &[&format!("MachineConfig {OLD} does not exist")],
    );
    let usage = roll_back("0").await;
    assert_eq!(usage.status.code(), Some(64), "{usage:?}");
    assert_eq!((server.writes().len(), pin(&server)), (0, Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_of_a_paused_pool_requires_unpause() {
    let server = world().await;
    has_run(&server, "worker", &[NEW, OLD], 8);
    rollout(&server, "worker", |_| {});
    machinist(&server, &["pause", "--pool", "worker", "--reason", "disk"]).await;
    let call = ["rollback", "--pool", "worker", "--yes"];
    failed(
        &machinist(&server, &call).await,
        &["pool worker is paused (disk)", "--unpause"],
    );
    let output = machinist(&server, &[&call[..], &["--unpause"]].concat()).await;
    assert!(
        out(&output).contains(", unpaused; 1 of 3 nodes change"),
        "{output:?}"
    );
    assert_eq!(
        (paused(&server), pause_reason(&server)),
        (json!(false), Value::Null)
    );
    assert_eq!(holds(&server, "worker").await, Vec::<&str>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_starts_the_rollout_of_a_pool_that_has_none() {
    let server = world().await;
    // Machinist has not rolled out anything: two nodes still have their own config.
    let output = machinist(&server, &["rollback", "--pool", "worker", "--yes"]).await;
    assert!(
        out(&output).contains(&format!("pinned to {OLD}")),
        "{output:?}"
    );
    assert!(out(&output).contains(", rollout started"), "{output:?}");
    assert_eq!(holds(&server, "worker").await, Vec::<&str>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_starts_the_stopped_rollout_of_a_pinned_pool_again() {
    let server = world().await;
    has_run(&server, "worker", &[NEW, OLD], 8);
    rollout(&server, "worker", |_| {});
    let call = ["rollback", "--pool", "worker", "--to", OLD, "--yes"];
    let output = machinist(&server, &call).await;
    assert!(out(&output).contains("pinned to"), "{output:?}");
    rollout(&server, "worker", |state| {
        state.target = OLD.to_owned();
        state.stopped = Some("CanaryFailed".to_owned());
        state.failures = 1;
    });
    assert_eq!(holds(&server, "worker").await, ["CanaryFailed"]);
    let output = machinist(&server, &call).await;
    assert!(out(&output).contains(", rollout started"), "{output:?}");
    assert_eq!(holds(&server, "worker").await, Vec::<&str>::new());
    assert_eq!(pin(&server), json!(OLD));
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_does_not_pin_a_pool_that_changed_after_it_was_shown() {
    let server = world().await;
    has_run(&server, "worker", &[NEW, OLD], 8);
    let other = |pool: &mut Value| pool["spec"]["configuration"]["name"] = json!("rendered-newest");
    server.trouble("PATCH", InjectedFailure::Meanwhile(other));
    let output = machinist(&server, &["rollback", "--pool", "worker", "--yes"]).await;
    failed(
        &output,
        &[
            "has changed in the meantime (target rendered-newest",
            "run the command again",
        ],
    );
    assert_eq!(pin(&server), Value::Null);
    // A write that the decision does not depend on changes nothing.
    let status = |pool: &mut Value| pool["status"] = json!({"machineCount": 3});
    server.trouble("PATCH", InjectedFailure::Meanwhile(status));
    machinist(
        &server,
        &["rollback", "--pool", "worker", "--to", OLD, "--yes"],
    )
    .await;
    assert_eq!(pin(&server), json!(OLD));
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_flags_of_rollback_require_a_pool() {
    let server = world().await;
    for flags in [
        &["--dry-run"][..],
        &["--context", "it"],
        &["-o", "json"],
        &["--unpause"],
    ] {
        let output = machinist(&server, &[&["rollback"], flags].concat()).await;
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        assert!(err(&output).contains("--pool"), "{output:?}");
    }
}
