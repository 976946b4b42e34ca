//! Events: one object for repetitions, on the Node and on pods.

use jiff::Timestamp;
use machinist_base::clock::Clock;
use machinist_cluster::events::{EventSource, EventSubject, Events, report};
use machinist_kube_api::EventReason;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    node::with_node,
    server::{InjectedFailure, Server},
};

const ON_NODE: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const ON_POD: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";

async fn start_events() -> (Server, Events, DropGuard) {
    let (server, own) = with_node().await;
    own.read().await.unwrap();
    let (events, message) = Events::new();
    let stop = CancellationToken::new();
    let clock = Clock::from_fn(|| "2026-11-21T22:00:00Z".parse::<Timestamp>().unwrap());
    let cluster = server.cluster().await;
    tokio::spawn(report(
        cluster,
        EventSource::Agent(own),
        message,
        clock,
        stop.clone(),
    ));
    (server, events, stop.drop_guard())
}

fn web() -> EventSubject {
    EventSubject::Pod {
        namespace: "shop".to_owned(),
        name: "web-0".to_owned(),
        uid: "pod-1".to_owned(),
    }
}

#[tokio::test]
async fn a_drain_blocker_gets_an_event_on_node_and_pod() {
    let (server, events, _stop) = start_events().await;
    let note = "shop/web-0 is kept by budget web: 0 of 1 may go";
    events.emit(EventSubject::Node, EventReason::DrainBlocked, note);
    events.emit(web(), EventReason::DrainBlocked, note);
    server.until("both", |it| it.writes().len() == 2).await;
    let (on_node, on_pod) = (&server.writes()[0], &server.writes()[1]);
    assert_eq!(on_node.what, format!("POST {ON_NODE}"));
    assert_eq!(on_pod.what, format!("POST {ON_POD}"));
    let event = &on_node.body;
    assert_eq!(event["regarding"]["kind"], "Node");
    assert_eq!(event["regarding"]["uid"], "first");
    assert_eq!(on_pod.body["regarding"]["uid"], "pod-1");
    assert_eq!(event["reason"], "DrainBlocked");
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["note"], note);
    // Without these the API server refuses an event of this version.
    assert_eq!(event["action"], "Drain");
    assert_eq!(event["reportingController"], "machinist.dev/agent");
    assert_eq!(event["reportingInstance"], "a");
    assert_eq!(event["eventTime"], "2026-11-21T22:00:00.000000Z");
}

#[tokio::test]
async fn a_repeated_event_increments_the_first_and_is_rate_limited() {
    let (server, events, _stop) = start_events().await;
    for _ in 0..20 {
        events.emit(EventSubject::Node, EventReason::DrainBlocked, "the same");
    }
    events.emit(EventSubject::Node, EventReason::NodeDone, "another");
    server
        .until("the last", |it| {
            it.writes()
                .last()
                .is_some_and(|it| it.body["reason"] == "NodeDone")
        })
        .await;
    let writes = server.writes();
    let what: Vec<_> = writes
        .iter()
        .map(|it| it.what.split(' ').next().unwrap())
        .collect();
    assert_eq!(what, ["POST", "PATCH", "POST"]);
    assert_eq!(writes[1].body["series"]["count"], 2);
}

#[tokio::test]
async fn a_flood_of_different_events_is_rate_limited() {
    let (server, events, _stop) = start_events().await;
    for number in 0..40 {
        events.emit(web(), EventReason::DrainBlocked, format!("number {number}"));
    }
    events.emit(
        EventSubject::Node,
        EventReason::NodeDone,
        "other objects have their own rate limit",
    );
    server
        .until("the node's", |it| {
            it.requests_starting(&format!("POST {ON_NODE}")).len() == 1
        })
        .await;
    assert_eq!(
        server.requests_starting(&format!("POST {ON_POD}")).len(),
        25
    );
}

#[tokio::test]
async fn an_event_is_retried_after_an_outage_and_dropped_on_rejection() {
    let (server, events, _stop) = start_events().await;
    server.trouble("POST", InjectedFailure::Code(503, "ServiceUnavailable"));
    events.emit(EventSubject::Node, EventReason::Reboot, "boot-1 ends");
    server
        .until("the second attempt", |it| it.writes().len() == 2)
        .await;
    let writes = server.writes();
    assert_eq!(
        writes[0].body, writes[1].body,
        "same event name, so no duplicate"
    );

    server.trouble("POST", InjectedFailure::Code(403, "Forbidden"));
    events.emit(web(), EventReason::DrainForced, "not allowed there");
    events.emit(EventSubject::Node, EventReason::Rebooted, "and on");
    server
        .until("the next", |it| {
            it.writes()
                .last()
                .is_some_and(|it| it.body["reason"] == "Rebooted")
        })
        .await;
}
