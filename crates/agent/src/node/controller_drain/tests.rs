//! Tests of drain requests against a fake machine-config-controller with the same rules: it acts if
//! `desiredDrain` differs from `lastAppliedDrain`, reads only the verb, cordons before it evicts,
//! and writes `lastAppliedDrain` when it is done.

use std::time::Duration;

use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    super::agent_drain::tests::{gates, ours},
    *,
};
use machinist_kube_api::keys::protocol;
use machinist_status::Status;

/// Longer than any request may take.
const LONG: Duration = Duration::from_secs(3600);

/// The Node, its controller, and the sequence of requests.
struct FakeController {
    node: Arc<ControllerDrain>,
    asks: watch::Receiver<Option<DrainRequest>>,
    statuses: watch::Sender<Arc<Status>>,
    view: NodeView,
    requests: Vec<String>,
    _dir: tempfile::TempDir,
}

impl FakeController {
    /// A node that its last update brought to config `a`.
    async fn new() -> Self {
        let mut view = NodeView::default();
        let done = "uncordon-a".to_owned();
        let names = [protocol::DESIRED_DRAIN, protocol::LAST_APPLIED_DRAIN];
        view.annotations = names.map(|name| (name.to_owned(), done.clone())).into();
        Self::with(view).await
    }

    async fn with(view: NodeView) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (statuses, message) = watch::channel(gates(true));
        let (ours, _) = ours(dir.path(), message).await;
        ours.node.set_snapshot(view.clone());
        let (asks, asked) = watch::channel(None);
        Self {
            node: Arc::new(ControllerDrain::new(ours, asks)),
            asks: asked,
            statuses,
            view,
            requests: Vec::new(),
            _dir: dir,
        }
    }

    /// The same Node with a freshly started agent.
    async fn restarted(self) -> Self {
        Self::with(self.view).await
    }

    /// Writes the annotation and runs the controller once: it cordons immediately, and confirms only if no pods are
    /// left.
    fn turn(&mut self, pods_left: bool) {
        if let Some(asked) = self.asks.borrow_and_update().as_ref() {
            let asked = asked.to_string();
            if self.requests.last() != Some(&asked) {
                self.requests.push(asked.clone());
            }
            let name = protocol::DESIRED_DRAIN.to_owned();
            self.view.annotations.insert(name, asked);
        }
        let desired = self.view.annotations[protocol::DESIRED_DRAIN].clone();
        if desired != self.view.annotations[protocol::LAST_APPLIED_DRAIN] {
            let verb = desired.split('-').next().unwrap_or_default();
            self.view.spec.unschedulable = verb == "drain";
            if verb == "uncordon" || !pods_left {
                let name = protocol::LAST_APPLIED_DRAIN.to_owned();
                self.view.annotations.insert(name, desired);
            }
        }
        self.node.ours.node.set_snapshot(self.view.clone());
    }

    fn set_cordon(&mut self, cordoned: bool) {
        self.view.spec.unschedulable = cordoned;
        self.node.ours.node.set_snapshot(self.view.clone());
    }

    fn drain(&self, to: &str) -> (JoinHandle<DrainResult>, CancellationToken) {
        let stop = CancellationToken::new();
        let order = DrainOrder {
            to: to.to_owned(),
            spent: Duration::ZERO,
            progress: watch::channel(DrainProgress::default()).0,
            stop: stop.clone(),
        };
        let node = Arc::clone(&self.node);
        let drain = tokio::spawn(async move { node.drain(order).await.unwrap() });
        (drain, stop)
    }

    fn uncordon(&self, on: &'static str) -> JoinHandle<()> {
        let node = Arc::clone(&self.node);
        tokio::spawn(async move { node.uncordon(on.to_owned()).await.unwrap() })
    }

    async fn asked(&mut self, request: &str) {
        let is = |asks: &Option<DrainRequest>| {
            asks.as_ref().map(ToString::to_string).as_deref() == Some(request)
        };
        let asked = timeout(LONG, self.asks.wait_for(is)).await;
        assert!(
            asked.is_ok(),
            "{request} is not requested: {:?}",
            self.requests
        );
    }

    /// A drain for `to` that is rolled back before its pods are evicted.
    async fn reversed(&mut self, to: &str, requests: [&str; 2]) {
        let (drain, stop) = self.drain(to);
        self.asked(requests[0]).await;
        self.turn(true);
        stop.cancel();
        assert_eq!(drain.await.unwrap(), DrainResult::Stopped);
        // Gates are not checked.
        self.statuses.send_replace(gates(false));
        timeout(LONG, self.node.cancel_drain("a".to_owned()))
            .await
            .unwrap()
            .unwrap();
        self.asked(requests[1]).await;
        self.turn(true);
        let uncordoned = self.uncordon("a");
        timeout(LONG, uncordoned).await.unwrap().unwrap();
        self.turn(true);
        self.statuses.send_replace(gates(true));
    }
}

