//! Tests pools that are rolled out at the same time.

use std::collections::BTreeSet;

use super::{
    super::*,
    cordoned,
    model::{OLD, ready_node},
    rollout::{decided, granted, plain_pool, worker},
};
use machinist_kube_api::NodeView;

fn infra(name: &str) -> NodeView {
    ready_node(name, "infra", OLD)
}

fn granted_nodes(decision: &Decision) -> BTreeSet<&str> {
    granted(decision).into_iter().collect()
}

fn hold(decision: &Decision, pool: &str) -> Option<HoldReason> {
    let mut pools = decision.pools.iter();
    let found = pools.find(|it| it.pool == pool).unwrap();
    found.holds.first().map(|hold| hold.reason)
}

#[test]
fn two_pools_progress_at_once_each_with_its_own_count() {
    let pools = [plain_pool("infra", 1), plain_pool("worker", 2)];
    let mut nodes = [
        infra("i1"),
        infra("i2"),
        worker("w1"),
        worker("w2"),
        worker("w3"),
    ];
    let both = decided(&pools, &nodes, |_| {});
    assert_eq!(granted_nodes(&both), BTreeSet::from(["i1", "w1", "w2"]));
    nodes[1] = cordoned(nodes[1].clone());
    let one = decided(&pools, &nodes, |_| {});
    assert_eq!(granted_nodes(&one), BTreeSet::from(["w1", "w2"]));
    assert_eq!(hold(&one, "infra"), Some(HoldReason::NodesUnavailable));
    assert_ne!(hold(&one, "worker"), Some(HoldReason::NodesUnavailable));
}

#[test]
fn a_pool_of_canaries_goes_first_while_the_other_is_paused() {
    let mut pools = [plain_pool("infra", 1), plain_pool("worker", 1)];
    pools[1].spec.paused = true;
    let nodes = [infra("canary"), worker("w1")];
    let first = decided(&pools, &nodes, |_| {});
    assert_eq!(granted(&first), ["canary"]);
    assert_eq!(hold(&first, "worker"), Some(HoldReason::Paused));
    pools[1].spec.paused = false;
    let nodes = [worker("w1")];
    assert_eq!(granted(&decided(&pools, &nodes, |_| {})), ["w1"]);
}
