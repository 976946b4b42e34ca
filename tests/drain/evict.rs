//! The course of an undisturbed drain, and its start and end.

use std::time::Duration;

use machinist_base::reason::Reason;
use machinist_drain::{
    CLUSTER_CRITICAL_PRIORITY, EvictionCallError, Grace, NODE_CRITICAL_PRIORITY, WaitReason,
    eviction::{BudgetMode, DrainError, EvictionMethod, EvictionProgress, Options},
};
use tokio_util::sync::CancellationToken;

use crate::drain::{
    progress::{drained, names, pass, seconds, start, strict, unattended},
    server::{Call, Server, budget_refusal, refusal},
    support::{at, made},
};

#[tokio::test(start_paused = true)]
async fn draining_an_empty_node_takes_one_request() {
    let server = Server::with([]);
    let drained = drained(&server, unattended()).await.unwrap();
    assert_eq!(drained.progress.gone, 0);
    let calls: Vec<_> = server.log().into_iter().map(|(_, call)| call).collect();
    assert_eq!(calls, [Call::List]);
}

#[tokio::test(start_paused = true)]
async fn drain_waits_until_an_evicted_pod_is_deleted() {
    let server = Server::with([made("web")]);
    server.pods_end_after(Some(seconds(25)));
    let drained = drained(&server, unattended()).await.unwrap();
    assert_eq!(drained.progress.gone, 1);
    assert!(server.elapsed() >= seconds(25), "{:?}", server.elapsed());
    assert!(server.elapsed() < seconds(26), "{:?}", server.elapsed());
}

/// kubectl needs one request for each pod and second, after each eviction.
#[tokio::test(start_paused = true)]
async fn draining_250_pods_takes_little_more_than_one_request_each() {
    let server = Server::with((0..250).map(|n| made(&format!("web-{n:03}"))));
    let drained = drained(&server, unattended()).await.unwrap();
    assert_eq!(drained.progress.gone, 250);
    let count =
        |wanted: fn(&Call) -> bool| server.log().iter().filter(|(_, call)| wanted(call)).count();
    assert_eq!(count(|call| matches!(call, Call::Evict(..))), 250);
    assert_eq!(server.log().len(), 254, "two lists, a watch, the budgets");
    assert!(server.elapsed() < seconds(4), "{:?}", server.elapsed());
}

#[tokio::test(start_paused = true)]
async fn concurrent_evictions_never_exceed_the_limit() {
    let server = Server::with((0..200).map(|n| made(&format!("web-{n:03}"))));
    let options = Options {
        at_once: 7,
        ..unattended()
    };
    drained(&server, options).await.unwrap();
    assert_eq!(server.most_in_flight(), 7);
}

#[tokio::test(start_paused = true)]
async fn critical_pods_are_evicted_after_all_others_are_deleted() {
    let server = Server::with([
        made("a-node").priority(NODE_CRITICAL_PRIORITY),
        made("b-cluster").priority(CLUSTER_CRITICAL_PRIORITY),
        made("c-web"),
    ]);
    server.pods_end_after(Some(seconds(20)));
    drained(&server, unattended()).await.unwrap();
    let first = |pod: &str| server.evictions(pod)[0].as_secs();
    assert_eq!(["c-web", "b-cluster", "a-node"].map(first), [0, 20, 40]);
}

