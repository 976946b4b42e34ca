//! Compares `machinist drain` with `kubectl drain`, over generated pods on a real API server.

use std::{
    collections::BTreeSet,
    process::{Command, Output, Stdio},
    thread,
};

use serde_json::{Map, Value, json};

use crate::support::{Cluster, Dice, lab, rounds, wait};

const PODS_PER_NODE: usize = 12;
const NAMESPACES: [&str; 3] = ["default", "kube-system", "shop"];

/// Owner references by API version, kind, name and whether the owner is the controller.
const OWNERS: [Option<(&str, &str, &str, bool)>; 11] = [
    None,
    Some(("apps/v1", "ReplicaSet", "web", true)),
    Some(("apps/v1", "StatefulSet", "db", true)),
    Some(("batch/v1", "Job", "sum", true)),
    Some(("apps/v1", "DaemonSet", "logs", true)),
    Some(("apps/v1", "DaemonSet", "logs", false)),
    Some(("apps/v1", "DaemonSet", "missing", true)),
    Some(("extensions/v1beta1", "DaemonSet", "logs", true)),
    Some(("example.com/v1", "Gizmo", "x", true)),
    Some(("v1", "ReplicationController", "old", true)),
    Some(("apps/v1", "ReplicaSet", "web", false)),
];

/// Each flag is set with a probability of its own.
const FLAGS: [&[&str]; 6] = [
    &["--force"],
    &["--ignore-daemonsets"],
    &["--delete-emptydir-data"],
    &["--disable-eviction"],
    &[
        "--pod-selector=app=a",
        "--pod-selector=app!=a,tier in (x,y)",
        "--pod-selector=!tier",
    ],
    &[
        "--skip-wait-for-delete-timeout=1",
        "--skip-wait-for-delete-timeout=3600",
    ],
];

fn one_of<T: Copy>(dice: &mut Dice, all: &[T]) -> T {
    all[dice.pick(all.len())]
}

fn metadata(dice: &mut Dice, name: &str) -> Value {
    let mut labels = Map::new();
    for (key, values) in [("app", &["a", "b", ""][..]), ("tier", &["x", "z", ""])] {
        let value = one_of(dice, values);
        if !value.is_empty() {
            labels.insert(key.to_owned(), json!(value));
        }
    }
    let mut metadata = json!({
        "name": name, "namespace": one_of(dice, &NAMESPACES), "labels": labels,
    });
    if let Some((version, kind, owner, controller)) = one_of(dice, &OWNERS) {
        metadata["ownerReferences"] = json!([{
            "apiVersion": version, "kind": kind, "name": owner, "controller": controller,
            "uid": "0b5a2c1e-0000-4000-8000-000000000001",
        }]);
    }
    if dice.pick(12) == 0 {
        let value = one_of(dice, &["", "abc"]);
        metadata["annotations"] = json!({"kubernetes.io/config.mirror": value});
    }
    metadata
}

fn pod(dice: &mut Dice, name: &str, node: &str) -> Value {
    let volumes = [
        json!([]),
        json!([]),
        json!([{"name": "a", "emptyDir": {}}]),
        json!([{"name": "a", "emptyDir": {"medium": "Memory"}}]),
        json!([{"name": "a", "configMap": {"name": "x"}}, {"name": "b", "emptyDir": {}}]),
        json!([{"name": "a", "hostPath": {"path": "/var/x"}}]),
    ];
    let mut metadata = metadata(dice, name);
    // A finalizer keeps the object when it is deleted.
    if dice.pick(8) == 0 {
        metadata["finalizers"] = json!(["example.com/kept"]);
    }
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {
            "nodeName": node, "automountServiceAccountToken": false,
            "volumes": volumes[dice.pick(volumes.len())],
            "containers": [{"name": "c", "image": "none"}],
        },
    })
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn create(cluster: &Cluster, verb: &[&str], items: &[Value]) {
    let made = cluster.try_kubectl_with(&[verb, &["-f", "-"]].concat(), &list(items));
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
}

/// Nodes and their pods; some pods have ended, some are being deleted.
fn create_pods(cluster: &Cluster, dice: &mut Dice, nodes: &[String]) {
    let named = |kind: &str, version: &str, name: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
    let mut first: Vec<_> = nodes.iter().map(|name| named("Node", "v1", name)).collect();
    first.push(named("Namespace", "v1", "shop"));
    first.extend(NAMESPACES.map(|namespace| {
        let labels = json!({"app": "logs"});
        let template = json!({"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "c", "image": "none"}]}});
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "logs", "namespace": namespace},
            "spec": {"selector": {"matchLabels": labels}, "template": template}})
    }));
    create(cluster, &["create"], &first);
    cluster.apply(&list(&["shop", "kube-system"].map(|namespace| {
        json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": namespace}})
    })));
    let mut pods = Vec::new();
    for node in nodes {
        pods.extend((0..PODS_PER_NODE).map(|n| pod(dice, &format!("{node}-p-{n:02}"), node)));
    }
    create(cluster, &["create"], &pods);
    for pod in &mut pods {
        let phase = one_of(
            dice,
            &[
                "Running",
                "Running",
                "Pending",
                "Succeeded",
                "Failed",
                "Unknown",
            ],
        );
        pod["status"] = json!({"phase": phase});
    }
    create(cluster, &["replace", "--subresource=status"], &pods);
    for namespace in NAMESPACES {
        let kept = pods.iter().filter(|pod| {
            let metadata = &pod["metadata"];
            metadata["namespace"] == namespace && metadata["finalizers"].is_array()
        });
        let kept: Vec<_> = kept
            .filter_map(|pod| pod["metadata"]["name"].as_str())
            .collect();
        if !kept.is_empty() {
            let delete = [
                "delete",
                "pods",
                "-n",
                namespace,
                "--wait=false",
                "--grace-period=0",
                "--force",
            ];
            cluster.kubectl(&[&delete[..], &kept].concat());
        }
    }
}

