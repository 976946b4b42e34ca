//! Which pods are evicted, stay, or block the drain: kubectl's filters.

use std::time::Duration;

use machinist_drain::{
    CLUSTER_CRITICAL_PRIORITY, DaemonSets, DrainRules, LossPolicy, NODE_CRITICAL_PRIORITY,
    NamespacePattern, PodDisposition, PodNote, PriorityTier, classify, controllers, in_order,
};
use serde_json::json;

use crate::drain::support::{Made, at, made};

fn strict() -> DrainRules {
    DrainRules::default()
}

fn ignoring() -> DrainRules {
    DrainRules {
        leave_daemon_sets: true,
        ..strict()
    }
}

fn forced() -> DrainRules {
    DrainRules {
        unmanaged: LossPolicy::Evict,
        ..ignoring()
    }
}

fn judged(pod: &Made, rules: &DrainRules) -> PodDisposition {
    classify(&pod.pod(), rules, &DaemonSets::default(), at(0))
}

fn evict() -> PodDisposition {
    PodDisposition::Evict(Vec::new())
}

fn local_data() -> PodNote {
    PodNote::LocalData(vec!["scratch".to_owned()])
}

#[test]
fn pods_managed_by_a_controller_are_evicted() {
    for kind in [
        "ReplicaSet",
        "StatefulSet",
        "ReplicationController",
        "Job",
        "Gizmo",
    ] {
        // The owner is not looked up: it may not exist, or be of an unknown kind.
        let pod = made("web").owned_by(kind, "gone");
        assert_eq!(judged(&pod, &strict()), evict(), "{kind}");
    }
}

#[test]
fn a_pod_with_empty_dir_data_refuses_the_drain_until_allowed() {
    let pod = made("job").owned_by("Job", "batch").local_data();
    assert_eq!(
        judged(&pod, &strict()),
        PodDisposition::Refuse(vec![local_data()])
    );
    let rules = DrainRules {
        local_data: LossPolicy::Evict,
        ..strict()
    };
    assert_eq!(
        judged(&pod, &rules),
        PodDisposition::Evict(vec![local_data()])
    );
    assert_eq!(
        judged(&pod.clone().finished("Succeeded"), &strict()),
        evict()
    );
    assert_eq!(judged(&pod.finished("Failed"), &strict()), evict());
}

#[test]
fn daemon_set_pods_are_ignored_or_refuse_and_finished_ones_are_evicted() {
    let pod = made("proxy").owned_by("DaemonSet", "proxy");
    let note = PodNote::DaemonSetPod;
    assert_eq!(
        judged(&pod, &ignoring()),
        PodDisposition::Leave(Some(note.clone()))
    );
    assert_eq!(judged(&pod, &strict()), PodDisposition::Refuse(vec![note]));
    assert_eq!(judged(&pod.clone().finished("Failed"), &strict()), evict());
    // The same kind in another group is no DaemonSet.
    let own = json!({"metadata": {"ownerReferences": [{"apiVersion": "acme.dev/v1",
        "kind": "DaemonSet", "name": "x", "uid": "o", "controller": true}]}});
    assert_eq!(judged(&pod.with(own), &strict()), evict());
}

#[test]
fn a_pod_of_a_deleted_daemon_set_is_evicted_only_by_force() {
    let pod = made("proxy").owned_by("DaemonSet", "proxy");
    let mut sets = DaemonSets::default();
    for (namespace, name) in controllers([&pod.pod()]) {
        assert_eq!((namespace.as_str(), name.as_str()), ("shop", "proxy"));
        sets.insert(&namespace, &name, false);
    }
    let gone = PodNote::DaemonSetMissing("proxy".to_owned());
    let judged = |rules: &DrainRules| classify(&pod.pod(), rules, &sets, at(0));
    assert_eq!(
        judged(&ignoring()),
        PodDisposition::Refuse(vec![gone.clone()])
    );
    assert_eq!(judged(&forced()), PodDisposition::Evict(vec![gone]));
    assert!(controllers([&pod.clone().finished("Failed").pod()]).is_empty());
}

#[test]
fn a_mirror_pod_of_a_deleted_daemon_set_is_refused_without_force() {
    let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}});
    let pod = made("proxy")
        .owned_by("DaemonSet", "proxy")
        .with(mirror)
        .pod();
    let mut sets = DaemonSets::default();
    sets.insert("shop", "proxy", false);
    let gone = PodNote::DaemonSetMissing("proxy".to_owned());
    let verdict = |rules: &DrainRules| classify(&pod, rules, &sets, at(0));
    assert_eq!(verdict(&ignoring()), PodDisposition::Refuse(vec![gone]));
    assert_eq!(verdict(&forced()), PodDisposition::Leave(None));
}

