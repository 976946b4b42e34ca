//! The merged disruption policies in the status of MachineConfiguration `cluster`.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    harness::Lab,
    objects::{self, GRANTOR, WORKER, config_path},
};
use crate::cluster::server::InjectedFailure;

const KIND: &str = "/apis/operator.openshift.io/v1/machineconfigurations";
const CLUSTER: &str = "/apis/operator.openshift.io/v1/machineconfigurations/cluster";
const STATUS: &str = "PATCH /apis/operator.openshift.io/v1/machineconfigurations/cluster/status";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

fn object(generation: i64, policy: &Value) -> Value {
    json!({
        "apiVersion": "operator.openshift.io/v1", "kind": "MachineConfiguration",
        "metadata": {"name": "cluster", "uid": "uid-cluster", "generation": generation},
        "spec": {"nodeDisruptionPolicy": policy},
    })
}

fn motd(action: &str) -> Value {
    json!({"files": [{"path": "/etc/motd", "actions": [{"type": action}]}]})
}

/// A user's change of the spec.
fn change(lab: &Lab, policy: &Value) {
    lab.server.edit(CLUSTER, |found| {
        let generation = found["metadata"]["generation"].as_i64().unwrap();
        found["metadata"]["generation"] = json!(generation + 1);
        found["spec"]["nodeDisruptionPolicy"] = policy.clone();
    });
}

fn observed(lab: &Lab) -> Option<i64> {
    lab.server.object(CLUSTER)["status"]["observedGeneration"].as_i64()
}

/// The actions of a path in the merged policies.
fn merged(lab: &Lab, path: &str) -> Value {
    let object = lab.server.object(CLUSTER);
    let files = &object["status"]["nodeDisruptionPolicyStatus"]["clusterPolicies"]["files"];
    let found = files.as_array().unwrap().iter();
    let mut found = found.filter(|entry| entry["path"] == path);
    found.next().map_or(Value::Null, |it| it["actions"].clone())
}

fn writes(lab: &Lab) -> usize {
    lab.server.requests_starting(STATUS).len()
}

/// The notes of the events about the object.
fn events(lab: &Lab) -> Vec<String> {
    let paths = lab.server.below(EVENTS);
    let events = paths.iter().map(|path| lab.server.object(path));
    let about = events.filter(|event| {
        event["reason"] == "PoliciesInvalid"
            && event["regarding"]["kind"] == "MachineConfiguration"
            && event["regarding"]["uid"] == "uid-cluster"
    });
    about
        .map(|event| event["note"].as_str().unwrap().to_owned())
        .collect()
}

async fn lab_with(policy: &Value) -> Lab {
    let lab = Lab::with_nodes(&["a"]).await;
    lab.server.serve_collections(&[KIND]);
    lab.server.put(CLUSTER, object(1, policy));
    lab
}

#[tokio::test(start_paused = true)]
async fn the_policies_of_the_user_are_merged_once_and_again_only_after_a_change() {
    let lab = lab_with(&motd("None")).await;
    lab.server.edit(CLUSTER, |found| {
        found["status"] = json!({"conditions": [{"type": "Foreign", "status": "True"}]});
    });
    let _running = lab.start("one").await;
    lab.until("the status", |lab| observed(lab) == Some(1))
        .await;
    assert_eq!(merged(&lab, "/etc/motd"), json!([{"type": "None"}]));
    let special = json!([{"type": "Special"}]);
    assert_eq!(merged(&lab, "/etc/containers/registries.conf"), special);
    let status = &lab.server.object(CLUSTER)["status"];
    assert_eq!(status["conditions"][0]["type"], "Foreign");
    lab.pass(Duration::from_secs(700)).await;
    assert_eq!(writes(&lab), 1, "nothing has changed");

    // A change of other fields of the spec has a new generation and the same policies.
    change(&lab, &motd("None"));
    lab.until("the generation", |lab| observed(lab) == Some(2))
        .await;
    change(&lab, &motd("Reboot"));
    lab.until("the change", |lab| observed(lab) == Some(3))
        .await;
    assert_eq!(merged(&lab, "/etc/motd"), json!([{"type": "Reboot"}]));
    lab.server.edit(CLUSTER, |found| {
        found["metadata"]["labels"] = json!({"a": "b"});
    });
    lab.pass(Duration::from_secs(60)).await;
    assert_eq!(writes(&lab), 3, "a label changes no policy");
    let bodies = lab.server.requests_starting(STATUS);
    let is_tested = |body: &Value| body["metadata"]["resourceVersion"].is_string();
    assert!(bodies.iter().all(|it| is_tested(&it.body)), "{bodies:#?}");
}

