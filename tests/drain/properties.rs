//! Properties of every pod and every rule.

use std::time::Duration;

use machinist_drain::{
    BudgetForecast, DaemonSets, DrainRules, ForceAction, ForceLimits, LossPolicy, Pod,
    PodDisposition, PriorityTier, classify, in_order, prospect,
};
use proptest::prelude::*;
use serde_json::json;

use crate::drain::support::{Made, at, budget, made};

/// A pod of any kind, varied in the fields that the filters use.
fn any_pod() -> impl Strategy<Value = Made> {
    let kinds = prop_oneof![
        Just(None),
        Just(Some("ReplicaSet")),
        Just(Some("DaemonSet")),
        Just(Some("Job"))
    ];
    let phases = prop_oneof![
        Just("Running"),
        Just("Pending"),
        Just("Succeeded"),
        Just("Failed")
    ];
    let choices = (any::<[bool; 4]>(), -5..90_i64, 0..3_i32, "[a-d]");
    (kinds, phases, choices).prop_map(|(kind, phase, (flags, deadline, tier, name))| {
        let mut pod = made(&name).finished(phase).priority(tier * 1_000_000_500);
        pod = match kind {
            Some(kind) => pod.owned_by(kind, "owner"),
            None => pod.bare(),
        };
        if flags[0] {
            pod = pod.local_data();
        }
        if flags[1] {
            pod = pod.unready();
        }
        if flags[2] {
            pod = pod.deleting_by(at(deadline));
        }
        if flags[3] {
            let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": ""}}});
            pod = pod.with(mirror);
        }
        pod
    })
}

fn any_rules() -> impl Strategy<Value = DrainRules> {
    (any::<[bool; 4]>()).prop_map(|[ignore, force, data, skip]| {
        let permit = |yes| {
            if yes {
                LossPolicy::Evict
            } else {
                LossPolicy::Refuse
            }
        };
        DrainRules {
            leave_daemon_sets: ignore,
            unmanaged: permit(force),
            local_data: permit(data),
            skip_deleted: skip.then_some(Duration::from_secs(1)),
            ..DrainRules::default()
        }
    })
}

fn gone() -> DaemonSets {
    let mut sets = DaemonSets::default();
    sets.insert("shop", "owner", false);
    sets
}

proptest! {
    #[test]
    fn the_agents_own_pod_is_skipped_under_every_rule(pod in any_pod(), rules in any_rules()) {
        let rules = DrainRules { own: Some(pod.pod().id.uid), ..rules };
        prop_assert_eq!(classify(&pod.pod(), &rules, &gone(), at(0)), PodDisposition::Leave(None));
    }

    #[test]
    fn a_mirror_pod_is_never_evicted_unless_owned_by_a_daemon_set(pod in any_pod(), rules in any_rules()) {
        let pod = pod.pod();
        if pod.mirror && pod.controller.as_ref().is_none_or(|owner| owner.kind != "DaemonSet") {
            let verdict = classify(&pod, &rules, &gone(), at(0));
            prop_assert!(matches!(verdict, PodDisposition::Leave(_)), "{:?}", verdict);
        }
    }

    #[test]
    fn allowing_more_never_makes_a_pod_refuse_the_drain(pod in any_pod(), rules in any_rules()) {
        let strict = classify(&pod.pod(), &rules, &gone(), at(0));
        let more = DrainRules { unmanaged: LossPolicy::Evict, local_data: LossPolicy::Evict,
            leave_daemon_sets: true, ..rules };
        let allowed = classify(&pod.pod(), &more, &gone(), at(0));
        prop_assert!(!matches!(allowed, PodDisposition::Refuse(_)), "{:?}", allowed);
        if matches!(strict, PodDisposition::Evict(_)) {
            prop_assert!(matches!(allowed, PodDisposition::Evict(_)), "{:?}", allowed);
        }
    }

    #[test]
    fn a_finished_pod_never_refuses_the_drain(pod in any_pod(), rules in any_rules()) {
        let pod = pod.finished("Succeeded").pod();
        let verdict = classify(&pod, &rules, &gone(), at(0));
        prop_assert!(!matches!(verdict, PodDisposition::Refuse(_)), "{:?}", verdict);
    }

    #[test]
    fn eviction_order_keeps_every_pod_and_puts_critical_pods_last(pods in prop::collection::vec(any_pod(), 0..20)) {
        let pods: Vec<Pod> = pods.iter().map(Made::pod).collect();
        let ordered = in_order(pods.clone());
        prop_assert!(ordered.is_sorted_by_key(PriorityTier::of));
        let names = |pods: &[Pod]| {
            let mut names: Vec<_> = pods.iter().map(|pod| pod.id.clone()).collect();
            names.sort();
            names
        };
        prop_assert_eq!(names(&pods), names(&ordered));
    }

    /// The server's arithmetic: the allowed disruptions are the healthy pods above the required
    /// number.
    #[test]
    fn a_budget_allows_a_ready_pod_exactly_with_surplus_healthy_pods(
        desired in 0..6_i32, current in 0..6_i32, expected in 1..6_i32,
    ) {
        let current = current.min(expected);
        let allowed = (current - desired).max(0);
        let budgets = [budget("b", json!({"minAvailable": desired}), [allowed, current, desired, expected])];
        let pod = made("web").pod();
        let prospect = prospect(&pod, &budgets);
        prop_assert_eq!(matches!(prospect, BudgetForecast::Allowed(_)), current > desired);
        // Even if all pods become healthy, no disruption is ever allowed.
        let never = expected <= desired;
        prop_assert_eq!(matches!(prospect, BudgetForecast::Never(_)), never);
    }

    #[test]
    fn nothing_is_forced_before_its_limit_regardless_of_restarts(
        limit in 1..10_000_u64, spent in 0..10_000_u64, again in 0..10_000_u64,
    ) {
        let seconds = Duration::from_secs;
        let limits = ForceLimits::after(Some(seconds(limit)));
        let pod = made("web").pod();
        // Two runs; the second is given the time that the first reported.
        let total = seconds(spent) + seconds(again);
        let forced = limits.act(&pod, true, total, false) == ForceAction::Delete;
        prop_assert_eq!(forced, spent + again >= limit);
        if let Some(left) = limits.next(seconds(spent)) {
            prop_assert!(limits.reached(true, seconds(spent) + left));
            prop_assert!(!limits.reached(true, seconds(spent) + left - Duration::from_millis(1)));
        }
    }
}
