//! The agent's fields on the Node: written when they change, restored when they vanish, without
//! touching other fields.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use machinist_base::{backoff::Backoff, clock::Clock};
use machinist_cluster::{
    events::{ClusterEvent, Events},
    node::{DesiredCondition, DesiredNodeStatus, NodeFitness, OwnNode},
    node_writer::{WriteRate, maintain_node},
};
use machinist_kube_api::{EventReason, Taint};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    node::{NODE, following, node, with_node},
    server::{InjectedFailure, Server},
};

const STATE: &str = "machineconfiguration.openshift.io/state";
const REASON: &str = "machineconfiguration.openshift.io/reason";

/// Milliseconds where the agent uses seconds and minutes.
const QUICK: WriteRate = WriteRate {
    heartbeat: Duration::from_secs(3600),
    gap: Duration::from_millis(1),
    words: Duration::from_millis(1),
    retry: Backoff::new(Duration::from_millis(20), Duration::from_millis(100)),
};

fn notice(state: &str, ready: bool) -> DesiredNodeStatus {
    DesiredNodeStatus {
        annotations: BTreeMap::from([
            (STATE, Some(state.to_owned())),
            (REASON, Some(String::new())),
        ]),
        labels: BTreeMap::new(),
        taints: Vec::new(),
        stand_back: false,
        fitness: Some(NodeFitness {
            uid: "first".to_owned(),
            fit: ready,
        }),
        conditions: vec![
            condition_of("machinist.dev/Ready", ready),
            condition_of("machinist.dev/DrainInProgress", !ready),
        ],
    }
}

fn condition_of(kind: &'static str, is: bool) -> DesiredCondition {
    DesiredCondition {
        kind,
        status: if is { "True" } else { "False" },
        reason: match is {
            true => "Ok".to_owned(),
            false => "UpdateInProgress".to_owned(),
        },
        message: "the gates".to_owned(),
        names: Vec::new(),
    }
}

struct Kept {
    server: Server,
    notices: watch::Sender<Option<DesiredNodeStatus>>,
    events: mpsc::Receiver<ClusterEvent>,
    _own: OwnNode,
    _tasks: (DropGuard, DropGuard),
}

async fn kept(first: DesiredNodeStatus, pace: WriteRate) -> Kept {
    let (server, own) = with_node().await;
    keeping(server, own, first, pace)
}

fn keeping(server: Server, own: OwnNode, first: DesiredNodeStatus, pace: WriteRate) -> Kept {
    let (notices, received) = watch::channel(Some(first));
    let stop = CancellationToken::new();
    let clock = Clock::from_fn(|| "2026-11-21T22:00:00.5Z".parse::<Timestamp>().unwrap());
    let (tell, events) = Events::new();
    tokio::spawn(maintain_node(
        own.clone(),
        received,
        tell,
        clock,
        pace,
        stop.clone(),
    ));
    Kept {
        server,
        notices,
        events,
        _tasks: (following(&own), stop.drop_guard()),
        _own: own,
    }
}

fn condition(node: &Value, kind: &str) -> Value {
    let all = node["status"]["conditions"].as_array().unwrap();
    let found = all.iter().find(|it| it["type"] == kind);
    found.cloned().unwrap_or_default()
}

fn has_condition(server: &Server, state: &str, status: &str) -> bool {
    let node = server.object(NODE);
    node["metadata"]["annotations"][STATE] == state
        && condition(&node, "machinist.dev/Ready")["status"] == status
}

