//! The commands that show a pool's rollout: `pool`, `explain --pool` and `estimate`.

use std::{
    fs,
    process::{Child, Command},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    cluster::server::{InjectedFailure, Server},
    fleet::{
        assert_contains,
        cluster::{GROUP, NEW, OLD, ago},
        err, json_of, out,
        pool_world::{
            LEASE, annotate, grant, machinist, node, node_path, pool_path, put_lease, record,
            rollout, world,
        },
    },
};

pub(crate) async fn page(server: &Server, arguments: &[&str]) -> String {
    let output = machinist(server, arguments).await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    out(&output)
}

/// The words of the line that begins with this one.
#[track_caller]
fn row<'p>(page: &'p str, first: &str) -> Vec<&'p str> {
    let mut rows = page
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = rows.find(|words| words.first() == Some(&first));
    found.unwrap_or_else(|| panic!("{first}:\n{page}"))
}

/// The pool updates `w2`, whose drain a pod blocks.
async fn updating() -> Server {
    let server = world().await;
    rollout(&server, "worker", |state| state.started = Some(ago(1, 0)));
    let granted = grant("g1", "worker", "w2");
    record(&server, "worker", std::slice::from_ref(&granted));
    let path = node_path("w2");
    annotate(
        &server,
        &path,
        "machinist.dev/grant",
        &granted.to_annotation(),
    );
    annotate(&server, &path, "machinist.dev/grant-acknowledged", "g1");
    annotate(&server, &path, "machinist.dev/cordoned", "update");
    annotate(
        &server,
        &path,
        "machinist.dev/blocked-by",
        "shop/db-0 (DrainBlockedByBudget)",
    );
    annotate(&server, &path, &format!("{GROUP}/desiredConfig"), NEW);
    annotate(&server, &path, &format!("{GROUP}/state"), "Working");
    server.edit(&path, |node| node["spec"]["unschedulable"] = json!(true));
    let progress = json!({"kind": "MachineConfigNode", "apiVersion": format!("{GROUP}/v1"),
        "metadata": {"name": "w2"}, "status": {"conditions": [
            {"type": "Drained", "status": "Unknown", "reason": "Drained", "message": "shop/db-0",
                "lastTransitionTime": ago(0, 28)}]}});
    server.put(&format!("/apis/{GROUP}/v1/machineconfignodes/w2"), progress);
    server
}

