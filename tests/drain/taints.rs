//! Taints and tolerations.

use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use machinist_drain::{
    BadToleration, PodToleration, Taint, TaintEffectOnPod, TolerationTime, evaluate_taints,
};
use serde_json::{Value, json};

fn taint(key: &str, value: &str, effect: &str) -> Taint {
    let taint = json!({"key": key, "value": value, "effect": effect});
    let taint: core::Taint = serde_json::from_value(taint).unwrap();
    Taint::read(&taint).unwrap()
}

fn toleration(given: Value) -> Result<PodToleration, BadToleration> {
    let given: core::Toleration = serde_json::from_value(given).unwrap();
    PodToleration::try_from(&given)
}

fn tolerating(all: &[Value]) -> Vec<PodToleration> {
    all.iter()
        .map(|one| toleration(one.clone()).unwrap())
        .collect()
}

#[test]
fn an_untolerated_no_schedule_taint_blocks_new_pods_and_keeps_running_ones() {
    let taints = [
        taint("key1", "value1", "NoSchedule"),
        taint("key1", "value1", "NoExecute"),
        taint("key2", "value2", "NoSchedule"),
    ];
    let tolerations = tolerating(&[
        json!({"key": "key1", "operator": "Equal", "value": "value1", "effect": "NoSchedule"}),
        json!({"key": "key1", "operator": "Equal", "value": "value1", "effect": "NoExecute"}),
    ]);
    let expected = TaintEffectOnPod {
        schedulable: false,
        avoided: false,
        stay: TolerationTime::Forever,
    };
    assert_eq!(evaluate_taints(&taints, &tolerations), expected);
    assert_eq!(evaluate_taints(&taints, &[]).stay, TolerationTime::Leaves);
    assert!(evaluate_taints(&taints[..2], &tolerations).schedulable);
}

#[test]
fn a_toleration_exists_without_key_tolerates_everything() {
    let taints =
        ["NoSchedule", "PreferNoSchedule", "NoExecute"].map(|effect| taint("k", "v", effect));
    let everything = tolerating(&[json!({"operator": "Exists"})]);
    let expected = TaintEffectOnPod {
        schedulable: true,
        avoided: false,
        stay: TolerationTime::Forever,
    };
    assert_eq!(evaluate_taints(&taints, &everything), expected);
    assert!(evaluate_taints(&taints[1..2], &[]).avoided);
    assert!(evaluate_taints(&taints[1..2], &[]).schedulable);
}

#[test]
fn a_toleration_without_operator_means_equal() {
    let on = taint("k", "v", "NoSchedule");
    for (given, covers) in [
        (json!({"key": "k", "value": "v"}), true),
        (
            json!({"key": "k", "value": "v", "effect": "NoSchedule"}),
            true,
        ),
        (
            json!({"key": "k", "value": "v", "effect": "NoExecute"}),
            false,
        ),
        (json!({"key": "k"}), false),
        (json!({"key": "k", "operator": "Exists"}), true),
        (json!({"key": "j", "operator": "Exists"}), false),
        (json!({"operator": "Exists", "effect": "NoExecute"}), false),
    ] {
        assert_eq!(
            toleration(given.clone()).unwrap().covers(&on),
            covers,
            "{given}"
        );
    }
}

#[test]
fn tolerations_invalid_for_the_api_server_are_rejected() {
    for (given, error) in [
        (
            json!({"key": "k", "operator": "Exists", "value": "v"}),
            BadToleration::ValueWithExists("v".to_owned()),
        ),
        (json!({"value": "v"}), BadToleration::EqualWithoutKey),
        (
            json!({"key": "k", "operator": "Like"}),
            BadToleration::Operator("Like".to_owned()),
        ),
        (
            json!({"key": "k", "effect": "Never"}),
            BadToleration::Effect("Never".to_owned()),
        ),
        (
            json!({"key": "k", "operator": "Exists", "tolerationSeconds": 3}),
            BadToleration::SecondsWithoutNoExecute,
        ),
    ] {
        assert_eq!(toleration(given.clone()), Err(error), "{given}");
    }
}

#[test]
fn a_taint_removed_within_toleration_seconds_evicts_no_pod() {
    let away = taint("node.kubernetes.io/not-ready", "", "NoExecute");
    let seconds = |seconds: i64| {
        json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists",
            "effect": "NoExecute", "tolerationSeconds": seconds})
    };
    let stay = |taints: &[Taint], all: &[Value]| evaluate_taints(taints, &tolerating(all)).stay;
    let on = [away];
    let five_minutes = TolerationTime::For(Duration::from_secs(300));
    assert_eq!(stay(&on, &[seconds(300)]), five_minutes);
    assert_eq!(stay(&[], &[seconds(300)]), TolerationTime::Forever);
    assert_eq!(stay(&on, &[seconds(900), seconds(300)]), five_minutes);
    assert_eq!(stay(&on, &[seconds(0)]), TolerationTime::Leaves);
    assert_eq!(stay(&on, &[seconds(-5)]), TolerationTime::Leaves);
}