#[test]
fn mirror_pods_are_skipped_silently() {
    let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}});
    let pod = made("etcd").bare().local_data().with(mirror);
    assert_eq!(judged(&pod, &strict()), PodDisposition::Leave(None));
    assert_eq!(judged(&pod, &forced()), PodDisposition::Leave(None));
}

#[test]
fn an_unmanaged_pod_is_evicted_only_by_force_and_all_reasons_are_reported() {
    let pod = made("lone").bare();
    assert_eq!(
        judged(&pod, &ignoring()),
        PodDisposition::Refuse(vec![PodNote::Unmanaged])
    );
    assert_eq!(
        judged(&pod, &forced()),
        PodDisposition::Evict(vec![PodNote::Unmanaged])
    );
    let pod = pod.local_data();
    let both = vec![local_data(), PodNote::Unmanaged];
    assert_eq!(
        judged(&pod, &strict()),
        PodDisposition::Refuse(both.clone())
    );
    assert_eq!(
        judged(&pod, &DrainRules::unattended(None)),
        PodDisposition::Evict(both)
    );
    assert_eq!(
        judged(&pod, &forced()),
        PodDisposition::Refuse(vec![local_data()])
    );
    assert_eq!(judged(&pod.finished("Succeeded"), &strict()), evict());
}

#[test]
fn the_agents_own_pod_is_never_evicted_even_without_its_daemon_set() {
    let pod = made("machinist").owned_by("DaemonSet", "machinist");
    let mut sets = DaemonSets::default();
    sets.insert("shop", "machinist", false);
    let rules = DrainRules::unattended(Some("uid-machinist".to_owned()));
    let own = classify(&pod.pod(), &rules, &sets, at(0));
    assert_eq!(own, PodDisposition::Leave(None));
    let other = classify(&pod.pod(), &DrainRules::unattended(None), &sets, at(0));
    assert!(matches!(other, PodDisposition::Evict(_)), "{other:?}");
}

#[test]
fn pods_of_excluded_namespaces_are_skipped() {
    let rules = DrainRules {
        left_out: vec![
            NamespacePattern::new("kube-*"),
            NamespacePattern::new("*-keep-*-me"),
        ],
        ..strict()
    };
    for (namespace, left) in [
        ("kube-system", true),
        ("kube-", true),
        ("my-kube-system", false),
        ("a-keep-b-me", true),
        ("a-keep-me", false),
        ("shop", false),
    ] {
        let verdict = judged(&made("web").bare().in_namespace(namespace), &rules);
        let note = PodDisposition::Leave(Some(PodNote::LeftOut));
        assert_eq!(verdict == note, left, "{namespace}: {verdict:?}");
    }
    assert!(NamespacePattern::new("shop").matches("shop"));
    assert!(!NamespacePattern::new("shop").matches("shops"));
}

#[test]
fn a_long_overdue_terminating_pod_is_skipped_if_configured() {
    let pod = made("slow").deleting_by(at(-61));
    let rules = DrainRules {
        skip_deleted: Some(Duration::from_secs(60)),
        ..strict()
    };
    let skipped = PodDisposition::Leave(Some(PodNote::EndsTooSlowly));
    assert_eq!(judged(&pod, &rules), skipped);
    assert_eq!(judged(&pod, &strict()), evict());
    // The deadline is in the future: a pod that ends before it is not overdue.
    assert_eq!(judged(&made("slow").deleting_by(at(3600)), &rules), evict());
    assert_eq!(judged(&made("slow").deleting_by(at(-60)), &rules), evict());
}

#[test]
fn critical_pods_are_evicted_last_others_by_namespace_and_name() {
    let pods = [
        made("c").priority(NODE_CRITICAL_PRIORITY),
        made("b").priority(CLUSTER_CRITICAL_PRIORITY),
        made("z").priority(1_000_000_000),
        made("a").in_namespace("zoo"),
        made("y"),
    ];
    let ordered = in_order(pods.iter().map(Made::pod).collect());
    let names: Vec<_> = ordered.iter().map(|pod| pod.id.to_string()).collect();
    assert_eq!(names, ["shop/y", "shop/z", "zoo/a", "shop/b", "shop/c"]);
    assert_eq!(
        PriorityTier::of(&made("u").priority(CLUSTER_CRITICAL_PRIORITY - 1).pod()),
        PriorityTier::Ordinary
    );
    assert_eq!(
        PriorityTier::of(&made("u").priority(NODE_CRITICAL_PRIORITY - 1).pod()),
        PriorityTier::ClusterCritical
    );
}
