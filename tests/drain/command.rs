//! The commands, against an API server on a socket.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::drain::{
    api::{Api, status},
    support::{Made, made},
};

async fn machinist(api: &Api, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_machinist"));
    command
        .args(arguments)
        .arg("--kubeconfig")
        .arg(api.kubeconfig());
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn node() -> &'static str {
    "/api/v1/nodes/a"
}

fn daemon() -> Made {
    made("proxy").owned_by("DaemonSet", "proxy")
}

async fn with_daemon(pods: impl IntoIterator<Item = Made>) -> Api {
    let api = Api::with(pods.into_iter().chain([daemon()])).await;
    let set = json!({"metadata": {"name": "proxy", "namespace": "shop"}});
    api.put("/apis/apps/v1/namespaces/shop/daemonsets/proxy", set);
    api
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_command_cordons_evicts_reports_and_accepts_kubectl_flags() {
    let api = with_daemon([made("web"), made("lone").bare().local_data()]).await;
    let flags = [
        "drain",
        "a",
        "--force",
        "--ignore-daemonsets=true",
        "--delete-local-data",
        "--grace-period=-1",
        "--timeout=60s",
        "--skip-wait-for-delete-timeout=0",
        "--disable-eviction=false",
        "--chunk-size=500",
        "--dry-run=none",
        "-o",
        "json",
    ];
    let output = machinist(&api, &flags).await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let message: Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!(message["kind"], "Drain");
    assert_eq!(message["nodes"][0]["outcome"], "Drained");
    assert_eq!(message["nodes"][0]["gone"], 2);
    assert_eq!(api.object(node())["spec"]["unschedulable"], true);
    // An operator's cordon carries no mark of the agent.
    assert_eq!(api.object(node())["metadata"]["annotations"], Value::Null);
    assert_eq!(
        api.writes()[0],
        format!("PATCH {}", node()),
        "the cordon comes first"
    );
    assert_eq!(api.requests("POST").len(), 2);
    let text = machinist(&api, &["drain", "a", "--ignore-daemonsets"]).await;
    assert_eq!(out(&text), "node/a drained: 0 pods removed\n");
    assert!(
        err(&text).contains("shop/proxy is managed by a DaemonSet"),
        "{}",
        err(&text)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_selector_is_passed_on_to_the_server() {
    let api = with_daemon([made("web")]).await;
    let flags = ["drain", "a", "--ignore-daemonsets", "--pod-selector"];
    let output = machinist(&api, &[&flags[..], &["app=shop"]].concat()).await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let asked = api.requests("GET /api/v1/pods");
    assert!(asked.len() > 1, "{asked:?}");
    for one in asked {
        assert!(one.query.contains("labelSelector=app%3Dshop"), "{one:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_refusals_are_reported_before_the_node_is_cordoned() {
    let api = with_daemon([made("web"), made("lone").bare().local_data()]).await;
    let output = machinist(&api, &["drain", "a"]).await;
    assert_eq!(output.status.code(), Some(1));
    let message = err(&output);
    for part in [
        "shop/lone",
        "scratch",
        "no controller",
        "shop/proxy is managed by a DaemonSet",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(api.writes(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_dry_run_lists_pods_to_evict_and_writes_nothing() {
    let api = with_daemon([made("web")]).await;
    for flag in ["--dry-run", "--dry-run=client", "--dry-run=true"] {
        let output = machinist(&api, &["drain", flag, "--ignore-daemonsets", "a"]).await;
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        assert!(
            out(&output).contains("pod/shop/web evicted (dry run)"),
            "{}",
            out(&output)
        );
        assert!(
            !out(&output).contains("pod/shop/proxy evicted"),
            "{}",
            out(&output)
        );
    }
    machinist(&api, &["cordon", "--dry-run", "a"]).await;
    assert_eq!(api.writes(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_dry_run_sends_dry_run_evictions_and_reports_refusals() {
    let api = with_daemon([made("web")]).await;
    let details =
        json!({"name": "web", "causes": [{"reason": "DisruptionBudget", "message": "needs 2"}]});
    api.answers("POST", 429, status(429, "TooManyRequests", "no", details));
    let output = machinist(
        &api,
        &["drain", "--dry-run=server", "--ignore-daemonsets", "a"],
    )
    .await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(out(&output).contains("needs 2"), "{}", out(&output));
    for write in api.requests("P") {
        assert!(write.query.contains("dryRun=All"), "{write:?}");
    }
    assert_eq!(api.object(node())["spec"]["unschedulable"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_times_out_names_the_budget_and_keeps_the_cordon() {
    let api = with_daemon([made("web")]).await;
    let details =
        json!({"name": "web", "causes": [{"reason": "DisruptionBudget", "message": "needs 2"}]});
    for _ in 0..9 {
        api.answers(
            "POST",
            429,
            status(429, "TooManyRequests", "no", details.clone()),
        );
    }
    api.put(
        "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/web",
        json!({"metadata": {"namespace": "shop", "name": "web", "generation": 1},
            "spec": {"selector": {}, "maxUnavailable": 0},
            "status": {"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 2,
                "desiredHealthy": 2, "expectedPods": 2}}),
    );
    let flags = ["drain", "--ignore-daemonsets", "--timeout", "1s", "a"];
    let output = machinist(&api, &flags).await;
    assert_eq!(output.status.code(), Some(1));
    let message = err(&output);
    assert!(
        message.contains("can never be evicted: PodDisruptionBudget web (maxUnavailable 0)"),
        "{message}"
    );
    assert!(message.contains("did not finish within 1 s"), "{message}");
    assert_eq!(api.object(node())["spec"]["unschedulable"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn cordon_command_sends_at_most_one_request_and_keep_is_reported() {
    let api = Api::with([]).await;
    let output = machinist(&api, &["cordon", "a"]).await;
    assert_eq!(out(&output), "node/a cordoned\n");
    assert_eq!(
        api.requests("PATCH")[0].body,
        json!({"spec": {"unschedulable": true}})
    );
    let output = machinist(&api, &["cordon", "a"]).await;
    assert_eq!(out(&output), "node/a already cordoned\n");
    assert_eq!(api.requests("PATCH").len(), 1);
    machinist(&api, &["cordon", "--keep", "a"]).await;
    let annotations = &api.object(node())["metadata"]["annotations"];
    assert_eq!(*annotations, json!({"machinist.dev/keep-cordoned": "true"}));
    let output = machinist(&api, &["uncordon", "a"]).await;
    assert_eq!(out(&output), "node/a uncordoned\n");
    // The agent's marks are removed, too, so the next cordon is not attributed to the agent.
    let marks = json!({"machinist.dev/cordoned": null, "machinist.dev/keep-cordoned": null});
    let taken_back = json!({"metadata": {"annotations": marks},
        "spec": {"unschedulable": null}});
    assert_eq!(api.requests("PATCH")[2].body, taken_back);
}

/// The node was uncordoned during an update: the agent's mark is left, and must not make this
/// cordon the agent's.
#[tokio::test(flavor = "multi_thread")]
async fn cordon_command_removes_a_stale_agent_cordon_annotation() {
    let api = Api::with([]).await;
    api.put(
        node(),
        json!({"metadata": {"name": "a", "annotations": {"machinist.dev/cordoned": "update"}},
            "spec": {}}),
    );
    let output = machinist(&api, &["cordon", "a"]).await;
    assert_eq!(out(&output), "node/a cordoned\n");
    let object = api.object(node());
    assert_eq!(object["spec"]["unschedulable"], true);
    assert_eq!(object["metadata"]["annotations"], json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn cordon_during_an_update_explains_how_to_keep_it() {
    let api = Api::with([]).await;
    api.put(
        node(),
        json!({"metadata": {"name": "a", "annotations": {"machinist.dev/cordoned": "x"}},
            "spec": {"unschedulable": true}}),
    );
    let output = machinist(&api, &["cordon", "a"]).await;
    assert!(out(&output).contains("--keep"), "{}", out(&output));
    assert_eq!(api.requests("PATCH").len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_missing_node_argument_no_node_is_changed() {
    let api = Api::with([]).await;
    let output = machinist(&api, &["cordon", "b", "a", "-o", "json"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("Node b"), "{}", err(&output));
    assert_eq!(api.writes(), [""; 0]);
    let output = machinist(&api, &["cordon", "a", "node/a"]).await;
    assert_eq!(out(&output), "node/a cordoned\nnode/a already cordoned\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_selector_without_matching_nodes_is_reported_and_succeeds() {
    let api = Api::with([]).await;
    api.put(
        "/api/v1/nodes",
        json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": []}),
    );
    for command in ["cordon", "drain"] {
        let output = machinist(&api, &[command, "-l", "zone=nowhere"]).await;
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        let printed = err(&output);
        assert!(
            printed.contains("no node has the labels zone=nowhere"),
            "{printed}"
        );
    }
    let output = machinist(&api, &["drain", "a", "--pod-selector", "a b c"]).await;
    assert_eq!(output.status.code(), Some(64));
    let printed = err(&output);
    assert!(
        printed.contains("--pod-selector") && printed.contains("\"a b c\""),
        "{printed}"
    );
    assert_eq!(api.writes(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_errors_such_as_a_zero_grace_period_exit_with_64() {
    let api = Api::with([made("web")]).await;
    for flags in [
        &["drain"][..],
        &["drain", "a", "--grace-period=0"],
        &["drain", "a", "--timeout=soon"],
        &["drain", "a", "-l", "x=y"],
        &["drain", "a", "--dry-run=perhaps"],
    ] {
        let output = machinist(&api, flags).await;
        assert_eq!(
            output.status.code(),
            Some(64),
            "{flags:?}: {}",
            err(&output)
        );
    }
    assert_eq!(api.requests("").len(), 0);
}
