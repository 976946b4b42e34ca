//! The commands that list nodes and pools of a cluster, with the real binary, against an API server
//! on a socket.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "test code may panic; it implements server and client"
)]

mod cluster;
mod pool_changes;
mod pool_estimate;
mod pool_grants;
mod pool_plan;
mod pool_reports;
mod pool_rollback;
mod pool_settings;
mod pool_skip;
mod pool_world;

use crate::drain::api;

use std::{
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Output},
};

use api::{Api, status};
use cluster::{GROUP, NEW, OLD, cluster};
use serde_json::{Value, json};

async fn called(own_name: &str, arguments: &[&str], environment: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_machinist"));
    command.arg0(own_name).args(arguments).env_clear();
    for (name, value) in environment {
        command.env(name, value);
    }
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

async fn machinist(api: &Api, arguments: &[&str]) -> Output {
    let config = api.kubeconfig();
    called("machinist", arguments, &[("KUBECONFIG", &config)]).await
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", err(output)))
}

#[track_caller]
fn assert_contains(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(page.contains(part), "{part}:\n{page}");
    }
}

/// Asserts that lines outside the tables are at most 80 characters wide; `oc get mcp` has such
/// tables, too.
fn fits(page: &str) {
    for line in page
        .lines()
        .filter(|line| !line.contains("   ") || line.starts_with(' '))
    {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_status_is_shown_like_oc_get_mcp_from_node_annotations() {
    let api = cluster().await;
    let output = machinist(&api, &["status", "--pool", "worker"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_contains(
        &out(&output),
        &[
            "
worker: 1 unavailable, maximum 1
",
            "
  differs in its status: MACHINECOUNT 3
",
            "
  worker-1  Done     1b1b1b1b             22h
",
            "
  worker-2  Working  0a0a0a0a → 1b1b1b1b  28m  shop/db-0",
        ],
    );
    fits(&out(&output));
    let row: Vec<_> = out(&output)
        .lines()
        .nth(1)
        .unwrap()
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    let expected = [
        "worker", OLD, "False", "True", "False", "2", "1", "1", "0", "22h",
    ];
    assert_eq!(row, expected);
    let message = json_of(&machinist(&api, &["status", "--pool", "worker", "-o", "json"]).await);
    let pool = &message["pools"][0];
    assert_eq!(message["pools"].as_array().unwrap().len(), 1);
    assert_eq!(pool["observed"]["machineCount"], 2);
    assert_eq!(pool["reported"]["machineCount"], 3);
    assert_eq!(pool["maxUnavailable"], 1);
    assert_eq!(
        pool["nodes"][1]["blockedBy"][0]["reason"],
        "DrainBlockedByBudget"
    );
    assert_eq!(api.writes(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_status_without_a_name_shows_all_and_an_unknown_name_fails() {
    let api = cluster().await;
    let output = machinist(&api, &["status", "--pool"]).await;
    let page = out(&output);
    assert!(
        page.lines().nth(1).unwrap().starts_with("master "),
        "{page}"
    );
    assert!(
        page.lines().nth(2).unwrap().starts_with("worker "),
        "{page}"
    );
    let output = machinist(&api, &["status", "--pool", "gpu"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("MachineConfigPool gpu not found; existing: master, worker"),
        "{}",
        err(&output)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn node_status_is_shown_from_published_data_without_the_agent() {
    let api = cluster().await;
    let output = machinist(&api, &["status", "--node", "worker-2"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    let page = out(&output);
    assert_contains(
        &page,
        &[
            "worker-2  not ready  pool worker
",
            "
  state    Working, for 28m
",
            &format!(
                "
  config   {OLD}
"
            ),
            &format!(
                "
  wanted   {NEW}
"
            ),
            "
  step     Drained: shop/db-0: budget db needs 2 healthy pods",
            "
  cordon   by machinist, for the update
",
            "
  blocked  shop/db-0 (DrainBlockedByBudget)
",
            "
  acme.dev/fpga  1 of 2 allocatable
",
            "DrainBlocked: a note (3 times)
",
        ],
    );
    fits(&page);
    assert!(
        !page.contains('\u{1b}') && !page.contains("NodeNotReady"),
        "{page}"
    );
    let output = machinist(&api, &["status", "--node", "worker-1"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let output = machinist(&api, &["status", "--node", "worker-2", "-o", "json"]).await;
    let message = json_of(&output);
    assert_eq!(message["kind"], "NodeStatus");
    assert_eq!(message["pool"]["name"], "worker");
    assert_eq!(message["step"]["name"], "Drained");
    assert_eq!(
        message["cordon"],
        json!({"cordoned": true, "by": "machinist", "kept": false})
    );
    let fpga = json!({"resource": "acme.dev/fpga", "capacity": "2", "allocatable": "1"});
    assert_eq!(message["devices"], json!([fpga]));
    assert_eq!(message["events"].as_array().unwrap().len(), 2);
    assert!(!out(&output).contains("hunter2"));
    let yaml = machinist(&api, &["status", "--node", "worker-2", "-o", "yaml"]).await;
    assert!(out(&yaml).contains("kind: NodeStatus"), "{}", out(&yaml));
}

#[tokio::test(flavor = "multi_thread")]
async fn status_of_a_node_without_agent_heartbeat_is_stale_and_exits_with_1() {
    let api = cluster().await;
    let path = "/api/v1/nodes/worker-1";
    let mut node = api.object(path);
    node["status"]["conditions"][1]["lastHeartbeatTime"] = json!(cluster::ago(0, 15));
    api.put(path, node);
    let output = machinist(&api, &["status", "--node", "worker-1", "-o", "json"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    let message = json_of(&output);
    assert_eq!(
        (&message["ready"], &message["stale"]),
        (&json!(true), &json!(true))
    );
    let output = machinist(&api, &["status", "--node", "worker-2", "-o", "json"]).await;
    assert_eq!(json_of(&output)["stale"], json!(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_reports_from_the_cluster_why_a_node_is_not_updating() {
    let api = cluster().await;
    let output = machinist(&api, &["explain", "--node", "worker-2"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let first = "- shop/db-0 blocks the update of worker-2 [DrainBlockedByBudget]
";
    assert!(out(&output).starts_with(first), "{}", out(&output));
    let message = json_of(&machinist(&api, &["explain", "--node", "worker-2", "-o", "json"]).await);
    assert_eq!(message[0]["reason"], "DrainBlockedByBudget");
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_objects_are_omitted_by_name_and_a_missing_node_fails() {
    let api = cluster().await;
    let forbidden = || {
        status(
            403,
            "Forbidden",
            "machineconfigpools is forbidden",
            json!({}),
        )
    };
    api.answers(
        &format!("GET /apis/{GROUP}/v1/machineconfigpools"),
        403,
        forbidden(),
    );
    api.answers("GET /apis/events.k8s.io", 403, forbidden());
    let output = machinist(&api, &["status", "--node", "worker-1"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let page = out(&output);
    assert!(
        page.contains("in no pool") && page.contains("is forbidden (403"),
        "{page}"
    );
    api.answers("GET /api/v1/nodes", 403, forbidden());
    let output = machinist(&api, &["status", "--pool"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("cannot list the Nodes"),
        "{}",
        err(&output)
    );
    let output = machinist(&api, &["status", "--node", "worker-9"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("cannot get Node worker-9"),
        "{}",
        err(&output)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_kubeconfig_is_reported_as_an_error() {
    let empty = tempfile::tempdir().unwrap();
    let missing = empty.path().join("none");
    for arguments in [
        &["status", "--node", "a"][..],
        &["status", "--pool"],
        &["explain", "--node", "a"],
    ] {
        // A named kubeconfig, one in the home directory, and none.
        for environment in [
            &[("KUBECONFIG", missing.as_path())][..],
            &[("HOME", empty.path())],
        ] {
            let output = called("machinist", arguments, environment).await;
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            assert!(err(&output).contains("the kubeconfig"), "{output:?}");
            assert!(out(&output).is_empty());
        }
        let output = called("machinist", arguments, &[]).await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(err(&output).contains("no cluster configured"), "{output:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_context_flag_selects_another_cluster() {
    let api = cluster().await;
    let text = std::fs::read_to_string(api.kubeconfig()).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["contexts"][0]["name"] = json!("staging");
    std::fs::write(api.kubeconfig(), config.to_string()).unwrap();
    let asked = ["status", "--node", "worker-1"];
    let output = machinist(&api, &asked).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let output = machinist(&api, &[&asked[..], &["--context", "staging"]].concat()).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = machinist(&api, &["status", "--context", "staging"]).await;
    assert_eq!(output.status.code(), Some(64), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_plugin_behaves_like_the_machinist_command() {
    let api = cluster().await;
    let config = api.kubeconfig();
    let with = [("KUBECONFIG", config.as_path())];
    let plugin = "/usr/local/bin/kubectl-machinist";
    let output = called(plugin, &["status", "--node", "worker-1"], &with).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = called(plugin, &["--help"], &with).await;
    assert!(
        out(&output).contains("Usage: kubectl machinist"),
        "{output:?}"
    );
    let root = tempfile::tempdir().unwrap();
    let here = ["status", "--root", root.path().to_str().unwrap()];
    let output = called(plugin, &here, &with).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("status --node NAME, or --pool [NAME]"),
        "{output:?}"
    );
}
