//! `machinist cancel`, against an API server on which the test acts as the node's agent.

use std::{
    process::{Command, Output},
    time::Duration,
};

use serde_json::{Value, json};

use crate::drain::api::Api;

const NODE: &str = "/api/v1/nodes/a";
const DESIRED: &str = "machineconfiguration.openshift.io/desiredConfig";
const CURRENT: &str = "machineconfiguration.openshift.io/currentConfig";

async fn api(annotations: Value) -> Api {
    let api = Api::with([]).await;
    let mut all = json!({DESIRED: "new", CURRENT: "old"});
    for (name, text) in annotations.as_object().unwrap() {
        all[name] = text.clone();
    }
    let metadata = json!({"name": "a", "uid": "1", "resourceVersion": "7", "annotations": all});
    api.put(NODE, json!({"metadata": metadata, "spec": {}}));
    api
}

async fn cancel(api: &Api, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_machinist"));
    command
        .arg("cancel")
        .args(arguments)
        .arg("--kubeconfig")
        .arg(api.kubeconfig());
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

fn exit_and_output(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code();
    (code, text(&output.stdout), text(&output.stderr))
}

fn asked(api: &Api) -> Value {
    api.object(NODE)["metadata"]["annotations"]["machinist.dev/cancel"].clone()
}

/// Answers as the agent does: only after the request.
fn answering(api: &Api, answer: impl Fn(&mut Value) + Send + 'static) {
    let api = api.clone();
    tokio::spawn(async move {
        while asked(&api) != "new" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut node = api.object(NODE);
        answer(&mut node["metadata"]["annotations"]);
        api.put(NODE, node);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_waits_for_the_agents_answer_and_is_not_repeated() {
    let api = api(json!({"machinist.dev/cancel-refused": "new: it was too late"})).await;
    answering(&api, |it| it["machinist.dev/cancelled"] = json!("new"));
    let output = cancel(&api, &["a"]).await;
    let (code, out, err) = exit_and_output(&output);
    assert_eq!(
        (code, out.as_str()),
        (Some(0), "node/a update to new cancelled\n"),
        "{err}"
    );
    let patch = &api.requests("PATCH")[0].body["metadata"];
    assert_eq!(patch["resourceVersion"], "7", "from the observed state");
    assert_eq!(
        patch["annotations"],
        json!({
            "machinist.dev/cancel": "new",
            "machinist.dev/cancelled": null,
            "machinist.dev/cancel-refused": null,
        })
    );
    let output = cancel(&api, &["a", "-o", "json"]).await;
    let answer: Value = serde_json::from_str(&exit_and_output(&output).1).unwrap();
    assert_eq!(
        (&answer["kind"], &answer["nodes"][0]["outcome"]),
        (&json!("Cancel"), &json!("Cancelled"))
    );
    assert_eq!(api.requests("PATCH").len(), 1);
    let output = cancel(&api, &["--undo", "a"]).await;
    assert_eq!(
        exit_and_output(&output).1,
        "node/a cancellation of the update to new revoked\n"
    );
    assert_eq!(asked(&api), Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_is_too_late_reports_why() {
    let api = api(json!({})).await;
    answering(&api, |annotations| {
        annotations["machinist.dev/cancel-refused"] =
            json!("new: its changes are already being applied");
        annotations
            .as_object_mut()
            .unwrap()
            .remove("machinist.dev/cancel");
    });
    let output = cancel(&api, &["a"]).await;
    let (code, out, err) = exit_and_output(&output);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(
        err.contains("cannot cancel the update to new: its changes are already being applied"),
        "{err}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_times_out_when_the_agent_does_not_respond() {
    let api = api(json!({})).await;
    let output = cancel(&api, &["--timeout", "1s", "a"]).await;
    let (code, _, err) = exit_and_output(&output);
    assert_eq!(code, Some(1));
    assert!(err.contains("the request remains on the Node"), "{err}");
    assert_eq!(asked(&api), "new");
    let output = cancel(&api, &["--no-wait", "a"]).await;
    assert_eq!(
        exit_and_output(&output),
        (
            Some(0),
            "node/a requested cancellation of the update to new\n".to_owned(),
            String::new()
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_ignores_an_answer_to_an_earlier_request() {
    // The request was withdrawn, and the agent has not seen that yet.
    let api = api(json!({"machinist.dev/cancelled": "new"})).await;
    let output = cancel(&api, &["--timeout", "1s", "a"]).await;
    let (code, _, err) = exit_and_output(&output);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("the request remains on the Node"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_keeps_waiting_through_an_api_server_outage() {
    let away = |api: &Api| {
        let status = json!({"kind": "Status", "code": 503, "message": "not now"});
        api.answers("GET /api/v1/nodes/a", 503, status);
    };
    let watched = api(json!({})).await;
    let other = watched.clone();
    answering(&watched, move |annotations| {
        away(&other);
        annotations["machinist.dev/cancelled"] = json!("new");
    });
    let output = cancel(&watched, &["a"]).await;
    assert_eq!(
        exit_and_output(&output).1,
        "node/a update to new cancelled\n",
        "{output:?}"
    );

    let lost = api(json!({})).await;
    let other = lost.clone();
    answering(&lost, move |_| (0..100).for_each(|_| away(&other)));
    let output = cancel(&lost, &["--timeout", "2s", "a"]).await;
    let (code, _, err) = exit_and_output(&output);
    assert_eq!(code, Some(1));
    assert!(err.contains("the request remains on the Node"), "{err}");
    assert!(err.contains("not now"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_without_an_update_fails_and_a_dry_run_writes_nothing() {
    let settled = api(json!({CURRENT: "new"})).await;
    let output = cancel(&settled, &["a"]).await;
    assert_eq!(
        (
            exit_and_output(&output).0,
            exit_and_output(&output).1.as_str()
        ),
        (Some(0), "node/a has no update to cancel\n")
    );
    assert_eq!(settled.writes(), [""; 0]);
    let api = api(json!({})).await;
    let output = cancel(&api, &["--dry-run", "a"]).await;
    assert!(exit_and_output(&output).1.ends_with("(dry run)\n"));
    assert_eq!(api.writes(), [""; 0]);
}
