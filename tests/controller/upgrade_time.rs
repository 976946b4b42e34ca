//! The time before which an UpgradeConfig lets no node begin.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::SignedDuration;
use machinist_pool::GrantOutcome;
use serde_json::{Value, json};

use super::harness::Lab;
use crate::cluster::server::InjectedFailure;

const UPGRADES: &str = "/apis/upgrade.managed.openshift.io/v1alpha1/upgradeconfigs";

/// How many requests a test lets fail; more than it sends.
const MANY_REQUESTS: usize = 50;

fn path() -> String {
    format!("{UPGRADES}/managed-upgrade-config")
}

fn upgrade_config(at: Value) -> Value {
    json!({
        "apiVersion": "upgrade.managed.openshift.io/v1alpha1", "kind": "UpgradeConfig",
        "metadata": {"namespace": "openshift-managed-upgrade-operator", "name": "managed-upgrade-config"},
        "spec": {"type": "OSD", "upgradeAt": at, "PDBForceDrainTimeout": 60},
    })
}

fn in_minutes(lab: &Lab, minutes: i64) -> Value {
    json!((lab.now() + SignedDuration::from_mins(minutes)).to_string())
}

/// How often the objects were listed.
fn lists(lab: &Lab) -> usize {
    let mut requests = lab.server.requests_starting(&format!("GET {UPGRADES}"));
    requests.retain(|it| !it.query.contains("watch=true"));
    requests.len()
}

/// Warnings that were logged.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<u8>>>);

impl io::Write for Warnings {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Warnings {
    fn about(&self, what: &str) -> usize {
        let text = self.0.lock().unwrap().clone();
        let text = String::from_utf8(text).unwrap();
        text.lines().filter(|line| line.contains(what)).count()
    }
}

async fn until_granted(lab: &Lab) {
    lab.until("a placed grant", |lab| !lab.granted_nodes().is_empty())
        .await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_granted_before_the_upgrade_time_and_a_node_at_that_time() {
    let lab = Lab::with_nodes(&["a", "b"]).await;
    // At a time at which nothing else wakes the leader, such as its removal of unused configs every ten minutes.
    let due = lab.now() + SignedDuration::from_secs(737);
    lab.server
        .put(&path(), upgrade_config(json!(due.to_string())));
    let _running = lab.start("one").await;
    lab.until("the hold", |lab| lab.is("RolloutHeld", "NotYetDue"))
        .await;
    let message = lab.condition("RolloutHeld")["message"].to_string();
    assert!(
        message.contains(&due.to_string())
            && message.contains("openshift-managed-upgrade-operator/managed-upgrade-config"),
        "{message}"
    );
    let left = due.duration_since(lab.now()) - SignedDuration::from_secs(1);
    lab.pass(Duration::try_from(left).unwrap()).await;
    assert!(lab.now() < due && lab.grants().is_empty());
    assert_eq!(lists(&lab), 1, "it is watched");
    until_granted(&lab).await;
    let late = lab.now().duration_since(due).as_secs_f64();
    assert!((0.0..2.0).contains(&late), "{late} s");
}

#[tokio::test(start_paused = true)]
async fn a_later_upgrade_time_holds_a_rollout_that_has_begun_until_it_is_deleted() {
    let lab = Lab::with_nodes(&["a", "b"]).await;
    let _running = lab.start("one").await;
    until_granted(&lab).await;
    let first = lab.granted_nodes().remove(0);
    lab.acknowledge(&first);
    lab.server
        .put(&path(), upgrade_config(in_minutes(&lab, 600)));
    lab.pass(Duration::from_secs(2)).await;
    lab.end(&first, GrantOutcome::Done, "");
    lab.until("the hold", |lab| lab.is("RolloutHeld", "NotYetDue"))
        .await;
    lab.until("the end of the grant", |lab| lab.grants().is_empty())
        .await;
    lab.pass(Duration::from_secs(1200)).await;
    assert!(lab.grants().is_empty());

    let deleted = lab.now();
    lab.server.remove(&path());
    until_granted(&lab).await;
    let waited = lab.now().duration_since(deleted).as_secs_f64();
    assert!(waited < 2.0, "{waited} s");
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_time_that_cannot_be_parsed_holds_and_names_object_field_and_value() {
    let lab = Lab::with_nodes(&["a"]).await;
    lab.server.put(&path(), upgrade_config(json!("at noon")));
    let _running = lab.start("one").await;
    lab.until("the hold", |lab| lab.is("RolloutHeld", "NotYetDue"))
        .await;
    let message = lab.condition("RolloutHeld")["message"]
        .as_str()
        .unwrap()
        .to_owned();
    let expected = "UpgradeConfig openshift-managed-upgrade-operator/managed-upgrade-config: spec.upgradeAt is \
                    \"at noon\"; expected a time as in RFC 3339, such as \"2020-06-20T12:00:00Z\"";
    assert_eq!(message, expected);
    lab.pass(Duration::from_secs(1200)).await;
    assert!(lab.grants().is_empty());
    lab.server
        .put(&path(), upgrade_config(in_minutes(&lab, -1)));
    until_granted(&lab).await;
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_config_of_another_namespace_holds_nothing() {
    let lab = Lab::with_nodes(&["a"]).await;
    let mut other = upgrade_config(in_minutes(&lab, 10));
    other["metadata"]["namespace"] = json!("shop");
    lab.server.put(&path(), other);
    let _running = lab.start("one").await;
    until_granted(&lab).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_kind_or_permission_nothing_is_held_and_reads_are_rare() {
    for (failure, expected) in [
        (InjectedFailure::Code(404, "NotFound"), 0),
        (InjectedFailure::Code(403, "Forbidden"), 1),
    ] {
        let warnings = Warnings::default();
        let written = warnings.clone();
        let log = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_writer(move || written.clone())
            .finish();
        // The test, the server and the controller share this thread.
        let _logged = tracing::subscriber::set_default(log);
        let lab = Lab::with_nodes(&["a", "b"]).await;
        for _ in 0..MANY_REQUESTS {
            let begins = format!("GET {UPGRADES}");
            lab.server.trouble(&begins, failure.clone());
        }
        let _running = lab.start("one").await;
        until_granted(&lab).await;
        let first = lab.granted_nodes().remove(0);
        lab.acknowledge(&first);
        lab.pass(Duration::from_secs(600)).await;
        let sent = lists(&lab);
        assert!((8..=12).contains(&sent), "{sent} requests in 10 min");
        let logged = warnings.about("cannot list the UpgradeConfig");
        assert_eq!(logged, expected, "{failure:?}");

        // The CRD is installed, or the role is bound.
        lab.server.stop_failing();
        lab.server
            .put(&path(), upgrade_config(in_minutes(&lab, 60)));
        lab.pass(Duration::from_secs(61)).await;
        lab.end(&first, GrantOutcome::Done, "");
        lab.until("the hold", |lab| lab.is("RolloutHeld", "NotYetDue"))
            .await;
    }
}
