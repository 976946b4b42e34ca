//! Drains that wait: for PodDisruptionBudgets, for the server, for pods.

use std::time::Duration;

use machinist_base::reason::Reason;
use machinist_drain::{
    DrainRules, EvictionError, WaitReason,
    eviction::{DrainError, EvictionMethod, Options},
};
use serde_json::json;

use crate::drain::{
    progress::{drained, names, pass, seconds, start, start_after, unattended},
    server::{Server, because, budget_refusal, refusal},
    support::{at, budget, made},
};

fn held(pod: &str) -> Server {
    let server = Server::with([made(pod)]);
    server.budget(budget("web", json!({"maxUnavailable": 1}), [0, 2, 2, 3]));
    server.always(pod, budget_refusal());
    server
}

fn forcing(after: Duration) -> Options {
    Options::unattended(None, Some(after))
}

#[tokio::test(start_paused = true)]
async fn eviction_retries_with_backoff_and_never_bypasses_a_budget() {
    let server = held("web");
    let running = start(&server, unattended());
    pass(seconds(600)).await;
    assert!(running.is_running());
    assert_eq!(server.deletions(), []);
    let asked = server.evictions("web");
    assert!((30..=45).contains(&asked.len()), "{}", asked.len());
    let pauses: Vec<_> = asked.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses[0] >= Duration::from_millis(3750), "{pauses:?}");
    assert!(
        pauses.iter().all(|pause| *pause <= seconds(21)),
        "{pauses:?}"
    );
    assert!(pauses[10] > pauses[0] * 2, "{pauses:?}");
    server.clear_response("web");
    let lifted = server.elapsed();
    running.ended().await.unwrap();
    assert!(server.elapsed() - lifted <= seconds(23));
}

