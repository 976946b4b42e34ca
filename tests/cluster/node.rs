//! The watch on our Node, and the ownership of its cordon.

use machinist_cluster::node::{Cordon, OwnNode, Uncordon};
use machinist_kube_api::{DrainRequest, NodeUpdateState};
use machinist_testkit::WAIT_TIMEOUT;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::server::{InjectedFailure, Server};

pub(crate) const NODE: &str = "/api/v1/nodes/a";
const WATCH: &str = "GET /api/v1/nodes";

pub(crate) fn node() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": "a", "uid": "first",
            "annotations": {
                "machineconfiguration.openshift.io/desiredConfig": "rendered-worker-1",
                "machineconfiguration.openshift.io/state": "Done",
                "machineconfiguration.openshift.io/lastAppliedDrain": "uncordon-rendered-worker-0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [
            {"key": "node-role.kubernetes.io/master", "effect": "NoSchedule"},
            {"key": "example.com/new", "effect": "NoExecute", "value": "x", "timeAdded": "2026-11-21T20:00:00Z"},
        ]},
        "status": {
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                 "lastHeartbeatTime": "2026-11-21T20:00:00Z", "lastTransitionTime": "2026-11-21T19:00:00Z"},
                {"type": "KernelDeadlock", "status": "False", "reason": "KernelHasNoDeadlock",
                 "lastHeartbeatTime": "2026-11-21T20:00:00Z", "lastTransitionTime": "2026-11-21T19:00:00Z"},
            ],
            "nodeInfo": {"bootID": "boot-1", "kernelVersion": "6.12"},
            "images": [{"names": ["example.com/a@sha256:00"], "sizeBytes": 1}],
        },
    })
}

pub(crate) async fn with_node() -> (Server, OwnNode) {
    let server = Server::start().await;
    server.put(NODE, node());
    let own = OwnNode::new(server.cluster().await, "a");
    (server, own)
}

/// Runs the watch until the guard is dropped.
pub(crate) fn following(own: &OwnNode) -> DropGuard {
    let stop = CancellationToken::new();
    tokio::spawn(own.clone().watch_node(stop.clone()));
    stop.drop_guard()
}

async fn until_desired(own: &OwnNode, config: &str) {
    let mut snapshots = own.snapshots();
    let seen = snapshots.wait_for(|snapshot| {
        let node = snapshot.node.as_deref();
        node.and_then(|node| node.desired_config()) == Some(config)
    });
    let waited = tokio::time::timeout(WAIT_TIMEOUT, seen);
    assert!(waited.await.is_ok(), "{config} was not observed");
}

fn desire(server: &Server, config: &str) {
    server.edit(NODE, |node| {
        node["metadata"]["annotations"]["machineconfiguration.openshift.io/desiredConfig"] =
            json!(config);
    });
}

#[tokio::test]
async fn the_node_is_listed_once_and_then_watched() {
    let (server, own) = with_node().await;
    let _following = following(&own);
    until_desired(&own, "rendered-worker-1").await;
    let snapshot = own.snapshots().borrow().clone();
    let seen = snapshot.node.unwrap();
    assert_eq!(seen.state(), Some(NodeUpdateState::Done));
    let undone = DrainRequest::Uncordon("rendered-worker-0".to_owned());
    assert_eq!(seen.last_applied_drain(), Some(undone));
    assert!(!seen.is_cordoned() && !seen.has_cordon_mark());
    assert!(seen.is_ready_in("boot-1") && !seen.is_ready_in("boot-2"));
    assert_eq!(
        seen.annotations.len(),
        3,
        "annotations of other clients are not stored"
    );

    server.until_watched().await;
    desire(&server, "rendered-worker-2");
    until_desired(&own, "rendered-worker-2").await;
    let received = server.requests_starting(WATCH);
    assert_eq!(received.len(), 2);
    assert!(
        received
            .iter()
            .all(|it| it.query.contains("metadata.name%3Da"))
    );
    // A server that lags must not return an earlier desired config.
    let cached = received[0].query.contains("resourceVersion");
    assert!(!cached, "{}", received[0].query);
}

