//! Tests nodes that an operator leaves out of a rollout.

use super::{
    super::*,
    cordoned,
    grants::{grant, holding, listing},
    model::{AgentStep, ApiServer, Leader, NEW, OLD, act, minutes, run_leader, start},
    rollout::{annotate, decided, first_hold, granted, plain_pool, record, worker, worker_in},
};
use machinist_kube_api::{
    NodeView, PoolView,
    keys::{annotation, pool_annotation},
};

fn skip(node: &mut NodeView, config: Option<&str>) {
    match config {
        Some(config) => node
            .annotations
            .insert(annotation::SKIP_ROLLOUT.to_owned(), config.to_owned()),
        None => node.annotations.remove(annotation::SKIP_ROLLOUT),
    };
    node.resource_version.push('0');
}

fn skipped(mut node: NodeView) -> NodeView {
    skip(&mut node, Some(NEW));
    node
}

fn state_of(pool: &PoolView) -> RolloutState {
    RolloutStates::of(pool).unwrap().rollouts["worker"].clone()
}

/// The edges of the writes of a decision: what begins, and what ends.
fn edges(decision: &Decision) -> (Vec<RolloutEdge>, Vec<RolloutEdge>) {
    let writes = decision.actions.iter().filter_map(|action| match action {
        Action::WritePool(write) => Some((write.begins.clone(), write.ends.clone())),
        _ => None,
    });
    writes.fold(Default::default(), |mut all: (Vec<_>, Vec<_>), it| {
        all.0.extend(it.0);
        all.1.extend(it.1);
        all
    })
}

fn withdrawals(decision: &Decision) -> Vec<&str> {
    let withdrawn = decision.actions.iter().filter_map(|action| match action {
        Action::PatchNode(patch) => match patch.change {
            NodeChange::WithdrawGrant { .. } => Some(patch.node.as_str()),
            _ => None,
        },
        _ => None,
    });
    withdrawn.collect()
}

fn places_any(decision: &Decision) -> bool {
    decision.actions.iter().any(|action| {
        matches!(action, Action::PatchNode(patch)
            if matches!(patch.change, NodeChange::PlaceGrant { .. }))
    })
}

#[test]
fn a_rollout_is_completed_without_the_nodes_that_are_skipped() {
    let mut pool = plain_pool("worker", 1);
    record(&mut pool, |state| state.started = Some(start()));
    let nodes = [
        worker_in("a", NEW, NEW, "Done"),
        skipped(worker("c")),
        skipped(worker("b")),
    ];
    let pools = [pool];
    let decision = decided(&pools, &nodes, |_| {});
    let (_, ends) = edges(&decision);
    assert_eq!(ends.len(), 1);
    assert_eq!(
        (ends[0].result.as_str(), &ends[0].skipped[..]),
        ("Completed", &["b".to_owned(), "c".to_owned()][..])
    );
    assert_eq!(first_hold(&decision), Some(HoldReason::NodesSkipped));
    let hold = &decision.pools[0].holds[0];
    assert_eq!(hold.message, "an operator skips 2 nodes: b, c");
    let held = &decision.pools[0].conditions[0];
    assert_eq!((held.status, held.reason), (true, "NodesSkipped"));
    assert_eq!(decision.pools[0].pending, 2, "they are not on the target");
}

#[test]
fn a_rollout_with_an_eligible_node_is_not_completed() {
    let pools = [plain_pool("worker", 1)];
    let nodes = [skipped(worker("a")), cordoned(worker("b"))];
    let decision = decided(&pools, &nodes, |_| {});
    assert_eq!(edges(&decision).1, []);
    assert_ne!(first_hold(&decision), Some(HoldReason::NodesSkipped));
}

#[test]
fn the_rollout_begins_again_for_a_node_that_is_no_longer_skipped() {
    let pool = plain_pool("worker", 1);
    let mut server = ApiServer::new(vec![pool], ["a", "b"].map(worker).to_vec());
    skip(&mut server.nodes[1], Some(NEW));
    let mut leader = Leader::start(&server, None);
    run_leader(&mut leader, &mut server);
    assert_eq!(server.disrupted(), ["a"]);
    assert!(act(&mut server, "a", &AgentStep::Acknowledge));
    assert!(act(&mut server, "a", &AgentStep::End(GrantOutcome::Done)));
    run_leader(&mut leader, &mut server);
    let state = state_of(&server.pools[0]);
    assert_eq!((state.completed, state.left_out), (Some(start()), 1));

    server.now += minutes(1);
    skip(&mut server.nodes[1], None);
    leader.nodes.clone_from(&server.nodes);
    let decision = leader.decision(&server);
    assert_eq!(granted(&decision), ["b"]);
    let (begins, _) = edges(&decision);
    assert_eq!(begins.len(), 1);
    assert_eq!((begins[0].target.as_str(), ""), (NEW, &*begins[0].result));
    run_leader(&mut leader, &mut server);
    let state = state_of(&server.pools[0]);
    assert_eq!((state.completed, state.left_out), (None, 0));
    assert!(act(&mut server, "b", &AgentStep::Acknowledge));
    assert!(act(&mut server, "b", &AgentStep::End(GrantOutcome::Done)));
    leader.nodes.clone_from(&server.nodes);
    let (_, ends) = edges(&leader.decision(&server));
    assert_eq!((ends.len(), ends[0].skipped.len()), (1, 0));
}