fn condition(server: &Server, kind: &str, reason: &str, message: &str) {
    server.edit(&pool_path("worker"), |pool| {
        let one = json!({"type": kind, "status": "True", "reason": reason, "message": message});
        match pool["status"]["conditions"].as_array_mut() {
            Some(all) => all.push(one),
            None => pool["status"] = json!({"conditions": [one]}),
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_is_shown_with_each_node_and_its_grant() {
    let server = updating().await;
    let shown = page(&server, &["pool", "worker"]).await;
    let head = format!("worker: 1 of 3 nodes on {NEW}\n");
    assert!(shown.starts_with(&head), "{shown}");
    assert_contains(
        &shown,
        &[
            "controller controller-1, renewed its Lease",
            "limit      1\n",
            "next       w3\n",
        ],
    );
    assert_eq!(
        row(&shown, "w1"),
        ["w1", "Done", "1b1b1b1b", "-", "22h", "-"]
    );
    let expected = [
        "w2",
        "Working",
        "0a0a0a0a",
        "→",
        "1b1b1b1b",
        "acknowledged,",
        "28m",
        "28m",
        "Drained:",
        "shop/db-0",
        "(DrainBlockedByBudget)",
    ];
    assert_eq!(row(&shown, "w2"), expected);
    let document = json_of(&machinist(&server, &["pool", "worker", "-o", "json"]).await);
    assert_eq!(document["kind"], "PoolProgress");
    assert_eq!(document["controller"]["state"], "Active");
    let pool = &document["pools"][0];
    assert_eq!(
        (&pool["updated"], &pool["machines"], &pool["maxUnavailable"]),
        (&json!(1), &json!(3), &json!(1))
    );
    assert_eq!(pool["target"], NEW);
    let node = &pool["nodes"][1];
    assert_eq!(
        (&node["name"], &node["phase"]),
        (&json!("w2"), &json!("Drained"))
    );
    assert_eq!(node["grant"]["id"], "g1");
    assert_eq!(node["grant"]["state"], "Acknowledged");
    assert_eq!(node["grant"]["recordedOn"], "worker");
    assert_eq!(node["blockedBy"][0]["reason"], "DrainBlockedByBudget");
    assert_eq!(server.writes().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn soak_time_skipped_nodes_and_refused_configs_are_shown() {
    let server = updating().await;
    let soaking = json!({"type": "RolloutHeld", "status": "False", "reason": "CanarySoaking",
        "message": "the canary runs the new config until 12:00"});
    let refused = json!({"type": "RenderDegraded", "status": "True", "reason": "KeyUnknown",
        "message": "10-a: no such key"});
    server.edit(&pool_path("worker"), |pool| {
        pool["status"]["conditions"] = json!([soaking, refused]);
    });
    annotate(&server, &node_path("w3"), "machinist.dev/skip-rollout", NEW);
    let shown = page(&server, &["pool", "worker"]).await;
    let text = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_contains(
        &text,
        &["held CanarySoaking: the canary runs the new config until 12:00"],
    );
    assert!(row(&shown, "w3").contains(&"skipped"), "{shown}");
    let shown = page(&server, &["pool"]).await;
    let words = row(&shown, "worker").join(" ");
    assert_eq!(
        words,
        "worker 1b1b1b1b 1/3 1 CanarySoaking, 1 node blocked, RenderDegraded"
    );
    let shown = page(&server, &["explain", "--node", "w3"]).await;
    assert_contains(
        &shown,
        &[
            "w3 is skipped in the rollout of",
            "machinist skip w3 --undo",
        ],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn all_pools_are_listed_with_their_progress_and_state() {
    let server = updating().await;
    let shown = page(&server, &["pool"]).await;
    assert_eq!(
        row(&shown, "NAME"),
        ["NAME", "TARGET", "UPDATED", "GRANTS", "STATE"]
    );
    assert_eq!(
        row(&shown, "worker"),
        [
            "worker",
            "1b1b1b1b",
            "1/3",
            "1",
            "Updating,",
            "1",
            "node",
            "blocked"
        ]
    );
    annotate(
        &server,
        &pool_path("worker"),
        "machinist.dev/pinned-config",
        OLD,
    );
    condition(&server, "RolloutHeld", "GateClosed", "a gate");
    server.remove(LEASE);
    let shown = page(&server, &["pool"]).await;
    let words = row(&shown, "worker").join(" ");
    assert_eq!(
        words,
        "worker 0a0a0a0a 1/3 1 GateClosed, pinned, 1 node blocked"
    );
    assert_contains(
        &shown,
        &["controller: none holds the Lease: no controller acts"],
    );
}

/// A running command, which ends with its test.
struct RunningCommand(Child);

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_pool_is_printed_again_when_it_changes() {
    let server = updating().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stdout");
    let child = Command::new(env!("CARGO_BIN_EXE_machinist"))
        .args(["pool", "worker", "--watch"])
        .env_clear()
        .env("KUBECONFIG", server.kubeconfig())
        .stdout(fs::File::create(&file).unwrap())
        .spawn()
        .unwrap();
    let mut child = RunningCommand(child);
    let heads = || {
        let printed = fs::read_to_string(&file).unwrap();
        let heads = printed.lines().filter(|line| line.starts_with("worker: "));
        heads.map(|line| line[..13].to_owned()).collect::<Vec<_>>()
    };
    server.until("the page", |_| !heads().is_empty()).await;
    let reads = |it: &Server, path: &str| it.requests_starting(&format!("GET {path}")).len();
    server.until("the watches", |it| it.watches() == 3).await;
    let nodes = reads(&server, "/api/v1/nodes");
    // A renewal of the Lease alone is no change.
    put_lease(&server, jiff::Timestamp::now());
    let lease = "/apis/coordination.k8s.io/v1/namespaces/";
    let before = reads(&server, lease);
    server
        .until("the Lease is read again", |it| reads(it, lease) > before)
        .await;
    assert_eq!(heads(), ["worker: 1 of "]);
    server.put(&node_path("w2"), node("w2", "worker", NEW));
    server.until("another page", |_| heads().len() > 1).await;
    assert_eq!(heads(), ["worker: 1 of ", "worker: 2 of "]);
    // Events bring the changes, and nothing is listed again.
    assert_eq!(reads(&server, "/api/v1/nodes"), nodes);
    let pid = Pid::from_raw(child.0.id().try_into().unwrap());
    kill(pid, Signal::SIGINT).unwrap();
    let ended = tokio::task::spawn_blocking(move || child.0.wait().unwrap());
    assert_eq!(ended.await.unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_names_what_holds_a_pool_and_what_each_node_waits_for() {
    let server = updating().await;
    let shown = page(&server, &["explain", "--pool", "worker"]).await;
    let text = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_contains(
        &text,
        &[
            "w2 is Working on 0a0a0a0a → 1b1b1b1b; for 28m; phase Drained; grant g1: acknowledged, 28m; blocked by shop/db-0 (DrainBlockedByBudget) [DrainBlockedByBudget]",
            "waiting for a grant: 1 node: w3; next: w3",
        ],
    );
    let document =
        json_of(&machinist(&server, &["explain", "--pool", "worker", "-o", "json"]).await);
    assert_eq!(document["kind"], "PoolExplanation");
    let names: Vec<&Value> = document["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["name"])
        .collect();
    assert_eq!(names, ["w2", "w3"]);
    assert_eq!(document["findings"][0]["code"], "DrainBlockedByBudget");
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_published_conditions_and_the_remedy() {
    let server = world().await;
    condition(
        &server,
        "RolloutHeld",
        "CanaryFailed",
        "1 node failed on it (w2)",
    );
    condition(
        &server,
        "RenderDegraded",
        "RenderFailed",
        "MachineConfig 50-a: spec.config",
    );
    condition(
        &server,
        "NotCarriedOut",
        "FieldsNotSupported",
        "spec.osImageStream",
    );
    let path = pool_path("worker");
    annotate(&server, &path, "machinist.dev/pinned-config", OLD);
    annotate(&server, &path, "machinist.dev/pause-reason", "disk");
    server.edit(&path, |pool| pool["spec"]["paused"] = json!(true));
    let call = ["explain", "--pool", "worker", "-o", "json"];
    let document = json_of(&machinist(&server, &call).await);
    let field = |at: usize, name: &str| document["findings"][at][name].as_str().unwrap().to_owned();
    let codes: Vec<_> = (0..5).map(|at| field(at, "code")).collect();
    let expected = [
        "CanaryFailed",
        "Paused",
        "Pinned",
        "RenderDegraded",
        "NotCarriedOut",
    ];
    assert_eq!(codes, expected);
    assert_eq!(
        field(0, "message"),
        "the rollout is held: 1 node failed on it (w2)"
    );
    assert_eq!(field(1, "message"), "pool worker is paused: disk");
    assert_contains(&field(3, "message"), &["MachineConfig 50-a: spec.config"]);
    let remedies = [
        "machinist resume --pool worker",
        "machinist rollback --pool worker",
    ];
    assert_contains(&field(0, "advice"), &remedies);
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_reports_whether_a_controller_acts() {
    let server = world().await;
    let first = async || {
        let output = machinist(&server, &["explain", "--pool", "worker", "-o", "json"]).await;
        let document = json_of(&output);
        let message = document["findings"][0]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        (
            document["controller"]["state"].as_str().unwrap().to_owned(),
            message,
        )
    };
    let (state, message) = first().await;
    assert_eq!(state, "Active");
    assert!(
        message.contains("as the objects are now, the rollout is held: 2 nodes"),
        "{message}"
    );
    put_lease(&server, ago(0, 4));
    let (state, message) = first().await;
    assert_eq!(state, "Silent");
    assert!(
        message.contains("controller-1 has not renewed its Lease for 4m"),
        "{message}"
    );
    server.trouble(
        &format!("GET {LEASE}"),
        InjectedFailure::Code(403, "Forbidden"),
    );
    assert_eq!(first().await.0, "Unknown");
    server.remove(LEASE);
    let (state, message) = first().await;
    assert_eq!(state, "Absent");
    assert!(message.contains("no process holds the Lease"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_names_silent_agents_and_grants_of_missing_nodes() {
    let server = world().await;
    rollout(&server, "worker", |_| {});
    record(&server, "worker", &[grant("g9", "worker", "w9")]);
    server.edit(&node_path("w3"), |node| {
        node["status"]["conditions"][1]["lastHeartbeatTime"] = json!(ago(0, 40));
    });
    let shown = page(&server, &["explain", "--pool", "worker"]).await;
    let text = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_contains(
        &text,
        &[
            "its agent has not reported for 40m",
            "Node w9 does not exist, and grant g9 for it is 28m old: it holds its slot",
            "machinist release-grant w9",
        ],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_of_an_updated_pool_states_that_nothing_waits() {
    let server = world().await;
    for name in ["w2", "w3"] {
        server.put(&node_path(name), node(name, "worker", NEW));
    }
    let shown = page(&server, &["explain", "--pool", "worker"]).await;
    let text = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_contains(&text, &["- pool worker is up to date: 3 of 3 nodes on"]);
    let both = ["explain", "--pool", "worker", "--node", "w1"];
    assert_eq!(machinist(&server, &both).await.status.code(), Some(64));
}