#[tokio::test(start_paused = true)]
async fn a_drain_blocker_is_reported_within_a_second_with_its_budget() {
    let server = held("web");
    let mut running = start(&server, unattended());
    let progress = running.until(|now| now.blockers().count() > 0).await;
    assert!(server.elapsed() < seconds(1), "{:?}", server.elapsed());
    let wait = &progress.waits[0];
    assert_eq!(wait.what.reason(), Reason::DrainBlockedByBudget);
    let message = wait.sentence();
    for part in [
        "shop/web",
        "PodDisruptionBudget web",
        "maxUnavailable 1",
        "2 of 3",
    ] {
        assert!(message.contains(part), "{message}");
    }
    pass(seconds(120)).await;
    assert_eq!(running.wait_of("web").unwrap().since, wait.since);
    // The budget's current numbers.
    server.budget(budget("web", json!({"maxUnavailable": 1}), [0, 1, 2, 3]));
    running
        .until(|now| now.waits[0].sentence().contains("1 of 3"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_never_allows_disruptions_is_reported_before_eviction() {
    let server = Server::with([made("a"), made("b")]);
    server.budget(budget("web", json!({"maxUnavailable": 0}), [0, 2, 2, 2]));
    // No eviction is answered: the reported reason comes from the budget alone.
    let mut running = start(&server, unattended());
    pass(Duration::from_millis(8)).await;
    server.hangs(true);
    let progress = running.until(|now| now.begun).await;
    let foreseen = |wait: &machinist_drain::PodWait| matches!(wait.what, WaitReason::Never(..));
    assert_eq!(
        progress.waits.iter().filter(|wait| foreseen(wait)).count(),
        2
    );
    let server = Server::with([made("a"), made("b")]);
    server.budget(budget("web", json!({"maxUnavailable": 0}), [0, 2, 2, 2]));
    for pod in ["a", "b"] {
        server.always(pod, budget_refusal());
    }
    let mut running = start(&server, unattended());
    let (mut message, asked) = (running.progress.clone(), server.clone());
    let asked = tokio::spawn(async move {
        message.wait_for(|now| now.begun).await.unwrap();
        asked.writes()
    });
    let progress = running.until(|now| now.begun).await;
    assert_eq!(asked.await.unwrap(), 0, "no pod was evicted yet");
    let reasons: Vec<_> = progress
        .waits
        .iter()
        .map(|wait| wait.what.reason())
        .collect();
    assert_eq!(reasons, [Reason::DrainBudgetNeverAllows; 2]);
    // The eviction is requested all the same: the budget may change at any time.
    pass(seconds(30)).await;
    assert!(server.writes() > 1);
    assert_eq!(server.deletions(), []);
    assert_eq!(
        running.wait_of("a").unwrap().what.reason(),
        Reason::DrainBudgetNeverAllows
    );
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_blocking_budget_are_retried_one_at_a_time() {
    let server = Server::with((0..20).map(|n| made(&format!("web-{n:02}"))));
    server.budget(budget("web", json!({"maxUnavailable": 1}), [0, 2, 2, 3]));
    for n in 0..20 {
        server.always(&format!("web-{n:02}"), budget_refusal());
    }
    let running = start(&server, unattended());
    pass(seconds(300)).await;
    let asked = server.writes();
    assert!((15..=35).contains(&asked), "{asked}");
    // Ten were requested together and refused together: the back-off is that of one refusal, not of
    // ten.
    let tenth = server
        .log()
        .into_iter()
        .map(|(at, _)| at)
        .filter(|at| *at > seconds(1));
    assert!(tenth.min().unwrap() <= Duration::from_millis(5100));
    assert_eq!(running.now().blockers().count(), 20);
    for n in 0..20 {
        server.clear_response(&format!("web-{n:02}"));
    }
    let lifted = server.elapsed();
    assert_eq!(running.ended().await.unwrap().progress.gone, 20);
    assert!(server.elapsed() - lifted <= seconds(23));
}

#[tokio::test(start_paused = true)]
async fn eviction_honours_retry_after_of_a_busy_api_server() {
    let server = Server::with([made("web")]);
    let busy = EvictionError {
        retry_after: Some(seconds(17)),
        ..refusal(429, "too many requests")
    };
    server.answers("web", [busy]);
    let mut running = start(&server, unattended());
    let progress = running.until(|now| !now.waits.is_empty()).await;
    assert_eq!(progress.waits[0].what, WaitReason::Throttled);
    assert_eq!(progress.blockers().count(), 0);
    running.ended().await.unwrap();
    let asked: Vec<_> = server
        .evictions("web")
        .iter()
        .map(Duration::as_secs)
        .collect();
    assert_eq!(asked, [0, 17]);
}

#[tokio::test(start_paused = true)]
async fn eviction_honours_retry_after_while_a_budget_has_no_status() {
    let server = Server::with([made("web")]);
    let pending = EvictionError {
        retry_after: Some(seconds(10)),
        ..because(
            429,
            "DisruptionBudget",
            "The disruption budget web is still being processed",
        )
    };
    server.answers("web", [pending]);
    drained(&server, unattended()).await.unwrap();
    let asked: Vec<_> = server
        .evictions("web")
        .iter()
        .map(Duration::as_secs)
        .collect();
    assert_eq!(asked, [0, 10]);
}

#[tokio::test(start_paused = true)]
async fn pods_in_a_terminating_namespace_are_retried_or_waited_for() {
    let ends = because(
        403,
        "NamespaceTerminating",
        "namespace shop is being terminated",
    );
    let server = Server::with([made("web"), made("leaving").deleting_by(at(30))]);
    server.always("web", ends.clone());
    server.always("leaving", ends);
    let mut running = start(&server, unattended());
    let progress = running.until(|now| now.waits.len() == 2).await;
    assert_eq!(
        progress.waits[1].what.reason(),
        Reason::NamespaceTerminating
    );
    pass(seconds(8)).await;
    assert!(server.evictions("web").len() >= 2);
    assert!(
        server.evictions("leaving").is_empty(),
        "it is only waited for"
    );
    server.remove("uid-leaving");
    server.clear_response("web");
    assert_eq!(running.ended().await.unwrap().progress.gone, 2);
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_two_budgets_reports_both_and_keeps_draining() {
    let server = Server::with([made("web")]);
    for name in ["one", "two"] {
        server.budget(budget(name, json!({"maxUnavailable": 1}), [1, 3, 2, 3]));
    }
    let words = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    server.always("web", refusal(500, words));
    let mut running = start(&server, unattended());
    let progress = running.until(|now| now.begun).await;
    let both = WaitReason::Several(vec!["one".to_owned(), "two".to_owned()]);
    assert_eq!(progress.waits[0].what, both, "before the first eviction");
    pass(seconds(60)).await;
    assert_eq!(running.wait_of("web").unwrap().what, both);
    server.clear_response("web");
    running.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_webhook_denial_is_reported_verbatim_and_retried() {
    let server = Server::with([made("web")]);
    let words = "admission webhook \"v.acme.dev\" denied the request: not today";
    server.answers("web", [refusal(403, words), refusal(403, words)]);
    let mut running = start(&server, unattended());
    let progress = running.until(|now| now.blockers().count() > 0).await;
    assert!(progress.waits[0].sentence().ends_with("not today"));
    running.ended().await.unwrap();
    assert_eq!(server.evictions("web").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_outage_pauses_the_force_limit_and_not_the_time_limit() {
    let server = held("web");
    let options = Options {
        time_limit: Some(seconds(200)),
        ..forcing(seconds(100))
    };
    let mut running = start(&server, options.clone());
    pass(seconds(40)).await;
    server.become_unreachable();
    running.until(|now| now.away_since.is_some()).await;
    let asked = server.writes();
    pass(seconds(60)).await;
    assert_eq!(
        server.writes(),
        asked,
        "no request to an unreachable server"
    );
    server.become_reachable();
    running.until(|now| now.away_since.is_none()).await;
    let away = server.elapsed() - seconds(40);
    running.until(|now| !now.forced.is_empty()).await;
    let forced = server.deletions()[0].0;
    let expected = seconds(100) + away;
    assert!(
        forced.abs_diff(expected) < seconds(1),
        "{forced:?} {expected:?}"
    );
    running.ended().await.unwrap();
    // The limit of the whole drain applies.
    let server = held("web");
    let limited = Options {
        limits: unattended().limits,
        ..options
    };
    let running = start(&server, limited.clone());
    pass(seconds(100)).await;
    server.become_unreachable();
    let error = running.ended().await.unwrap_err();
    assert!(matches!(error, DrainError::TimedOut { .. }), "{error}");
    assert_eq!(server.elapsed().as_secs(), 200);
    // Also when the outage ends before it.
    let server = held("web");
    let running = start(&server, limited);
    pass(seconds(100)).await;
    server.become_unreachable();
    pass(seconds(20)).await;
    server.become_reachable();
    let error = running.ended().await.unwrap_err();
    assert!(matches!(error, DrainError::TimedOut { .. }), "{error}");
    assert_eq!(server.elapsed().as_secs(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_time_limit_reached_during_a_backoff_ends_the_drain_at_once() {
    let server = held("web");
    let options = Options {
        time_limit: Some(seconds(61)),
        ..unattended()
    };
    let error = drained(&server, options).await.unwrap_err();
    assert_eq!(error.reason(), Reason::DrainTimedOut);
    assert!(
        error.to_string().contains("PodDisruptionBudget web"),
        "{error}"
    );
    assert_eq!(server.elapsed().as_secs(), 61);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_forced_before_the_limit_also_after_an_agent_restart() {
    let server = held("web");
    let limit = seconds(120 * 60);
    let mut first = start(&server, forcing(limit));
    pass(seconds(70 * 60)).await;
    // The last saved progress is at most a minute old.
    let kept = first.until(|now| now.spent > seconds(69 * 60)).await.spent;
    first.stop.cancel();
    first.ended().await.unwrap_err();
    pass(seconds(3600)).await;
    let mut second = start_after(&server, forcing(limit), kept);
    let left = limit - kept;
    let began = server.elapsed();
    pass(left - seconds(1)).await;
    assert_eq!(server.deletions(), []);
    second.until(|now| !now.forced.is_empty()).await;
    let (at, pod, how) = server.deletions().remove(0);
    assert!(
        (at - began).abs_diff(left) < Duration::from_millis(50),
        "{at:?}"
    );
    assert_eq!(
        (pod.as_str(), how),
        ("web", EvictionMethod::default()),
        "its own grace period"
    );
    let drained = second.ended().await.unwrap();
    assert_eq!(names(&drained.progress.forced), ["web"]);
    assert_eq!(names(&drained.progress.overridden), ["web"]);
}

#[tokio::test(start_paused = true)]
async fn a_forced_pod_without_a_budget_is_not_reported_as_blocked() {
    let server = held("web");
    server.put(made("free"));
    let options = unattended();
    let running = start(&server, options);
    running.ordered.send_replace(Some("at once".to_owned()));
    let drained = running.ended().await.unwrap();
    let mut forced = names(&drained.progress.forced);
    forced.sort();
    assert_eq!(forced, ["free", "web"]);
    let overridden = names(&drained.progress.overridden);
    assert!(!overridden.contains(&"free"), "{overridden:?}");
}

#[tokio::test(start_paused = true)]
async fn drain_progress_is_reported_at_least_every_minute() {
    let server = Server::with([made("slow")]);
    server.pods_end_after(None);
    let mut running = start(&server, forcing(seconds(86_400)));
    for minute in 1..10 {
        let message = running
            .until(|now| now.spent >= seconds(minute * 60))
            .await
            .spent;
        assert!(server.elapsed() - message < seconds(1));
        assert!(message < seconds(minute * 60 + 61), "{message:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_force_request_deletes_pods_with_their_own_grace_period() {
    let server = held("web");
    let options = Options {
        grace: machinist_drain::Grace::try_from(5).unwrap(),
        ..unattended()
    };
    let running = start(&server, options);
    pass(seconds(30)).await;
    assert_eq!(server.deletions(), []);
    running
        .ordered
        .send_replace(Some("the rack burns".to_owned()));
    let drained = running.ended().await.unwrap();
    assert_eq!(server.deletions()[0].2, EvictionMethod::default());
    assert_eq!(drained.progress.ordered.as_deref(), Some("the rack burns"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_held_by_a_finalizer_is_reported_and_skipped_past_the_limit() {
    let server = Server::with([made("db").finalizers(&["acme.dev/volume"])]);
    let mut running = start(&server, forcing(seconds(600)));
    let progress = running.until(|now| now.blockers().count() > 0).await;
    assert_eq!(
        progress.waits[0].what.reason(),
        Reason::DrainHeldByFinalizer
    );
    assert!(progress.waits[0].sentence().contains("acme.dev/volume"));
    assert!(server.elapsed() < seconds(4));
    let drained = running.ended().await.unwrap();
    assert_eq!(server.elapsed().as_secs(), 600);
    assert_eq!(names(&drained.progress.left_behind), ["db"]);
    assert_eq!(server.deletions(), []);
}

#[tokio::test(start_paused = true)]
async fn a_running_terminating_pod_is_waited_for_past_every_limit() {
    let server = Server::with([made("slow").grace(3600)]);
    server.pods_end_after(Some(seconds(3000)));
    drained(&server, forcing(seconds(60))).await.unwrap();
    assert_eq!(server.elapsed().as_secs(), 3000);
    assert_eq!(server.deletions(), []);
}

#[tokio::test(start_paused = true)]
async fn a_grace_period_beyond_the_limit_is_reported_at_once() {
    let server = Server::with([made("slow").grace(3600)]);
    server.pods_end_after(None);
    let options = Options {
        time_limit: Some(seconds(600)),
        ..unattended()
    };
    let mut running = start(&server, options);
    let progress = running.until(|now| now.blockers().count() > 0).await;
    assert!(server.elapsed() < seconds(1));
    assert_eq!(
        progress.waits[0]
            .expected_end
            .unwrap()
            .duration_since(at(3600))
            .as_secs(),
        0
    );
    assert!(
        progress.waits[0]
            .sentence()
            .contains("after the drain timeout")
    );
}

#[tokio::test(start_paused = true)]
async fn an_overdue_terminating_pod_is_reported_and_skipped_if_configured() {
    let server = Server::with([made("stuck").grace(10)]);
    server.pods_end_after(None);
    let options = Options {
        rules: DrainRules {
            skip_deleted: Some(seconds(90)),
            ..unattended().rules
        },
        ..unattended()
    };
    let mut running = start(&server, options);
    running.until(|now| now.blockers().count() > 0).await;
    assert_eq!(running.wait_of("stuck").unwrap().what, WaitReason::Overdue);
    assert_eq!(server.elapsed().as_secs(), 40);
    let drained = running.ended().await.unwrap();
    assert_eq!(server.elapsed().as_secs(), 100);
    assert_eq!(names(&drained.progress.left_behind), ["stuck"]);
}