/// Whether a drain would proceed, and the pods that it evicts or that block it.
#[derive(Debug, PartialEq, Eq)]
struct Judged {
    drains: bool,
    pods: BTreeSet<String>,
}

/// The pods that a text mentions, as `namespace/name`.
fn pods_in(text: &str, node: &str) -> BTreeSet<String> {
    let own = format!("/{node}-p-");
    let words = text.split(|c: char| !(c.is_alphanumeric() || "-/".contains(c)));
    let words = words.filter(|word| word.contains(&own));
    words
        .map(|word| word.trim_start_matches("pod/").to_owned())
        .collect()
}

fn judged(output: &Output, node: &str, evicted: impl Fn(&str) -> bool) -> Judged {
    let (out, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let drains = output.status.success();
    let pods = match drains {
        true => out
            .lines()
            .filter(|line| evicted(line))
            .flat_map(|line| pods_in(line, node))
            .collect(),
        // Warnings, which begin otherwise, name pods that do not block the drain.
        false => error
            .lines()
            .filter(|line| !line.starts_with("Warning:"))
            .flat_map(|line| pods_in(line, node))
            .collect(),
    };
    Judged { drains, pods }
}

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn generated_pods_are_evicted_or_refused_as_by_kubectl() {
    let mut dice = Dice::new();
    let cluster = Cluster::start(&lab().version);
    // The controllers would delete pods whose owners do not exist.
    cluster.stop_controllers();
    let given = std::env::var("MACHINIST_LAB_DRAIN_PODS").ok();
    let given = given.map(|count| count.parse().expect("MACHINIST_LAB_DRAIN_PODS is a number"));
    let count: usize = given.unwrap_or(rounds(120, 2_000));
    let nodes: Vec<_> = (0..count.div_ceil(PODS_PER_NODE))
        .map(|n| format!("n{n:03}"))
        .collect();
    create_pods(&cluster, &mut dice, &nodes);
    // Deletions with a grace period of one second have finished by then.
    let deleted = std::time::Instant::now();
    wait::until("deletions to be overdue", wait::seconds(60), || {
        deleted.elapsed() > wait::seconds(3)
    });

    let kubeconfig = cluster.kubeconfig("by-kubectl", "system:masters");
    let mut drained = 0;
    for node in &nodes {
        let mut flags = vec!["drain", node, "--dry-run=client"];
        for (which, spellings) in FLAGS.iter().enumerate() {
            // The first three flags are set mostly, so that many nodes are drained.
            if dice.pick(4) < if which < 3 { 3 } else { 1 } {
                flags.push(one_of(&mut dice, spellings));
            }
        }
        let mut kubectl = cluster.beside(&lab().kube);
        kubectl
            .arg("kubectl")
            .args(&flags)
            .arg("--kubeconfig")
            .arg(&kubeconfig);
        let mut machinist = cluster.machinist("by-machinist", &flags);
        let (theirs, ours) = thread::scope(|scope| {
            let theirs = scope.spawn(|| output(&mut kubectl));
            let ours = output(&mut machinist);
            (theirs.join().unwrap(), ours)
        });
        let verbs =
            |line: &str| line.starts_with("evicting pod") || line.starts_with("deleting pod");
        let expected = judged(&theirs, node, verbs);
        let got = judged(&ours, node, |line| line.contains(" evicted (dry run)"));
        assert_eq!(
            got, expected,
            "{flags:?}\n--- machinist\n{ours:?}\n--- kubectl\n{theirs:?}"
        );
        drained += usize::from(expected.drains);
    }
    println!(
        "lab: figure: {} pods on {} nodes, {drained} of them drained and the others refused: as kubectl",
        nodes.len() * PODS_PER_NODE,
        nodes.len()
    );
    assert!(
        drained > 0 && drained < nodes.len(),
        "{drained} of {}",
        nodes.len()
    );
}

#[test]
fn a_pod_that_returns_under_its_name_on_another_node_is_not_waited_for() {
    let cluster = Cluster::start(&lab().version);
    cluster.stop_controllers();
    let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    create(&cluster, &["create"], &[node("old"), node("new")]);
    let pod = |node: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "db-0", "namespace": "default", "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "controller": true,
                "uid": "0b5a2c1e-0000-4000-8000-000000000002",
            }]},
            "spec": {
                "nodeName": node, "automountServiceAccountToken": false,
                "containers": [{"name": "c", "image": "none"}],
            },
        })
    };
    create(&cluster, &["create"], &[pod("old")]);
    let flags = ["drain", "old", "--timeout=120s"];
    let mut machinist = cluster.machinist("by-machinist", &flags);
    let drained = thread::scope(|scope| {
        let drained = scope.spawn(|| output(&mut machinist));
        wait::until("the eviction", wait::seconds(60), || {
            let pod = cluster.object("pod", "db-0");
            pod.is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_string())
        });
        cluster.kubectl(&["delete", "pod", "db-0", "--grace-period=0", "--force"]);
        create(&cluster, &["create"], &[pod("new")]);
        drained.join().unwrap()
    });
    let (out, error) = (
        String::from_utf8_lossy(&drained.stdout),
        String::from_utf8_lossy(&drained.stderr),
    );
    assert!(drained.status.success(), "{out}{error}");
    assert!(
        out.contains("node/old drained: 1 pod removed"),
        "{out}{error}"
    );
    let returned = cluster.object("pod", "db-0").unwrap();
    assert_eq!(returned["spec"]["nodeName"], "new");
    assert!(returned["metadata"]["deletionTimestamp"].is_null());
}
