//! Tests properties over arbitrary nodes and pools.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection, prelude::*, sample};

use super::{super::*, node, of_role, with, with_roles};
use machinist_kube_api::{NodeView, PoolView};

/// Generates a node with arbitrary roles, states, and conditions.
fn any_node() -> impl Strategy<Value = NodeView> {
    let roles = sample::subsequence(vec!["master", "worker", "infra", "gpu", "edge"], 0..4);
    let config = || sample::select(vec!["", "c0", "c1", "c2"]);
    let state = sample::select(vec!["", "Done", "Working", "Degraded", "Unreconcilable"]);
    let ready = sample::select(vec!["True", "False", "Unknown"]);
    (roles, config(), config(), state, ready, any::<bool>()).prop_map(
        |(roles, current, desired, state, ready, cordon)| {
            let mut one = with(node("", current, desired, state), &[("Ready", ready)]);
            one.labels = with_roles(&roles);
            one.spec.unschedulable = cordon;
            one
        },
    )
}

proptest! {
    #[test]
    fn every_node_is_in_one_pool_regardless_of_input_order(
        mut nodes in collection::vec(any_node(), 0..40),
        shuffled in Just(vec!["worker", "infra", "master", "gpu"]).prop_shuffle(),
        turn in 0_usize..40,
    ) {
        for (at, node) in nodes.iter_mut().enumerate() {
            node.name = format!("n{at}");
        }
        let made = |names: &[&str]| {
            let mut pools: Vec<_> = names.iter().map(|name| of_role(name)).collect();
            for pool in &mut pools {
                pool.spec.configuration.name = "c1".to_owned();
            }
            pools
        };
        let rows = |pools: &[PoolView], nodes: &[NodeView]| {
            let split = split(pools, nodes);
            let placed: usize = split.pools.iter().map(|one| one.nodes.len()).sum();
            assert_eq!(placed + split.without.len(), nodes.len());
            let rows = split.pools.iter().map(|one| (one.pool.name.clone(), PoolRow::of(one)));
            let ambiguous = split.pools.iter().flat_map(|one| one.ambiguous.clone());
            (rows.collect::<BTreeMap<_, _>>(), ambiguous.collect::<BTreeSet<_>>())
        };
        let first = rows(&made(&["gpu", "infra", "master", "worker"]), &nodes);
        let turned = turn % nodes.len().max(1);
        nodes.rotate_left(turned);
        prop_assert_eq!(&first, &rows(&made(&shuffled), &nodes));
        for row in first.0.values() {
            let count = |of: Option<u32>| of.unwrap();
            let all = count(row.machine_count);
            prop_assert!(count(row.ready_machine_count) <= count(row.updated_machine_count));
            prop_assert!(count(row.updated_machine_count) <= all);
            prop_assert!(count(row.unavailable_machine_count) <= all);
            prop_assert!(count(row.degraded_machine_count) <= all);
            let settled = count(row.ready_machine_count) == all;
            prop_assert!(row.updated == Some(settled && row.unavailable_machine_count == Some(0)));
            prop_assert!(row.updated != row.updating);
        }
    }

    #[test]
    fn node_pool_status_flags_never_contradict_each_other(node in any_node()) {
        let standing = NodePoolStatus::of(&node, Some("c1"));
        prop_assert!(!(standing.done && standing.failing));
        prop_assert!(!standing.updated || standing.done);
        prop_assert!(standing.ready || standing.unavailable);
        prop_assert!(!(standing.done && standing.ready && standing.unavailable));
        prop_assert!(!standing.failing || standing.degraded);
    }
}
