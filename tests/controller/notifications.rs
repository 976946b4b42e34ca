//! Notifications about rollouts, at a receiver of the test.

use std::sync::{Arc, Mutex};

use axum::{Router, extract::State, http::StatusCode, routing::post};
use machinist_controller::{ProxyVariables, WebhookSettings, WebhookSource, WebhookUrl};
use machinist_kube_api::keys::{annotation, protocol};
use machinist_pool::GrantOutcome;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{
    harness::Lab,
    objects::{WORKER, node_path},
};

/// The notifications that arrived, and the status of each response.
#[derive(Clone)]
struct Receiver {
    heard: Arc<Mutex<Vec<Value>>>,
    code: StatusCode,
    url: String,
}

impl Receiver {
    async fn start(code: StatusCode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/very-secret", listener.local_addr().unwrap());
        let receiver = Self {
            heard: Arc::default(),
            code,
            url,
        };
        let routes = Router::new()
            .route("/very-secret", post(receive))
            .with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        receiver
    }

    fn settings(&self) -> WebhookSettings {
        WebhookSettings {
            url: WebhookUrl::parse(&self.url).unwrap(),
            proxies: ProxyVariables::default(),
            authorities: None,
        }
    }

    fn webhook(&self) -> WebhookSource {
        let settings = self.settings();
        WebhookSource::new(move || Ok(settings.clone())).unwrap()
    }

    fn heard(&self) -> Vec<Value> {
        self.heard.lock().unwrap().clone()
    }

    /// Event and node of each notification.
    fn rows(&self) -> Vec<String> {
        let heard = self.heard().into_iter();
        let rows = heard.map(|it| {
            let text = |field: &str| it[field].as_str().unwrap_or_default().to_owned();
            format!("{} {}", text("event"), text("node"))
        });
        rows.map(|row| row.trim_end().to_owned()).collect()
    }
}

async fn receive(State(receiver): State<Receiver>, body: String) -> StatusCode {
    let body = serde_json::from_str(&body).unwrap();
    receiver.heard.lock().unwrap().push(body);
    receiver.code
}

fn annotate(lab: &Lab, node: &str, name: &str, value: &str) {
    lab.server.edit(&node_path(node), |node| {
        node["metadata"]["annotations"][name] = json!(value);
    });
}

#[tokio::test(start_paused = true)]
async fn every_step_of_a_rollout_is_reported_once_and_in_order() {
    let receiver = Receiver::start(StatusCode::OK).await;
    let lab = Lab::with_nodes(&["a", "b"]).await;
    let running = lab.start_notifying("one", receiver.webhook()).await;
    let heard = |count: usize| {
        let receiver = receiver.clone();
        move |_: &Lab| receiver.heard().len() >= count
    };
    lab.until("the grant", |lab| !lab.granted_nodes().is_empty())
        .await;
    let first = lab.granted_nodes().remove(0);
    lab.acknowledge(&first);
    lab.until("the beginning", heard(2)).await;
    annotate(&lab, &first, annotation::BLOCKED_BY, "default/web (budget)");
    lab.until("the blocked drain", heard(3)).await;
    annotate(&lab, &first, annotation::BLOCKED_BY, "");
    annotate(&lab, &first, annotation::BLOCKED_BY, "default/db (budget)");
    annotate(&lab, &first, protocol::POST_CONFIG_ACTION, "Rebooting");
    lab.until("the reboot", heard(4)).await;
    annotate(&lab, &first, protocol::POST_CONFIG_ACTION, "");
    annotate(&lab, &first, annotation::BLOCKED_BY, "");
    lab.end(&first, GrantOutcome::Done, "");
    lab.until("the next grant", |lab| !lab.granted_nodes().is_empty())
        .await;
    let second = lab.granted_nodes().remove(0);
    lab.acknowledge(&second);
    lab.until("the second beginning", heard(6)).await;
    lab.end(&second, GrantOutcome::Done, "");
    lab.until("the end", |lab| lab.is("Updated", "AllNodesUpdated"))
        .await;
    lab.until("all notifications", heard(8)).await;
    let expected = [
        "RolloutStarted".to_owned(),
        format!("NodeStarted {first}"),
        format!("NodeDrainBlocked {first}"),
        format!("NodeRebooting {first}"),
        format!("NodeDone {first}"),
        format!("NodeStarted {second}"),
        format!("NodeDone {second}"),
        "RolloutCompleted".to_owned(),
    ];
    assert_eq!(receiver.rows(), expected);
    is_complete(&receiver.heard()[2], &first, &lab.target());
    let delivered = "notifications_total{result=\"Delivered\"}";
    lab.until("the metric", |_| running.metric(delivered) == Some(8.0))
        .await;
}