#[tokio::test(start_paused = true)]
async fn drain_and_uncordon_requests_name_the_desired_config() {
    let mut double = FakeController::new().await;
    let (drain, _stop) = double.drain("b");
    double.asked("drain-b").await;
    double.turn(true);
    double.turn(false);
    assert_eq!(
        timeout(LONG, drain).await.unwrap().unwrap(),
        DrainResult::Complete
    );
    assert!(double.view.is_cordoned());
    let uncordoned = double.uncordon("b");
    double.asked("uncordon-b").await;
    double.turn(false);
    timeout(LONG, uncordoned).await.unwrap().unwrap();
    assert!(!double.view.is_cordoned());
    assert_eq!(double.requests, ["drain-b", "uncordon-b"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_drain_leaves_no_cordon_even_when_repeated() {
    let mut double = FakeController::new().await;
    for (drain, uncordon) in [
        ("drain-b", "uncordon-a-1"),
        ("drain-b", "uncordon-a"),
        ("drain-b", "uncordon-a-1"),
    ] {
        double.reversed("b", [drain, uncordon]).await;
        assert!(!double.view.is_cordoned(), "{:?}", double.requests);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_continues_to_cancel_a_drain() {
    let mut double = FakeController::new().await;
    let (_drain, stop) = double.drain("b");
    double.asked("drain-b").await;
    double.turn(true);
    stop.cancel();
    let mut double = double.restarted().await;
    assert!(double.view.is_cordoned());
    let uncordoned = double.uncordon("a");
    double.asked("uncordon-a-1").await;
    double.view.annotations.insert(
        protocol::DESIRED_DRAIN.to_owned(),
        "uncordon-a-1".to_owned(),
    );
    uncordoned.abort();
    let mut double = double.restarted().await;
    let uncordoned = double.uncordon("a");
    double.asked("uncordon-a-1").await;
    double.turn(false);
    timeout(LONG, uncordoned).await.unwrap().unwrap();
    assert!(!double.view.is_cordoned());
}

#[tokio::test(start_paused = true)]
async fn an_operators_cordon_survives_a_cancelled_drain() {
    let mut double = FakeController::new().await;
    double.set_cordon(true);
    double.reversed("b", ["drain-b", "uncordon-a"]).await;
    assert!(double.view.is_cordoned());
    // Without a drain no request is made.
    let mut double = FakeController::new().await;
    double.set_cordon(true);
    let uncordoned = double.uncordon("a");
    timeout(LONG, uncordoned).await.unwrap().unwrap();
    double.turn(false);
    assert!(double.view.is_cordoned());
}

#[tokio::test(start_paused = true)]
async fn a_node_uncordoned_by_others_is_drained_again() {
    let mut double = FakeController::new().await;
    let (drain, _stop) = double.drain("b");
    double.asked("drain-b").await;
    double.turn(false);
    timeout(LONG, drain).await.unwrap().unwrap();
    for again in ["drain-b-1", "drain-b"] {
        double.set_cordon(false);
        let (drain, _stop) = double.drain("b");
        double.asked(again).await;
        assert!(!drain.is_finished());
        double.turn(false);
        timeout(LONG, drain).await.unwrap().unwrap();
        assert!(double.view.is_cordoned());
    }
    // While the cordon exists, no new request is made.
    let (drain, _stop) = double.drain("b");
    timeout(LONG, drain).await.unwrap().unwrap();
    double.turn(false);
    assert_eq!(double.requests, ["drain-b", "drain-b-1", "drain-b"]);
}

#[tokio::test(start_paused = true)]
async fn uncordon_after_an_update_waits_for_open_gates() {
    let mut double = FakeController::new().await;
    let (drain, _stop) = double.drain("b");
    double.asked("drain-b").await;
    double.turn(false);
    timeout(LONG, drain).await.unwrap().unwrap();
    double.statuses.send_replace(gates(false));
    let uncordoned = double.uncordon("b");
    tokio::time::sleep(LONG).await;
    double.turn(false);
    assert!(double.view.is_cordoned() && !uncordoned.is_finished());
    double.statuses.send_replace(gates(true));
    double.asked("uncordon-b").await;
    double.turn(false);
    timeout(LONG, uncordoned).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_operators_cordon_survives_any_earlier_controller_request() {
    for last in ["uncordon-a", "uncordon-a-1", "uncordon-older"] {
        let mut double = FakeController::new().await;
        for name in [protocol::DESIRED_DRAIN, protocol::LAST_APPLIED_DRAIN] {
            let value = last.to_owned();
            double.view.annotations.insert(name.to_owned(), value);
        }
        double.set_cordon(true);
        double.reversed("b", ["drain-b", last]).await;
        assert!(double.view.is_cordoned(), "{last}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_operators_cordon_survives_an_update_until_the_operator_uncordons() {
    let mut double = FakeController::new().await;
    double.set_cordon(true);
    for (to, cordoned) in [("b", true), ("c", false)] {
        let (drain, _stop) = double.drain(to);
        double.asked(&format!("drain-{to}")).await;
        double.turn(false);
        timeout(LONG, drain).await.unwrap().unwrap();
        let uncordoned = double.uncordon(to);
        tokio::task::yield_now().await;
        double.turn(false);
        if !cordoned {
            double.asked(&format!("uncordon-{to}")).await;
            double.turn(false);
        }
        timeout(LONG, uncordoned).await.unwrap().unwrap();
        double.turn(false);
        assert_eq!(double.view.is_cordoned(), cordoned, "{to}");
        // The operator uncordons the node.
        double.set_cordon(false);
    }
}

#[tokio::test(start_paused = true)]
async fn an_operators_uncordon_during_a_drain_hands_the_cordon_to_the_controller() {
    let mut double = FakeController::new().await;
    double.set_cordon(true);
    let (drain, stop) = double.drain("b");
    double.asked("drain-b").await;
    double.turn(true);
    double.set_cordon(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    double.turn(true);
    stop.cancel();
    drain.await.unwrap();
    let node = Arc::clone(&double.node);
    node.cancel_drain("a".to_owned()).await.unwrap();
    double.asked("uncordon-a-1").await;
    double.turn(true);
    assert!(!double.view.is_cordoned());
}