#[tokio::test]
async fn an_ended_or_broken_watch_resumes_at_its_resource_version() {
    let (server, own) = with_node().await;
    let _following = following(&own);
    server.until_watched().await;
    for (round, cut) in [(2, false), (3, true)] {
        server.end_watches(cut);
        // While no watch is open.
        let config = format!("rendered-worker-{round}");
        desire(&server, &config);
        server.until_watched().await;
        let resumed = server.requests_starting(WATCH).pop().unwrap();
        assert!(resumed.query.contains("watch=true"), "no list: {resumed:?}");
        // This server keeps no history, so the change is delivered with the next one.
        desire(&server, &config);
        until_desired(&own, &config).await;
    }
    let lists = server.requests_starting(WATCH);
    let lists = lists.iter().filter(|it| !it.query.contains("watch=true"));
    assert_eq!(lists.count(), 1);
}

#[tokio::test]
async fn an_expired_resource_version_causes_a_relist() {
    let (server, own) = with_node().await;
    let _following = following(&own);
    server.until_watched().await;
    server.send_to_watches(&json!({"type": "ERROR", "object": {
        "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old",
    }}));
    let listed_again = |server: &Server| {
        let lists = server.requests_starting(WATCH);
        let lists = lists.iter().filter(|it| !it.query.contains("watch=true"));
        lists.count() > 1
    };
    desire(&server, "rendered-worker-2");
    server.until("another list", listed_again).await;
    until_desired(&own, "rendered-worker-2").await;
}

#[tokio::test]
async fn an_outage_keeps_the_last_node_and_reports_its_start_and_end() {
    let (server, own) = with_node().await;
    let _following = following(&own);
    server.until_watched().await;
    server.trouble(WATCH, InjectedFailure::Code(500, "InternalError"));
    server.end_watches(true);
    let mut snapshots = own.snapshots();
    let away = snapshots
        .wait_for(|snapshot| snapshot.away.is_some())
        .await
        .unwrap()
        .clone();
    assert!(away.node.is_some());
    let back = snapshots
        .wait_for(|snapshot| snapshot.away.is_none())
        .await
        .unwrap()
        .clone();
    assert!(back.node.is_some());
}

/// An etcd that was restored continues from an earlier version; a watch from the old version would
/// receive nothing.
#[tokio::test]
async fn after_an_outage_a_node_with_a_lower_resource_version_is_accepted() {
    let (server, own) = with_node().await;
    let _following = following(&own);
    server.until_watched().await;
    desire(&server, "rendered-worker-2");
    until_desired(&own, "rendered-worker-2").await;
    for _ in 0..2 {
        server.trouble(WATCH, InjectedFailure::Code(503, "ServiceUnavailable"));
    }
    server.restore(NODE, node());
    server.end_watches(true);
    until_desired(&own, "rendered-worker-1").await;
}

#[tokio::test]
async fn a_deleted_and_reregistered_node_has_a_new_identity() {
    let (server, own) = with_node().await;
    let _following = following(&own);
    server.until_watched().await;
    server.remove(NODE);
    let mut snapshots = own.snapshots();
    let gone = |snapshot: &machinist_cluster::node::NodeSnapshot| {
        snapshot.asked && snapshot.node.is_none()
    };
    snapshots.wait_for(gone).await.unwrap();
    let mut again = node();
    again["metadata"]["uid"] = json!("second");
    server.put(NODE, again);
    let seen = snapshots
        .wait_for(|snapshot| snapshot.node.is_some())
        .await
        .unwrap();
    assert_eq!(seen.node.as_ref().unwrap().uid, "second");
}

