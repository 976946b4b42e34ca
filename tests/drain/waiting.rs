//! The reported reason why a pod has not ended.

use machinist_base::reason::Reason;
use machinist_drain::{BudgetForecast, PodWait, WaitReason, prospect};
use serde_json::json;

use crate::drain::support::{Made, at, budget, made};

fn wait(pod: &Made, what: WaitReason) -> PodWait {
    let pod = pod.pod();
    PodWait {
        expected_end: pod.deleting,
        pod: pod.id,
        what,
        since: at(0),
        too_late_for: None,
    }
}

#[test]
fn a_blocking_budget_is_reported_with_its_rule_and_counts() {
    let budgets = [budget("web", json!({"maxUnavailable": 1}), [0, 2, 2, 3])];
    let pod = made("web-1");
    let what = WaitReason::from_prospect(&pod.pod(), &prospect(&pod.pod(), &budgets)).unwrap();
    let wait = wait(&pod, what);
    assert_eq!(wait.what.reason(), Reason::DrainBlockedByBudget);
    assert_eq!(
        wait.sentence(),
        "shop/web-1: eviction blocked by PodDisruptionBudget web (maxUnavailable 1): 2 of 3 pods healthy, 2 required"
    );
    assert!(wait.blocks());
}

#[test]
fn a_budget_that_never_allows_disruptions_is_reported_with_a_remedy() {
    let budgets = [budget("web", json!({"minAvailable": 3}), [0, 2, 3, 3])];
    let pod = made("web-1").unready();
    let what = WaitReason::from_prospect(&pod.pod(), &prospect(&pod.pod(), &budgets)).unwrap();
    assert_eq!(what.reason(), Reason::DrainBudgetNeverAllows);
    let message = wait(&pod, what).sentence();
    for part in [
        "web (minAvailable 3)",
        "3 of 3",
        "maxUnavailable 1",
        "AlwaysAllow",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(
        WaitReason::from_prospect(&pod.pod(), &BudgetForecast::Free),
        None
    );
}

#[test]
fn a_long_grace_period_is_reported_with_its_end_and_an_earlier_limit() {
    let pod = made("slow").deleting_by(at(3600));
    let what = WaitReason::of_terminating(&pod.pod(), at(1));
    let mut wait = wait(&pod, what);
    assert_eq!(
        wait.sentence(),
        "shop/slow is terminating, by 2027-01-15T09:00:00Z at the latest"
    );
    assert!(!wait.blocks());
    wait.too_late_for = Some(at(600));
    assert!(wait.blocks());
    assert!(
        wait.sentence()
            .contains("after the drain timeout (2027-01-15T08:10:00Z)")
    );
}

#[test]
fn a_pod_held_by_a_finalizer_is_reported_with_its_name() {
    let held = made("db")
        .finalizers(&["acme.dev/volume"])
        .deleting_by(at(30));
    // It still runs within its grace period.
    assert_eq!(
        WaitReason::of_terminating(&held.pod(), at(10)),
        WaitReason::Ending
    );
    // It still runs after its grace period: the kubelet is responsible, regardless of finalizers.
    assert_eq!(
        WaitReason::of_terminating(&held.pod(), at(61)),
        WaitReason::Overdue
    );
    let ended = held.ended();
    let what = WaitReason::of_terminating(&ended.pod(), at(10));
    assert_eq!(what.reason(), Reason::DrainHeldByFinalizer);
    assert!(wait(&ended, what).sentence().contains("acme.dev/volume"));
}

#[test]
fn a_pod_past_its_grace_period_is_reported_as_overdue() {
    let pod = made("slow").deleting_by(at(30));
    assert_eq!(
        WaitReason::of_terminating(&pod.pod(), at(60)),
        WaitReason::Ending
    );
    let late = WaitReason::of_terminating(&pod.pod(), at(61));
    assert_eq!(late, WaitReason::Overdue);
    assert!(wait(&pod, late).blocks());
}