#[tokio::test(start_paused = true)]
async fn an_invalid_spec_is_named_and_the_last_valid_status_remains() {
    let lab = lab_with(&motd("None")).await;
    let _running = lab.start("one").await;
    lab.until("the status", |lab| observed(lab) == Some(1))
        .await;
    let before = lab.server.object(CLUSTER)["status"].clone();
    let both = json!([{"type": "Reboot"}, {"type": "Drain"}]);
    change(
        &lab,
        &json!({"files": [{"path": "/etc/motd", "actions": both}]}),
    );
    let place = "spec.nodeDisruptionPolicy.files[0].actions: ";
    lab.until("the event", |lab| {
        events(lab).iter().any(|note| note.contains(place))
    })
    .await;
    let expected = "expected one action, or neither of the two";
    assert!(events(&lab)[0].contains(expected), "{:?}", events(&lab));
    lab.pass(Duration::from_secs(120)).await;
    assert_eq!(lab.server.object(CLUSTER)["status"], before);
    assert_eq!(events(&lab).len(), 1);

    change(&lab, &motd("Drain"));
    lab.until("the correction", |lab| observed(lab) == Some(3))
        .await;
    assert_eq!(merged(&lab, "/etc/motd"), json!([{"type": "Drain"}]));
}

#[tokio::test(start_paused = true)]
async fn policies_are_not_merged_while_openshifts_controllers_run() {
    let lab = lab_with(&motd("None")).await;
    let grantor = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "ControllerConfig",
        "metadata": {"name": "machine-config-controller"},
    });
    lab.server.put(GRANTOR, grantor);
    let _running = lab.start("one").await;
    lab.until("the hold", |lab| lab.is("RolloutHeld", "OtherGrantor"))
        .await;
    change(&lab, &motd("Reboot"));
    lab.pass(Duration::from_secs(60)).await;
    assert_eq!(writes(&lab), 0);
    lab.server.remove(GRANTOR);
    lab.until("the status", |lab| observed(lab) == Some(2))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_missing_or_forbidden_stops_nothing_and_is_looked_for_again() {
    let lab = Lab::with_nodes(&["a"]).await;
    for (code, reason) in [(404, "NotFound"), (403, "Forbidden")] {
        lab.server
            .trouble(&format!("GET {KIND}"), InjectedFailure::Code(code, reason));
    }
    let _running = lab.start("one").await;
    lab.until("a placed grant", |lab| lab.placed("a").is_some())
        .await;
    lab.pass(Duration::from_secs(50)).await;
    let reads = |lab: &Lab| lab.server.requests_starting(&format!("GET {KIND}")).len();
    assert_eq!(reads(&lab), 1, "no repetition before a minute");
    lab.server.put(CLUSTER, object(1, &motd("None")));
    lab.pass(Duration::from_secs(60)).await;
    assert!(reads(&lab) <= 4, "{}", reads(&lab));
    lab.pass(Duration::from_secs(120)).await;
    assert_eq!(observed(&lab), Some(1));
    assert_eq!(merged(&lab, "/etc/motd"), json!([{"type": "None"}]));
}

#[tokio::test(start_paused = true)]
async fn a_status_that_cannot_be_written_stops_no_rollout_and_is_written_later() {
    let lab = lab_with(&motd("None")).await;
    for (code, reason) in [(403, "Forbidden"), (409, "Conflict")] {
        lab.server
            .trouble(STATUS, InjectedFailure::Code(code, reason));
    }
    let _running = lab.start("one").await;
    lab.until("a placed grant", |lab| lab.placed("a").is_some())
        .await;
    lab.pass(Duration::from_secs(30)).await;
    assert_eq!((writes(&lab), observed(&lab)), (3, Some(1)));
    assert_ne!(lab.target(), objects::OLD);
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_window_too_short_for_a_reboot_is_used_by_an_update_without_one() {
    for (action, is_granted) in [("Reboot", false), ("None", true)] {
        let files = json!([{"path": "/etc", "actions": [{"type": action}]}]);
        let lab = lab_with(&json!({"files": files})).await;
        let old = objects::rendered(objects::OLD, "2026-10-01T00:00:00Z");
        lab.server.put(&config_path(objects::OLD), old);
        let windows = json!({"timeZone": "UTC", "windows": [
            {"days": ["Thu"], "start": "23:52", "duration": "20m"}]});
        lab.server.edit(WORKER, |pool| {
            pool["metadata"]["annotations"]["machinist.dev/windows"] = json!(windows.to_string());
        });
        let _running = lab.start("one").await;
        match is_granted {
            true => {
                lab.until("a placed grant", |lab| lab.placed("a").is_some())
                    .await;
            }
            false => {
                lab.until("the hold", |lab| lab.is("RolloutHeld", "OutsideWindow"))
                    .await;
                lab.pass(Duration::from_secs(60)).await;
                assert!(lab.placed("a").is_none());
            }
        }
    }
}
