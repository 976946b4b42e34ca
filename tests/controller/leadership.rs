//! What a controller does when its Lease is lost.

use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;

use super::{
    harness::Lab,
    objects::{LEASE, WORKER},
};
use crate::cluster::server::InjectedFailure;

const POOL_WRITE: &str =
    "PATCH /apis/machineconfiguration.openshift.io/v1/machineconfigpools/worker";

/// A leader whose grant was stored and whose response has not arrived yet. Returns the switch that sends it.
async fn in_the_middle_of_a_turn(lab: &Lab) -> watch::Sender<bool> {
    lab.until("a target", |lab| !lab.target().is_empty()).await;
    let (release, released) = watch::channel(false);
    lab.server
        .trouble(POOL_WRITE, InjectedFailure::Late(released));
    lab.until("a stored grant", |lab| !lab.grants().is_empty())
        .await;
    release
}

/// A cluster whose pool cannot be granted yet, so that the test decides when the first grant is written.
async fn paused(lab: &Lab) {
    lab.server
        .edit(WORKER, |pool| pool["spec"]["paused"] = json!(true));
}

fn resume(lab: &Lab) {
    lab.server
        .edit(WORKER, |pool| pool["spec"]["paused"] = json!(false));
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_another_process_takes_during_a_turn_sends_no_further_write() {
    let lab = Lab::with_nodes(&["a", "b"]).await;
    paused(&lab).await;
    let running = lab.start("one").await;
    lab.until("the hold", |lab| lab.is("RolloutHeld", "Paused"))
        .await;
    resume(&lab);
    let release = in_the_middle_of_a_turn(&lab).await;
    let holder = "another process";
    lab.server.edit(LEASE, |lease| {
        lease["spec"]["holderIdentity"] = json!(holder)
    });
    assert_eq!(running.metric("is_leader"), Some(1.0));
    lab.pass(Duration::from_secs(7)).await;
    assert_eq!(running.metric("is_leader"), Some(0.0));
    assert_eq!(running.metric("pool_grants{pool=\"worker\"}"), None);
    assert_eq!(running.monitor.ready().unwrap(), "not the leader");
    let before = lab.writes();
    release.send_replace(true);
    lab.pass(Duration::from_secs(5)).await;
    assert_eq!(lab.writes(), before, "no write follows");
    assert!(
        lab.granted_nodes().is_empty(),
        "the grant is only in the pool"
    );
    assert_eq!(lab.server.object(LEASE)["spec"]["holderIdentity"], holder);

    // The other process does not renew the Lease: this one takes it over and places the grant that the pool lists.
    let id = lab.grants()[0].id.clone();
    lab.until("the placed grant", |lab| !lab.granted_nodes().is_empty())
        .await;
    let placed = lab.granted_nodes();
    assert_eq!(placed.len(), 1, "{placed:?}");
    assert_eq!(lab.placed(&placed[0]).unwrap().id, id);
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_its_lease_during_a_turn_sends_no_further_write() {
    let lab = Lab::with_nodes(&["a", "b"]).await;
    paused(&lab).await;
    let running = lab.start("one").await;
    lab.until("the hold", |lab| lab.is("RolloutHeld", "Paused"))
        .await;
    resume(&lab);
    let release = in_the_middle_of_a_turn(&lab).await;
    for _ in 0..50 {
        let failure = InjectedFailure::Code(503, "ServiceUnavailable");
        lab.server
            .trouble("PUT /apis/coordination", failure.clone());
        lab.server.trouble("GET /apis/coordination", failure);
    }
    lab.pass(Duration::from_secs(11)).await;
    let before = lab.writes();
    release.send_replace(true);
    lab.pass(Duration::from_secs(5)).await;
    assert_eq!(lab.writes(), before, "no write follows");
    assert!(lab.granted_nodes().is_empty());
    assert_eq!(running.metric("is_leader"), Some(0.0));
    lab.pass(Duration::from_secs(20)).await;
    let reason = running.monitor.ready().unwrap_err();
    assert!(
        reason.contains("has not answered about the Lease"),
        "{reason}"
    );
    assert!(
        running.monitor.healthy().is_ok(),
        "a restart would not help"
    );
    let failed = "api_requests_total{verb=\"update\",resource=\"leases\",code=\"503\"}";
    assert!(running.metric(failed) > Some(1.0));

    lab.server.stop_failing();
    lab.until("the placed grant", |lab| !lab.granted_nodes().is_empty())
        .await;
    assert_eq!(lab.grants().len(), 1);
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_ends_releases_its_lease_and_the_next_one_acts_at_once() {
    let lab = Lab::with_nodes(&["a", "b"]).await;
    let first = lab.start("one").await;
    lab.until("a placed grant", |lab| !lab.granted_nodes().is_empty())
        .await;
    assert_eq!(first.monitor.ready().unwrap(), "leader");
    let second = lab.start("two").await;
    assert!(
        second.monitor.ready().is_err(),
        "it has not reached the API server"
    );
    lab.pass(Duration::from_secs(20)).await;
    assert_eq!(second.monitor.ready().unwrap(), "not the leader");
    let holder = |lab: &Lab| {
        let lease = lab.server.object(LEASE);
        lease["spec"]["holderIdentity"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert!(holder(&lab).starts_with("one_"), "{}", holder(&lab));
    drop(first.stop);
    lab.until("the end", |_| first.task.is_finished()).await;
    let began = lab.now();
    lab.until("the second leader", |lab| holder(lab).starts_with("two_"))
        .await;
    let waited = lab.now().duration_since(began).as_secs();
    assert!(waited <= 6, "{waited} s");
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_ends_during_a_renewal_releases_its_lease() {
    let lab = Lab::with_nodes(&["a"]).await;
    let running = lab.start("one").await;
    lab.until("a placed grant", |lab| !lab.granted_nodes().is_empty())
        .await;
    let renewals = |lab: &Lab| lab.server.requests_starting("PUT /apis/coordination").len();
    let before = renewals(&lab);
    // The renewal is stored, and its response arrives after the end.
    let (_release, released) = watch::channel(false);
    let late = InjectedFailure::Late(released);
    lab.server.trouble("PUT /apis/coordination", late);
    lab.until("a renewal", |lab| renewals(lab) > before).await;
    drop(running.stop);
    lab.until("the end", |_| running.task.is_finished()).await;
    let holder = lab.server.object(LEASE)["spec"]["holderIdentity"].clone();
    assert!(holder.is_null(), "{holder}");
}