fn has_taint(server: &Server) -> bool {
    let node = server.object(NODE);
    let taints = node["spec"]["taints"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    taints
        .iter()
        .any(|it| it["key"] == "machinist.dev/not-ready")
}

#[tokio::test]
async fn changed_node_status_is_written_once_and_foreign_fields_kept() {
    let kept = kept(notice("Working", false), QUICK).await;
    let server = &kept.server;
    let written = |server: &Server| has_condition(server, "Working", "False") && has_taint(server);
    server.until("everything is written", written).await;
    let now = server.object(NODE);
    let taints = now["spec"]["taints"].as_array().unwrap();
    assert_eq!(
        json!(taints[..2]),
        node()["spec"]["taints"],
        "with every field"
    );
    assert_eq!(condition(&now, "Ready"), condition(&node(), "Ready"));
    assert_eq!(
        condition(&now, "KernelDeadlock"),
        condition(&node(), "KernelDeadlock")
    );
    let desired = "machineconfiguration.openshift.io/desiredConfig";
    assert_eq!(now["metadata"]["annotations"][desired], "rendered-worker-1");
    let ours = condition(&now, "machinist.dev/Ready");
    assert_eq!(ours["reason"], "UpdateInProgress");
    assert_eq!(ours["lastTransitionTime"], "2026-11-21T22:00:00Z");
    let before = server.writes().len();
    assert_eq!(
        before,
        3,
        "annotations, taint, condition: {:#?}",
        server.writes()
    );

    kept.notices.send_replace(Some(notice("Done", true)));
    let done = |server: &Server| has_condition(server, "Done", "True") && !has_taint(server);
    server.until("the change is written", done).await;
    let now = server.object(NODE);
    assert_eq!(now["spec"]["taints"], node()["spec"]["taints"]);
    assert_eq!(server.writes().len(), before + 3);
    // Neither an equal notice nor the kubelet's heartbeat causes a write.
    kept.notices.send_replace(Some(notice("Done", true)));
    server.edit(NODE, |node| {
        node["status"]["conditions"][0]["lastHeartbeatTime"] = json!("2026-11-21T20:05:00Z");
    });
    kept.notices.send_replace(Some(notice("Working", true)));
    server
        .until("the next change", |server| {
            has_condition(server, "Working", "True")
        })
        .await;
    assert_eq!(server.writes().len(), before + 4, "one annotation alone");
}

#[tokio::test]
async fn removed_node_status_is_restored_also_on_a_reregistered_node() {
    const LABEL: &str = "remediation.medik8s.io/exclude-from-remediation";
    let first = DesiredNodeStatus {
        stand_back: true,
        ..notice("Done", true)
    };
    let kept = kept(first, QUICK).await;
    let server = &kept.server;
    let written = |server: &Server| {
        let node = server.object(NODE);
        has_condition(server, "Done", "True")
            && condition(&node, "machinist.dev/DrainInProgress")["status"] == "False"
            && node["metadata"]["labels"][LABEL] == "true"
    };
    server.until("it is written", written).await;
    server.edit(NODE, |node| {
        node["metadata"]["annotations"] = json!({});
        node["metadata"]["labels"] = json!({});
        node["status"]["conditions"] = json!([]);
    });
    server.until("restored", written).await;

    server.remove(NODE);
    let mut again = node();
    again["metadata"]["uid"] = json!("second");
    server.put(NODE, again);
    server.until("written to the new Node", written).await;
    let last = server.writes().pop().unwrap();
    assert!(last.what.starts_with("PATCH"), "nothing creates a Node");
}

/// The gates may still be those of the deleted Node when the kubelet registers the new one.
#[tokio::test]
async fn a_reregistered_node_is_tainted_first_until_its_own_gates_are_open() {
    let kept = kept(notice("Done", true), QUICK).await;
    let server = &kept.server;
    let done = |server: &Server| has_condition(server, "Done", "True");
    server.until("everything is written", done).await;
    assert!(!has_taint(server), "the first Node is fit");

    let before = server.writes().len();
    server.remove(NODE);
    let mut again = node();
    again["metadata"]["uid"] = json!("second");
    server.put(NODE, again);
    server.until("written to the new Node", done).await;
    assert!(has_taint(server), "these gates are of the first Node");
    let first = server.writes()[before].body.to_string();
    assert!(first.contains("machinist.dev/not-ready"), "{first}");

    let mut fit = notice("Done", true);
    fit.fitness.as_mut().unwrap().uid = "second".to_owned();
    kept.notices.send_replace(Some(fit));
    server.until("no taint", |server| !has_taint(server)).await;
}

#[tokio::test]
async fn after_an_outage_the_latest_desired_status_is_written() {
    let (server, own) = with_node().await;
    for _ in 0..3 {
        server.trouble("PATCH", InjectedFailure::Code(503, "ServiceUnavailable"));
        server.trouble("PATCH", InjectedFailure::Cut);
    }
    let first = DesiredNodeStatus {
        fitness: None,
        ..notice("Working", false)
    };
    let kept = keeping(server, own, first, QUICK);
    kept.server
        .until("two attempts failed", |it| it.writes().len() >= 2)
        .await;
    kept.notices.send_replace(Some(notice("Done", true)));
    kept.server.stop_failing();
    let done = |server: &Server| has_condition(server, "Done", "True");
    kept.server.until("the last desired state", done).await;
    let tried = kept.server.writes();
    let first = tried[0].body.pointer("/metadata/annotations").unwrap();
    assert_eq!(first[STATE], "Working");
    let stale = tried
        .iter()
        .rev()
        .take(2)
        .any(|it| it.body.to_string().contains("Working"));
    assert!(!stale, "{tried:#?}");
}

#[tokio::test]
async fn a_conflicting_taint_patch_is_retried_after_a_read() {
    let (server, own) = with_node().await;
    // The first write is the taint's.
    server.trouble(
        "PATCH",
        InjectedFailure::Meanwhile(|node| {
            let more = json!({"key": "example.com/more", "effect": "NoSchedule"});
            node["spec"]["taints"].as_array_mut().unwrap().push(more);
        }),
    );
    let kept = keeping(server, own, notice("Done", false), QUICK);
    kept.server.until("the taint", has_taint).await;
    let taints = kept.server.object(NODE)["spec"]["taints"].clone();
    let keys: Vec<_> = taints
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["key"])
        .collect();
    let expected = [
        "node-role.kubernetes.io/master",
        "example.com/new",
        "example.com/more",
        "machinist.dev/not-ready",
    ];
    assert_eq!(keys, expected);
}