#[tokio::test(start_paused = true)]
async fn the_configured_grace_period_is_sent_with_evictions() {
    for (flag, expected) in [(-1, Grace::Own), (30, Grace::try_from(30).unwrap())] {
        let server = Server::with([made("web").grace(90)]);
        let options = Options {
            grace: Grace::try_from(flag).unwrap(),
            ..unattended()
        };
        drained(&server, options).await.unwrap();
        let how = EvictionMethod {
            grace: expected,
            dry_run: false,
        };
        let asked = Call::Evict("web".to_owned(), how);
        assert!(
            server.log().iter().any(|(_, call)| *call == asked),
            "{flag}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_drain_evicts_no_pod() {
    let proxy = made("proxy").owned_by("DaemonSet", "proxy");
    for (pods, reason) in [
        ([made("web"), proxy], Reason::DrainDaemonSetPod),
        (
            [made("web"), made("lone").bare()],
            Reason::DrainPodUnmanaged,
        ),
        (
            [made("web"), made("job").local_data()],
            Reason::DrainLocalData,
        ),
    ] {
        let server = Server::with(pods);
        server.daemon_set("proxy");
        let refused = drained(&server, Options::default()).await.unwrap_err();
        assert_eq!(refused.reason(), reason);
        assert!(!refused.is_retryable());
        assert_eq!(server.writes(), 0, "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_updates_drain_evicts_unmanaged_pods_and_reports_them() {
    let server = Server::with([
        made("lone").bare().local_data(),
        made("proxy").owned_by("DaemonSet", "proxy"),
    ]);
    server.daemon_set("proxy");
    let drained = drained(&server, unattended()).await.unwrap();
    assert_eq!(server.evictions("lone").len(), 1);
    assert_eq!(server.evictions("proxy").len(), 0);
    assert_eq!(drained.progress.gone, 1);
    // Progress notes stay, and each is reported once.
    let mut notes: Vec<_> = drained
        .progress
        .notes
        .iter()
        .map(|(_, note)| note.reason())
        .collect();
    notes.sort();
    assert_eq!(
        notes,
        [
            Reason::DrainDaemonSetPod,
            Reason::DrainPodUnmanaged,
            Reason::DrainLocalData
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_pod_is_reported_only_after_its_eviction_is_accepted() {
    let server = Server::with([made("lone").bare(), made("other").bare()]);
    server.always("lone", budget_refusal());
    let mut drain = start(&server, unattended());
    let lost = |now: &EvictionProgress| -> Vec<_> {
        let lost = now.lost.iter();
        lost.map(|(pod, _)| pod.name.clone()).collect()
    };
    let now = drain.until(|now| now.gone == 1).await;
    assert_eq!(lost(&now), ["other"]);
    assert_eq!(now.notes.len(), 2);
    server.clear_response("lone");
    let drained = drain.ended().await.unwrap();
    assert_eq!(lost(&drained.progress), ["other", "lone"]);
}

/// A pod template that names the node: its controller recreates deleted pods immediately.
#[tokio::test(start_paused = true)]
async fn a_pod_rescheduled_on_the_node_is_reported_and_not_evicted_in_a_loop() {
    let server = Server::with([made("web-0").owned_by("ReplicaSet", "web")]);
    let options = Options {
        way: BudgetMode::Delete,
        ..strict()
    };
    let drain = start(&server, options);
    let begun = server.elapsed();
    for number in 1..=6 {
        let before = format!("web-{}", number - 1);
        let gone = async {
            while !server
                .deletions()
                .iter()
                .any(|(_, name, _)| *name == before)
            {
                pass(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(seconds(600), gone).await.unwrap();
        let next = format!("web-{number}");
        server.put(made(&next).owned_by("ReplicaSet", "web"));
        pass(Duration::from_millis(300)).await;
        let output = drain.wait_of(&next).map(|wait| wait.what);
        match number {
            0..=2 => {}
            _ => assert_eq!(
                output,
                Some(WaitReason::ComesBack("ReplicaSet web".to_owned()))
            ),
        }
    }
    let took = server.elapsed() - begun;
    assert!(took >= seconds(15), "{took:?}");
    drain.stop.cancel();
    drop(drain.ended().await);
}

#[tokio::test(start_paused = true)]
async fn without_a_pod_list_no_pod_is_evicted() {
    for refused in [
        refusal(403, "pods is forbidden"),
        refusal(500, "etcd"),
        refusal(503, ""),
    ] {
        let server = Server::with([made("web")]);
        server.lists([refused.clone()]);
        let error = drained(&server, strict()).await.unwrap_err();
        let expected = match refused.code {
            403 => Reason::ApiServerForbidden,
            _ => Reason::ApiServerUnreachable,
        };
        assert_eq!(error.reason(), expected);
        assert_eq!(server.writes(), 0, "{refused:?}");
    }
    // An update retries until the pods can be listed.
    let server = Server::with([made("web")]);
    server.lists([refusal(503, ""), refusal(500, "etcd"), refusal(429, "busy")]);
    assert_eq!(
        drained(&server, unattended()).await.unwrap().progress.gone,
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_scheduled_during_the_drain_is_evicted() {
    let server = Server::with([made("web")]);
    server.pods_end_after(Some(seconds(20)));
    let running = start(&server, unattended());
    pass(seconds(5)).await;
    server.put(made("late"));
    let drained = running.ended().await.unwrap();
    assert_eq!(drained.progress.gone, 2);
    assert_eq!(server.evictions("late")[0].as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn the_final_pod_list_finds_pods_missed_by_the_watch() {
    let server = Server::with([made("web")]);
    let running = start(&server, unattended());
    pass(seconds(1)).await;
    // The watch does not report this pod.
    server.set_watch_silent(true);
    server.put(made("late"));
    server.set_watch_silent(false);
    let drained = running.ended().await.unwrap();
    assert_eq!(drained.progress.gone, 2);
    assert_eq!(server.evictions("late").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_ended_pod_watch_resumes_at_its_resource_version() {
    let server = Server::with([made("web")]);
    server.pods_end_after(Some(seconds(600)));
    let running = start(&server, unattended());
    for _ in 0..5 {
        pass(seconds(60)).await;
        server.ends_watches();
    }
    running.ended().await.unwrap();
    let log = server.log();
    let watches = log
        .iter()
        .filter(|(_, call)| matches!(call, Call::Watch(_)));
    assert_eq!(watches.count(), 6);
    let lists = log.iter().filter(|(_, call)| *call == Call::List).count();
    assert_eq!(lists, 2, "the first and the last");
    assert!(server.elapsed() < seconds(602));
}

#[tokio::test(start_paused = true)]
async fn an_already_deleted_pod_counts_as_evicted() {
    let server = Server::with([made("web")]);
    // Only the response reports it: the watch is silent.
    server.set_watch_silent(true);
    let running = start(&server, unattended());
    pass(Duration::from_millis(6)).await;
    server.remove("uid-web");
    running.ended().await.unwrap();
    assert_eq!(server.evictions("web").len(), 1);
    assert!(server.elapsed() < seconds(1));
}

#[tokio::test(start_paused = true)]
async fn a_recreated_pod_of_the_same_name_is_treated_as_a_new_pod() {
    // Reported by the watch, or only by the response.
    for silent in [false, true] {
        replaced(silent).await;
    }
}

async fn replaced(silent: bool) {
    let server = Server::with([made("db")]);
    server.set_watch_silent(silent);
    let running = start(&server, unattended());
    pass(Duration::from_millis(6)).await;
    server.remove("uid-db");
    let uid = serde_json::json!({"metadata": {"uid": "another"}});
    // The member of the same name now belongs to a DaemonSet: it stays.
    server.daemon_set("db");
    server.put(made("db").with(uid).owned_by("DaemonSet", "db"));
    let drained = running.ended().await.unwrap();
    assert_eq!(drained.progress.gone, 1);
    assert_eq!(server.evictions("db").len(), 1);
    // The replacement must be evicted as well: the request has its own UID.
    let uid = serde_json::json!({"metadata": {"uid": "a-third"}});
    let server = Server::with([made("db")]);
    server.set_watch_silent(silent);
    let running = start(&server, unattended());
    pass(Duration::from_millis(6)).await;
    server.remove("uid-db");
    server.put(made("db").with(uid));
    server.set_watch_silent(false);
    assert_eq!(running.ended().await.unwrap().progress.gone, 2);
    assert_eq!(server.evictions("db").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_the_eviction_api_the_drain_fails_unless_deletion_is_allowed() {
    let unknown = refusal(404, "the server could not find the requested resource");
    let server = Server::with([made("web")]);
    server.always("web", unknown.clone());
    let error = drained(&server, unattended()).await.unwrap_err();
    assert!(matches!(error, DrainError::NotServed), "{error}");
    let server = Server::with([made("web")]);
    server.always("web", unknown);
    let options = Options {
        way: BudgetMode::Delete,
        ..unattended()
    };
    drained(&server, options).await.unwrap();
    assert_eq!(server.deletions().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_ends_the_drain_and_is_named() {
    let server = Server::with([made("web")]);
    server.always(
        "web",
        refusal(403, "cannot create resource \"pods/eviction\""),
    );
    let error = drained(&server, unattended()).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ApiServerForbidden);
    let message = machinist_base::error_chain::chain(&error);
    for part in ["cannot evict shop/web", "pods/eviction"] {
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_preview_writes_nothing_and_a_server_one_sends_dry_runs() {
    let server = Server::with([made("web"), made("lone").bare(), made("held")]);
    server.always("held", crate::drain::server::budget_refusal());
    let options = Options {
        rules: machinist_drain::DrainRules::unattended(None),
        ..strict()
    };
    let drain = |options: &Options| {
        let pods = std::sync::Arc::new(server.clone());
        machinist_drain::eviction::Drain::new(pods, "a", options.clone(), server.clock())
    };
    server.daemon_set("proxy");
    server.put(made("stays").owned_by("DaemonSet", "proxy"));
    let mut judged = drain(&options).judge().await.unwrap();
    judged.sort();
    let judged: Vec<_> = judged
        .iter()
        .map(|(pod, goes)| (pod.name.as_str(), *goes))
        .collect();
    let expected = [
        ("held", true),
        ("lone", true),
        ("stays", false),
        ("web", true),
    ];
    assert_eq!(judged, expected);
    let plan = drain(&options).rehearse(false).await.unwrap();
    let pods: Vec<_> = plan.evict.iter().map(|one| one.pod.clone()).collect();
    assert_eq!(names(&pods), ["held", "lone", "web"]);
    assert_eq!(server.writes(), 0);
    let plan = drain(&options).rehearse(true).await.unwrap();
    assert!(matches!(
        plan.evict[0].kept_by,
        Some(WaitReason::Budget(..))
    ));
    assert_eq!(plan.evict[2].kept_by, None);
    let how = |call: &Call| match call {
        Call::Evict(_, how) => Some(how.dry_run),
        _ => None,
    };
    let asked: Vec<_> = server
        .log()
        .iter()
        .filter_map(|(_, call)| how(call))
        .collect();
    assert_eq!(asked, [true, true, true]);
    assert!(server.elapsed() < seconds(1), "no waits");
    // Both reports contain the blocking pods, and nothing is evicted.
    let plan = drain(&strict()).rehearse(true).await.unwrap();
    assert_eq!(plan.refuse.len(), 1);
    assert_eq!(server.writes(), 3);
}

#[tokio::test(start_paused = true)]
async fn cancelling_a_drain_waits_for_pending_evictions_and_sends_no_more() {
    let server = Server::with((0..30).map(|n| made(&format!("web-{n:02}"))));
    let running = start(&server, unattended());
    // In the middle of the second ten.
    pass(Duration::from_millis(17)).await;
    assert!(server.in_flight() > 0);
    running.stop.cancel();
    let error = running.ended().await.unwrap_err();
    assert_eq!(error.reason(), Reason::Withdrawn);
    assert_eq!(server.in_flight(), 0);
    let asked = server.writes();
    assert!(asked < 30, "{asked}");
    pass(seconds(60)).await;
    assert_eq!(server.writes(), asked);
    // After a restart no eviction is requested twice.
    drained(&server, unattended()).await.unwrap();
    assert_eq!(server.writes(), 30);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_request_without_response_times_out() {
    let server = Server::with([made("web")]);
    server.hangs(true);
    let error = drained(&server, strict()).await.unwrap_err();
    assert!(matches!(
        error,
        DrainError::Unreachable {
            source: EvictionCallError::NoAnswer(_),
            ..
        }
    ));
    assert_eq!(server.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_drain_cancelled_before_its_start_sends_no_request() {
    let server = Server::with([made("web").deleting_by(at(9))]);
    let stop = CancellationToken::new();
    stop.cancel();
    let running = start(&server, unattended());
    running.stop.cancel();
    assert!(running.ended().await.is_err());
    assert_eq!(server.writes(), 0);
}
