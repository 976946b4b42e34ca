//! Tests slots that stay with their node, and gates between grants.

use super::{
    super::*,
    grants::{grant, holding, listing},
    model::{NEW, OLD, beat, minutes, start},
    rollout::{decided, first_hold, granted, plain_pool, record, worker, worker_in},
    with,
};
use machinist_kube_api::{NodeView, keys::protocol};

/// A node that is being updated with the only slot of its pool.
fn updating() -> NodeView {
    holding(worker_in("a", OLD, NEW, "Working"), &grant("g1", "a"), true)
}

/// Decides about that node and one that waits, this long after the grant.
fn later(node: NodeView, after: i64) -> Decision {
    let mut pool = plain_pool("worker", 1);
    listing(&mut pool, vec![grant("g1", "a")]);
    record(&mut pool, |state| state.started = Some(start()));
    let now = start() + minutes(after);
    let mut waiting = worker("b");
    beat(&mut waiting, now);
    let (pools, nodes) = ([pool], [node, waiting]);
    decided(&pools, &nodes, |inputs| inputs.now = now)
}

/// The nodes of the grants that a decision leaves to the pool; the listed one if it writes nothing.
fn holders(decision: &Decision) -> Vec<String> {
    let written = decision.actions.iter().find_map(|action| match action {
        Action::WritePool(write) => Some(&write.grants.grants),
        _ => None,
    });
    written.map_or(vec!["a".to_owned()], |grants| {
        grants.iter().map(|it| it.node.clone()).collect()
    })
}

#[test]
fn the_slot_of_a_node_that_reboots_slowly_stays_with_it() {
    let mut node = with(updating(), &[("Ready", "False")]);
    let action = (
        protocol::POST_CONFIG_ACTION.to_owned(),
        "Rebooting".to_owned(),
    );
    node.annotations.extend([action]);
    for condition in &mut node.status.conditions {
        condition.last_transition_time = Some(start());
    }
    // The limit of a reboot is 30 minutes; from then on the node counts as failed.
    for (after, text) in [(20, "a (granted)"), (99, "failed on rendered-new (a)")] {
        let decision = later(node.clone(), after);
        assert_eq!(holders(&decision), ["a"], "{after} min");
        let holds = &decision.pools[0].holds;
        let is_named = holds.iter().any(|hold| hold.message.contains(text));
        assert!(is_named, "{after} min: {holds:?}");
    }
}

#[test]
fn the_slot_of_a_node_whose_agent_is_silent_stays_and_is_named() {
    let mut node = updating();
    beat(&mut node, start());
    let decision = later(node, 99);
    assert_eq!(holders(&decision), ["a"]);
    let holds = &decision.pools[0].holds;
    assert!(
        holds
            .iter()
            .any(|hold| hold.message.contains("a (granted)")),
        "{holds:?}"
    );
}

#[test]
fn nothing_is_granted_while_a_gate_is_closed() {
    let (pools, nodes) = ([plain_pool("worker", 1)], [worker("a")]);
    let gated = |pool: Option<&str>| {
        let gates = [ClosedGate {
            pool: pool.map(str::to_owned),
            message: "pods of the last drain are not back".to_owned(),
        }];
        let decision = decided(&pools, &nodes, |inputs| inputs.gates = &gates);
        let granted = granted(&decision).len();
        (granted, first_hold(&decision))
    };
    assert_eq!(gated(None), (0, Some(HoldReason::GateClosed)));
    assert_eq!(gated(Some("worker")), (0, Some(HoldReason::GateClosed)));
    assert_eq!(gated(Some("infra")).0, 1, "the gate of another pool");
}

#[test]
fn a_node_that_counts_already_is_granted_behind_many_that_need_a_slot() {
    let pools = [plain_pool("worker", 1)];
    for waiting in [0, 70, 199] {
        let nodes = (0..200).map(|at| {
            let name = format!("n{at:03}");
            match at == waiting {
                true => worker_in(&name, OLD, NEW, "Done"),
                false => worker(&name),
            }
        });
        let nodes: Vec<_> = nodes.collect();
        let decision = decided(&pools, &nodes, |_| {});
        assert_eq!(granted(&decision), [format!("n{waiting:03}")]);
    }
}

#[test]
fn thousands_of_nodes_start_in_their_order() {
    for limit in [1, 63, 64, 65, 300] {
        let pools = [plain_pool("worker", limit)];
        let nodes: Vec<_> = (0..1000)
            .map(|at| worker(&format!("n{:03}", (at * 7) % 1000)))
            .collect();
        let decision = decided(&pools, &nodes, |_| {});
        let expected: Vec<_> = (0..limit).map(|at| format!("n{at:03}")).collect();
        assert_eq!(granted(&decision), expected);
    }
}