#[tokio::test]
async fn an_unchanged_condition_is_refreshed_by_heartbeat() {
    let pace = WriteRate {
        heartbeat: Duration::from_millis(150),
        ..QUICK
    };
    let kept = kept(notice("Done", true), pace).await;
    let began = tokio::time::Instant::now();
    let beats = |it: &Server| it.requests_starting("PATCH /api/v1/nodes/a/status").len();
    kept.server
        .until("five conditions", |it| beats(it) >= 5)
        .await;
    assert!(began.elapsed() >= Duration::from_millis(4 * 150));
    let others = kept.server.writes().len() - beats(&kept.server);
    assert_eq!(others, 1, "nothing else is repeated");
    let hourly = 3600.0 / WriteRate::default().heartbeat.as_secs_f64();
    assert!(hourly <= 15.0, "{hourly} writes in an idle hour");
}

#[tokio::test]
async fn keys_of_an_earlier_version_are_removed_and_operators_requests_kept() {
    let (server, own) = with_node().await;
    server.edit(NODE, |node| {
        node["metadata"]["labels"]["machinist.dev/old"] = json!("x");
        let notes = &mut node["metadata"]["annotations"];
        notes["machinist.dev/blocked-by"] = json!("shop/web-0 (budget)");
        notes["machinist.dev/keep-cordoned"] = json!("");
        notes["machinist.dev/cordoned"] = json!("update");
        node["status"]["conditions"]
            .as_array_mut()
            .unwrap()
            .push(json!({"type": "machinist.dev/Old", "status": "True"}));
    });
    let kept = keeping(server, own, notice("Done", true), QUICK);
    let swept = |server: &Server| {
        has_condition(server, "Done", "True")
            && condition(&server.object(NODE), "machinist.dev/Old").is_null()
    };
    kept.server.until("the old condition is gone", swept).await;
    let now = kept.server.object(NODE);
    assert_eq!(now["metadata"]["labels"], node()["metadata"]["labels"]);
    let notes = now["metadata"]["annotations"].as_object().unwrap();
    assert!(!notes.contains_key("machinist.dev/blocked-by"));
    // The operator's request, and the mark without which the agent would not lift its own cordon.
    assert!(notes.contains_key("machinist.dev/keep-cordoned"));
    assert!(notes.contains_key("machinist.dev/cordoned"));
}

#[tokio::test]
async fn changed_names_in_a_condition_are_written_at_once_and_counts_rate_limited() {
    let named = |name: &str, message: &str| {
        let mut notice = notice("Working", false);
        (notice.conditions[0].names, notice.conditions[0].message) =
            (vec![name.to_owned()], message.to_owned());
        notice
    };
    let pace = WriteRate {
        words: Duration::from_secs(3600),
        ..QUICK
    };
    let kept = kept(named("a", "a waits, 1 of 3"), pace).await;
    let server = &kept.server;
    let has_message = |server: &Server, message: &str| {
        condition(&server.object(NODE), "machinist.dev/Ready")["message"] == message
    };
    let first = |server: &Server| has_message(server, "a waits, 1 of 3");
    server.until("which pod it names", first).await;
    kept.notices
        .send_replace(Some(named("a", "a waits, 2 of 3")));
    kept.notices.send_replace(Some(named("b", "b waits")));
    server
        .until("another name", |server| has_message(server, "b waits"))
        .await;
    let before = server.writes().len();
    kept.notices
        .send_replace(Some(named("b", "b is still waiting")));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(server.writes().len(), before, "{:#?}", server.writes());
}

