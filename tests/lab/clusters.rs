//! Tests of the harness's own cluster functions.

use std::time::Instant;

use crate::support::{Cluster, Machine, lab, wait};

#[test]
fn a_node_is_ready_runs_a_pod_and_is_ready_again_after_a_reboot() {
    let cluster = Cluster::start(&lab().version);
    println!(
        "lab: figure: API server ready after {:.1?}",
        cluster.start_time
    );
    let mut machine = Machine::boot("worker");
    let start = Instant::now();
    let node = cluster.join(&machine);
    println!(
        "lab: figure: node Ready {:.1?} after joining",
        start.elapsed()
    );
    let kubelet = node.object()["status"]["nodeInfo"]["kubeletVersion"].clone();
    assert_eq!(kubelet, format!("v{}", lab().version));

    // A second node over the same bridge.
    let other = Machine::boot("other");
    cluster.join(&other);
    cluster.pod("before", "worker", &[]);
    cluster.wait_pod("before", "Running", wait::seconds(30));
    node.restart_kubelet();
    node.wait_ready(wait::seconds(30));

    let old = machine.boot_id();
    let start = Instant::now();
    machine.reboot();
    let node = cluster.node(&machine);
    node.wait_ready(wait::seconds(60));
    let took = start.elapsed();
    println!("lab: figure: Ready again {took:.1?} after the call to logind");
    assert!(
        took < wait::seconds(60),
        "Ready only {took:?} after the reboot from {old}"
    );
    cluster.wait_pod("before", "Running", wait::seconds(30));
}

#[test]
fn a_disruption_budget_rejects_an_eviction_with_429() {
    let cluster = Cluster::start(&lab().version);
    let machine = Machine::boot("budget");
    cluster.join(&machine);
    cluster.pod("guarded", "budget", &[]);
    cluster.wait_pod("guarded", "Running", wait::seconds(30));
    cluster.apply(
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: guard}\n\
         spec: {minAvailable: 1, selector: {matchLabels: {app: guarded}}}\n",
    );
    cluster.wait_object(
        "pdb",
        "guard",
        "one healthy pod",
        wait::seconds(30),
        |budget| budget["status"]["currentHealthy"] == 1,
    );
    let answer = cluster.evict("guarded");
    let text = String::from_utf8_lossy(&answer.stderr);
    assert!(
        !answer.status.success() && text.contains("disruption budget"),
        "{text}"
    );
    let code = wait::value("the eviction in the audit log", wait::seconds(10), || {
        let audit = cluster.audit();
        let eviction = audit
            .iter()
            .find(|e| e["objectRef"]["subresource"] == "eviction")?;
        eviction["responseStatus"]["code"].as_u64()
    });
    assert_eq!(code, 429);

    cluster.kubectl(&["delete", "pdb", "guard"]);
    assert!(
        cluster.evict("guarded").status.success(),
        "only the budget was in the way"
    );
    wait::until("the evicted pod to go", wait::seconds(30), || {
        cluster.object("pod", "guarded").is_none()
    });
}