#[tokio::test]
async fn the_cordon_and_its_annotation_are_one_patch() {
    let (server, own) = with_node().await;
    assert_eq!(
        own.cordon("rendered-worker-1", false).await.unwrap(),
        Cordon::ByMachinist
    );
    let object = server.object(NODE);
    assert_eq!(object["spec"]["unschedulable"], true);
    assert!(object["metadata"]["annotations"]["machinist.dev/cordoned"].is_string());
    assert_eq!(server.writes().len(), 1);
    // Fields of other owners are unchanged.
    assert_eq!(object["spec"]["taints"], node()["spec"]["taints"]);
    // After a crash the request is repeated: nothing is left to do.
    assert_eq!(
        own.cordon("rendered-worker-1", false).await.unwrap(),
        Cordon::ByMachinist
    );
    assert_eq!(server.writes().len(), 1);

    assert_eq!(own.uncordon().await.unwrap(), Uncordon::Done);
    let object = server.object(NODE);
    assert!(object["spec"].get("unschedulable").is_none());
    assert_eq!(
        object["metadata"]["annotations"],
        node()["metadata"]["annotations"]
    );
    assert_eq!(own.uncordon().await.unwrap(), Uncordon::NotOurs);
    assert_eq!(server.writes().len(), 2);
}

#[tokio::test]
async fn an_operators_cordon_is_not_taken_over() {
    let (server, own) = with_node().await;
    server.edit(NODE, |node| node["spec"]["unschedulable"] = json!(true));
    assert_eq!(
        own.cordon("rendered-worker-1", false).await.unwrap(),
        Cordon::ByAnother
    );
    assert_eq!(own.uncordon().await.unwrap(), Uncordon::NotOurs);
    assert_eq!(server.writes().len(), 0);
    assert_eq!(server.object(NODE)["spec"]["unschedulable"], true);
}

#[tokio::test]
async fn a_concurrent_cordon_by_an_operator_is_kept() {
    let (server, own) = with_node().await;
    let person = |node: &mut Value| node["spec"]["unschedulable"] = json!(true);
    server.trouble("PATCH", InjectedFailure::Meanwhile(person));
    assert_eq!(
        own.cordon("rendered-worker-1", false).await.unwrap(),
        Cordon::ByAnother
    );
    let annotations = &server.object(NODE)["metadata"]["annotations"];
    assert!(annotations.get("machinist.dev/cordoned").is_none());
}

#[tokio::test]
async fn a_conflicting_cordon_patch_is_retried_without_losing_other_changes() {
    let (server, own) = with_node().await;
    let other = |node: &mut Value| node["spec"]["taints"][1]["value"] = json!("y");
    server.trouble("PATCH", InjectedFailure::Meanwhile(other));
    assert_eq!(
        own.cordon("rendered-worker-1", false).await.unwrap(),
        Cordon::ByMachinist
    );
    assert_eq!(server.object(NODE)["spec"]["taints"][1]["value"], "y");
    assert_eq!(server.requests_starting("PATCH").len(), 2);
}

#[tokio::test]
async fn keep_cordoned_hands_the_agents_cordon_to_the_operator() {
    let (server, own) = with_node().await;
    own.cordon("rendered-worker-1", false).await.unwrap();
    server.edit(NODE, |node| {
        node["metadata"]["annotations"]["machinist.dev/keep-cordoned"] = json!("");
    });
    assert_eq!(own.uncordon().await.unwrap(), Uncordon::KeptByOperator);
    let object = server.object(NODE);
    assert_eq!(object["spec"]["unschedulable"], true);
    assert!(
        object["metadata"]["annotations"]
            .get("machinist.dev/cordoned")
            .is_none()
    );
    assert_eq!(own.uncordon().await.unwrap(), Uncordon::NotOurs);
}

#[tokio::test]
async fn a_node_without_annotations_can_be_cordoned() {
    let (server, own) = with_node().await;
    server.edit(NODE, |node| {
        node["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("annotations");
    });
    assert_eq!(
        own.cordon("rendered-worker-1", false).await.unwrap(),
        Cordon::ByMachinist
    );
    assert_eq!(own.uncordon().await.unwrap(), Uncordon::Done);
}

#[tokio::test]
async fn without_a_node_object_nothing_is_cordoned() {
    let (server, own) = with_node().await;
    server.remove(NODE);
    assert_eq!(
        own.cordon("rendered-worker-1", false).await.unwrap(),
        Cordon::NoNode
    );
    assert_eq!(own.uncordon().await.unwrap(), Uncordon::NoNode);
    assert!(own.read().await.unwrap().is_none());
}