#[tokio::test]
async fn remediation_exclusion_label_is_set_and_removed_only_if_ours() {
    const LABEL: &str = "remediation.medik8s.io/exclude-from-remediation";
    let standing = |state: &str, stand_back| DesiredNodeStatus {
        stand_back,
        ..notice(state, true)
    };
    let kept = kept(standing("Working", true), QUICK).await;
    let label = |server: &Server| server.object(NODE)["metadata"]["labels"][LABEL].clone();
    let server = &kept.server;
    server.until("the label", |it| label(it) == "true").await;
    kept.notices.send_replace(Some(standing("Done", false)));
    server.until("no label", |it| label(it).is_null()).await;
    let notes = server.object(NODE)["metadata"]["annotations"].clone();
    assert!(
        notes
            .get("machinist.dev/owns-remediation-exclusion")
            .is_none(),
        "{notes}"
    );

    // Maintenance by another component.
    server.edit(NODE, |node| {
        node["metadata"]["labels"][LABEL] = json!("true")
    });
    kept.notices.send_replace(Some(standing("Working", true)));
    let state = |it: &Server, state: &str| has_condition(it, state, "True");
    server.until("working", |it| state(it, "Working")).await;
    kept.notices.send_replace(Some(standing("Done", false)));
    server.until("done", |it| state(it, "Done")).await;
    assert_eq!(label(server), "true");
}

#[tokio::test]
async fn the_former_remediation_ownership_annotation_is_migrated_and_removed() {
    const LABEL: &str = "remediation.medik8s.io/exclude-from-remediation";
    let (former, mark) = (
        "machinist.dev/stands-back",
        "machinist.dev/owns-remediation-exclusion",
    );
    let standing = |state: &str, stand_back| DesiredNodeStatus {
        stand_back,
        ..notice(state, true)
    };
    let kept = kept(standing("Working", true), QUICK).await;
    let server = &kept.server;
    let note = |it: &Server, name: &str| it.object(NODE)["metadata"]["annotations"][name].clone();
    let label = |it: &Server| it.object(NODE)["metadata"]["labels"][LABEL].clone();
    let left_by_an_earlier_version = || {
        server.edit(NODE, |node| {
            let notes = node["metadata"]["annotations"].as_object_mut().unwrap();
            notes.remove(mark);
            notes.insert(former.to_owned(), json!("update"));
            node["metadata"]["labels"][LABEL] = json!("true");
        });
    };
    server.until("the label", |it| label(it) == "true").await;
    left_by_an_earlier_version();
    let replaced = |it: &Server| note(it, mark) == "update" && note(it, former).is_null();
    server.until("the new mark alone", replaced).await;
    assert_eq!(label(server), "true");

    left_by_an_earlier_version();
    kept.notices.send_replace(Some(standing("Done", false)));
    server.until("no label", |it| label(it).is_null()).await;
    assert!(note(server, mark).is_null() && note(server, former).is_null());
}

#[tokio::test]
async fn repeatedly_overwritten_annotations_are_restored_with_backoff() {
    let kept = kept(notice("Done", true), QUICK).await;
    let server = &kept.server;
    let began = tokio::time::Instant::now();
    for _ in 0..7 {
        let written = |server: &Server| has_condition(server, "Done", "True");
        server.until("it is written", written).await;
        server.edit(NODE, |node| {
            node["metadata"]["annotations"][STATE] = json!("Nonsense");
        });
    }
    // The first two answers come immediately; before the others there are delays of 20, 40, 80 and
    // 100 ms, each less a quarter at most.
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(180), "{waited:?}");
}

#[tokio::test]
async fn a_taint_rejected_by_policy_does_not_block_other_writes() {
    let (server, own) = with_node().await;
    // The first write is the annotations', the second the first taint's.
    server.trouble("PATCH", InjectedFailure::Meanwhile(|_| {}));
    server.trouble("PATCH", InjectedFailure::Code(403, "Forbidden"));
    let taint = |key: &str| Taint {
        key: key.to_owned(),
        effect: "NoSchedule".to_owned(),
        rest: BTreeMap::new(),
    };
    let notice = DesiredNodeStatus {
        taints: vec![taint("acme.dev/serial"), taint("beta.dev/fpga")],
        ..notice("Done", true)
    };
    let mut kept = keeping(server, own, notice, QUICK);
    let done = |server: &Server| has_condition(server, "Done", "True");
    kept.server.until("the conditions", done).await;
    let node = kept.server.object(NODE);
    let taints = node["spec"]["taints"].as_array().unwrap();
    assert!(taints.iter().any(|it| it["key"] == "beta.dev/fpga"));
    assert!(taints.iter().all(|it| it["key"] != "acme.dev/serial"));
    let event = kept.events.recv().await.unwrap();
    assert_eq!(event.reason, EventReason::TaintRefused);
    assert!(
        event.note.contains("acme.dev/serial:NoSchedule"),
        "{}",
        event.note
    );
}