#[test]
fn a_grant_that_is_not_acknowledged_is_withdrawn_from_a_skipped_node() {
    let one = grant("g1", "a");
    for (is_placed, is_acknowledged, expected) in [
        (false, false, &["a"][..]),
        (true, false, &["a"]),
        (true, true, &[]),
    ] {
        let mut pool = plain_pool("worker", 1);
        let mut known = one.clone();
        known.acknowledged = is_acknowledged;
        listing(&mut pool, vec![known]);
        record(&mut pool, |state| state.started = Some(start()));
        let node = match is_placed {
            true => holding(worker("a"), &one, is_acknowledged),
            false => worker("a"),
        };
        let (pools, nodes) = ([pool], [skipped(node), worker_in("b", NEW, NEW, "Done")]);
        let decision = decided(&pools, &nodes, |_| {});
        assert_eq!(
            withdrawals(&decision),
            expected,
            "{is_placed} {is_acknowledged}"
        );
        assert!(!places_any(&decision));
        assert_eq!(edges(&decision).1, [], "the grant is to end first");
    }
}

#[test]
fn an_arbiter_follows_a_control_plane_whose_last_node_is_skipped() {
    let pools = [plain_pool("arbiter", 1), plain_pool("master", 1)];
    let of = |name: &str, role: &str, config: &str| super::model::ready_node(name, role, config);
    let nodes = [
        of("a", "master", NEW),
        skipped(of("b", "master", OLD)),
        of("c", "arbiter", OLD),
    ];
    assert_eq!(granted(&decided(&pools, &nodes, |_| {})), ["c"]);
}

#[test]
fn the_history_names_skipped_nodes_and_continues_the_rollout_for_them() {
    let mut history = RolloutHistory::default();
    history.begin(NEW, start());
    let names: Vec<String> = (10..30).map(|at| format!("n{at}")).collect();
    history.end(NEW, "Completed", &names, start());
    let record = &history.rollouts[0];
    assert_eq!((record.skipped, record.skipped_nodes.len()), (20, 10));
    let mut pool = plain_pool("worker", 1);
    annotate(
        &mut pool,
        pool_annotation::HISTORY,
        &history.to_annotation(),
    );
    assert_eq!(RolloutHistory::of(&pool), history);
    history.begin(NEW, start() + minutes(1));
    assert_eq!(history.rollouts.len(), 1);
    let record = &history.rollouts[0];
    assert_eq!(
        (record.ended, record.skipped, record.result.as_str()),
        (None, 0, "")
    );
    history.end(NEW, "Completed", &[], start());
    history.begin(NEW, start() + minutes(2));
    assert_eq!(
        history.rollouts.len(),
        2,
        "one without skipped nodes has ended"
    );
}

#[test]
fn a_pool_whose_other_nodes_are_updated_is_neither_updated_nor_updating() {
    let pool = super::target(NEW);
    for (first, is_updating, reason) in [
        (worker_in("a", NEW, NEW, "Done"), false, "NodesSkipped"),
        (worker("a"), true, "NodesUpdating"),
        (
            cordoned(worker_in("a", NEW, NEW, "Done")),
            true,
            "NodesUpdating",
        ),
    ] {
        let nodes = [first, skipped(worker("b"))];
        let split = split(std::slice::from_ref(&pool), &nodes);
        let members = &split.pools[0];
        let counts = MachineCounts::of(members);
        assert_eq!(counts.machines, 2);
        let all = conditions(members, &counts);
        let of = |kind| all.iter().find(|it| it.kind == kind).unwrap();
        assert!(!of("Updated").status);
        assert_eq!(
            (of("Updating").status, of("Updating").reason),
            (is_updating, reason)
        );
        if !is_updating {
            assert_eq!(
                of("Updating").message,
                format!("1 of 2 nodes is on {NEW}; skipped: b")
            );
        }
    }
}

#[test]
fn a_skipped_node_gets_no_taint_of_the_update() {
    let (pools, nodes) = ([plain_pool("worker", 1)], [skipped(worker("a"))]);
    let decision = decided(&pools, &nodes, |inputs| inputs.taint_patches = 9);
    assert!(!decision.actions.iter().any(|action| matches!(
        action,
        Action::PatchNode(patch) if patch.change == NodeChange::AddTaint
    )));
}