/// Asserts that a notification about a blocked drain has exactly the documented fields.
fn is_complete(blocked: &Value, node: &str, target: &str) {
    let time = blocked["time"].clone();
    let message = format!("pods block the drain of node {node}: default/web (budget)");
    let whole = json!({
        "apiVersion": "machinist.dev/v1",
        "kind": "RolloutNotification",
        "event": "NodeDrainBlocked",
        "pool": "worker",
        "node": node,
        "target": target,
        "reason": null,
        "message": message,
        "text": format!("Pool worker: {message}."),
        "time": time,
    });
    assert_eq!(*blocked, whole);
    assert!(time.as_str().unwrap().starts_with("2026-11-27T00:"));
}

#[tokio::test(start_paused = true)]
async fn holds_and_failures_are_reported_with_their_codes() {
    let receiver = Receiver::start(StatusCode::OK).await;
    let lab = Lab::with_nodes(&["a", "b"]).await;
    let paused =
        |is_paused: bool| move |pool: &mut Value| pool["spec"]["paused"] = json!(is_paused);
    lab.server.edit(WORKER, paused(true));
    let _running = lab.start_notifying("one", receiver.webhook()).await;
    lab.until("the hold", |_| receiver.rows() == ["RolloutHeld"])
        .await;
    assert_eq!(receiver.heard()[0]["reason"], "Paused");
    lab.server.edit(WORKER, paused(false));
    lab.until("the grant", |lab| !lab.granted_nodes().is_empty())
        .await;
    let node = lab.granted_nodes().remove(0);
    lab.acknowledge(&node);
    lab.until("the beginning", |_| receiver.heard().len() == 3)
        .await;
    lab.end(&node, GrantOutcome::RolledBack, "UnitDied");
    lab.until("the stop", |_| {
        receiver.rows().contains(&"RolloutStopped".to_owned())
    })
    .await;
    let heard = receiver.heard();
    let failed = heard.iter().find(|it| it["event"] == "NodeFailed").unwrap();
    assert_eq!(
        (&failed["node"], &failed["reason"]),
        (&json!(node), &json!("UnitDied"))
    );
    let stopped = heard
        .iter()
        .find(|it| it["event"] == "RolloutStopped")
        .unwrap();
    assert_eq!(stopped["reason"], "StoppedAfterFailures");
    assert_eq!(stopped["node"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_refuses_everything_does_not_delay_the_rollout() {
    let receiver = Receiver::start(StatusCode::INTERNAL_SERVER_ERROR).await;
    let lab = Lab::with_nodes(&["a"]).await;
    let _running = lab.start_notifying("one", receiver.webhook()).await;
    lab.until("the grant", |lab| !lab.granted_nodes().is_empty())
        .await;
    lab.acknowledge("a");
    lab.end("a", GrantOutcome::Done, "");
    lab.until("the end", |lab| lab.is("Updated", "AllNodesUpdated"))
        .await;
    assert!(receiver.heard().len() < 4, "{:?}", receiver.rows());
    assert!(receiver.rows().iter().all(|row| row == "RolloutStarted"));
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_sends() {
    let receiver = Receiver::start(StatusCode::OK).await;
    let lab = Lab::with_nodes(&["a"]).await;
    let _one = lab.start_notifying("one", receiver.webhook()).await;
    lab.until("the grant", |lab| !lab.granted_nodes().is_empty())
        .await;
    let _two = lab.start_notifying("two", receiver.webhook()).await;
    lab.acknowledge("a");
    lab.until("the beginning", |_| receiver.heard().len() == 2)
        .await;
    lab.end("a", GrantOutcome::Done, "");
    lab.until("the end", |_| receiver.heard().len() == 4).await;
    lab.pass(std::time::Duration::from_secs(30)).await;
    let expected = [
        "RolloutStarted",
        "NodeStarted a",
        "NodeDone a",
        "RolloutCompleted",
    ];
    assert_eq!(receiver.rows(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_url_that_changes_is_used_and_one_that_cannot_be_read_is_not() {
    let lab = Lab::with_nodes(&["a", "b"]).await;
    let [first, second] = [
        Receiver::start(StatusCode::OK).await,
        Receiver::start(StatusCode::OK).await,
    ];
    // As the file of a mounted Secret.
    let file = Arc::new(Mutex::new(Some(first.settings())));
    let read = Arc::clone(&file);
    let source = WebhookSource::new(move || {
        let settings = read.lock().unwrap().clone();
        settings.ok_or_else(|| "the file is missing".into())
    });
    let _running = lab.start_notifying("one", source.unwrap()).await;
    lab.until("the beginning", |_| {
        first.rows().contains(&"RolloutStarted".to_owned())
    })
    .await;
    *file.lock().unwrap() = None;
    lab.until("the grant", |lab| !lab.granted_nodes().is_empty())
        .await;
    let node = lab.granted_nodes().remove(0);
    lab.acknowledge(&node);
    let started = format!("NodeStarted {node}");
    lab.until("the start at the earlier URL", |_| {
        first.rows().contains(&started)
    })
    .await;
    *file.lock().unwrap() = Some(second.settings());
    lab.end(&node, GrantOutcome::Done, "");
    let done = format!("NodeDone {node}");
    lab.until("the end at the new URL", |_| second.rows().contains(&done))
        .await;
    assert!(!first.rows().contains(&done));
}
