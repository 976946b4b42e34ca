//! Tests which nodes a decision grants, and why it grants nothing. Rows named after upstream's tests have its numbers.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{
    super::*,
    cordoned, leader_inputs,
    model::{ApiServer, NEW, OLD, beat, minutes, ready_node, resumed_pool, start},
};
use machinist_kube_api::{
    IntOrString, NodeView, PoolView,
    keys::{annotation, pool_annotation, protocol},
};

/// A pool without canary whose nodes may all start.
pub(super) fn plain_pool(name: &str, limit: i64) -> PoolView {
    let mut pool = resumed_pool(name, NEW);
    pool.spec.max_unavailable = Some(IntOrString::Int(limit));
    annotate(&mut pool, pool_annotation::CANARY, "0");
    pool
}

pub(super) fn annotate(pool: &mut PoolView, name: &str, value: &str) {
    pool.annotations.insert(name.to_owned(), value.to_owned());
}

pub(super) fn worker(name: &str) -> NodeView {
    ready_node(name, "worker", OLD)
}

/// Records a rollout of the new config that was never resumed.
pub(super) fn record(pool: &mut PoolView, change: impl FnOnce(&mut RolloutState)) {
    let mut state = RolloutState::new(NEW, start());
    state.resume = Some("1".to_owned());
    change(&mut state);
    let mut all = RolloutStates::default();
    all.rollouts.insert(pool.name.clone(), state);
    annotate(pool, pool_annotation::ROLLOUT, &all.to_annotation());
}

/// A worker with these configs and this state.
pub(super) fn worker_in(name: &str, current: &str, desired: &str, state: &str) -> NodeView {
    let mut node = worker(name);
    for (name, value) in [
        (protocol::CURRENT_CONFIG, current),
        (protocol::DESIRED_CONFIG, desired),
        (protocol::STATE, state),
    ] {
        node.annotations.insert(name.to_owned(), value.to_owned());
    }
    node
}

/// Decides as a leader that has listed the nodes.
pub(super) fn decided<'a>(
    pools: &'a [PoolView],
    nodes: &'a [NodeView],
    change: impl FnOnce(&mut RolloutInputs<'a>),
) -> Decision {
    let mut inputs = leader_inputs(pools, nodes);
    change(&mut inputs);
    decide(&inputs)
}

/// The nodes that a decision grants, in order.
pub(super) fn granted(decision: &Decision) -> Vec<&str> {
    let writes = decision.actions.iter().filter_map(|action| match action {
        Action::WritePool(write) => Some(&write.grants.grants),
        _ => None,
    });
    let mut all: Vec<_> = writes.flatten().collect();
    let place = |grant: &Grant| {
        let (_, number) = grant.id.rsplit_once('-').unwrap();
        number.parse::<usize>().unwrap()
    };
    all.sort_by_key(|grant| place(grant));
    all.iter().map(|grant| grant.node.as_str()).collect()
}

pub(super) fn first_hold(decision: &Decision) -> Option<HoldReason> {
    decision.pools[0].holds.first().map(|hold| hold.reason)
}

#[test]
fn candidates_follow_upstreams_tables() {
    let old = "rendered-older";
    let busy = |name: &str| worker_in(name, OLD, NEW, "Working");
    for (what, limit, nodes, expected) in [
        (
            "M25: an unavailable node is skipped",
            2,
            vec![cordoned(worker("a")), worker("b"), worker("c")],
            vec!["b"],
        ),
        (
            "M26: a node that is stuck on an older config is first",
            1,
            vec![worker("a"), worker_in("b", old, OLD, "Degraded")],
            vec!["b"],
        ),
        (
            "M27: a drifted node does not block others, unlike upstream",
            1,
            vec![worker_in("a", NEW, NEW, "Degraded"), worker("b")],
            vec!["b"],
        ),
        (
            "M28: a node that failed on another config returns to this one",
            1,
            vec![worker_in("a", NEW, OLD, "Degraded")],
            vec!["a"],
        ),
        (
            "M29: a node with the target that has not begun is busy, and needs no further slot",
            1,
            vec![worker("a"), worker_in("b", OLD, NEW, "Done")],
            vec!["b"],
        ),
        (
            "M30: four slots, two of them busy",
            4,
            vec![busy("a"), worker("b"), busy("c"), worker("d"), worker("e")],
            vec!["b", "d"],
        ),
        (
            "failed on the target: it holds a slot and is not tried again",
            1,
            vec![worker_in("a", OLD, NEW, "Degraded"), worker("b")],
            vec![],
        ),
    ] {
        let mut pool = plain_pool("worker", limit);
        annotate(&mut pool, pool_annotation::STOP_AFTER_FAILURES, "9");
        record(&mut pool, |_| {});
        let pools = [pool];
        let decision = decided(&pools, &nodes, |_| {});
        assert_eq!(granted(&decision), expected, "{what}: {:?}", decision.pools);
    }
}

#[test]
fn another_image_counts_as_busy_before_and_after_the_agent_starts() {
    for state in ["Done", "Working"] {
        let mut other = worker_in("a", NEW, NEW, state);
        let image = (
            protocol::DESIRED_IMAGE.to_owned(),
            "registry/os@sha256:1".to_owned(),
        );
        other.annotations.extend([image]);
        let (pools, nodes) = ([plain_pool("worker", 1)], [other, worker("b")]);
        let decision = decided(&pools, &nodes, |_| {});
        assert_eq!(granted(&decision), [""; 0], "{state}");
        assert_eq!(first_hold(&decision), Some(HoldReason::NodesUnavailable));
    }
}

#[test]
fn nodes_are_ordered_by_zone_and_age_or_as_the_pool_sets_it() {
    let aged = |name: &str, zone: &str, hours: i64, wave: &str| {
        let mut node = worker(name);
        node.created = Some(start() - SignedDuration::from_hours(hours));
        let labels = [("topology.kubernetes.io/zone", zone), ("wave", wave)];
        let set = labels.iter().filter(|(_, value)| !value.is_empty());
        node.labels
            .extend(set.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        node
    };
    let nodes = [
        aged("a", "", 99, "2"),
        aged("b", "zone-b", 1, ""),
        aged("c", "zone-b", 2, "1"),
        aged("d", "zone-a", 1, "2"),
        aged("e", "zone-a", 3, "2"),
    ];
    for (order, expected) in [
        ("", ["e", "d", "c", "b", "a"]),
        ("ZoneThenAge", ["e", "d", "c", "b", "a"]),
        ("NewestFirst", ["d", "e", "b", "c", "a"]),
        ("Label:wave", ["c", "e", "d", "a", "b"]),
    ] {
        let mut pool = plain_pool("worker", 9);
        annotate(&mut pool, pool_annotation::ORDER, order);
        let pools = [pool];
        assert_eq!(
            granted(&decided(&pools, &nodes, |_| {})),
            expected,
            "{order}"
        );
        let mut turned = nodes.clone();
        turned.reverse();
        assert_eq!(
            granted(&decided(&pools, &turned, |_| {})),
            expected,
            "{order}"
        );
    }
    let mut pool = plain_pool("worker", 9);
    annotate(&mut pool, protocol::UPDATE_ORDER, "NewestFirst");
    let pools = [pool];
    let late = decided(&pools, &nodes, |inputs| {
        inputs.own_node = Some("d");
        let blockers = vec!["shop/db: 0 allowed".to_owned()];
        inputs.blockers = Some(BTreeMap::from([("e", blockers)]));
    });
    assert_eq!(
        granted(&late),
        ["b", "c", "a", "d", "e"],
        "own node late, blocked last"
    );
}

#[test]
fn five_nodes_three_at_a_time_start_in_the_documented_order() {
    let nodes = ["n1", "n2", "n3", "n4", "n5"].map(worker);
    let mut server = ApiServer::new(vec![plain_pool("worker", 3)], nodes.to_vec());
    let mut leader = super::model::Leader::start(&server, None);
    let mut started = Vec::new();
    let mut counts = Vec::new();
    for finished in ["", "n2", "n1", "n3", "n5", "n4"] {
        let done = super::model::AgentStep::End(GrantOutcome::Done);
        super::model::act(&mut server, finished, &done);
        super::model::run_leader(&mut leader, &mut server);
        for name in ["n1", "n2", "n3", "n4", "n5"] {
            if super::model::act(&mut server, name, &super::model::AgentStep::Acknowledge) {
                started.push(name);
            }
        }
        counts.push(server.disrupted().len());
    }
    assert_eq!(started, ["n1", "n2", "n3", "n4", "n5"]);
    assert_eq!(counts, [3, 3, 3, 2, 1, 0]);
    let state = &RolloutStates::of(&server.pools[0]).unwrap().rollouts["worker"];
    assert!(state.completed.is_some() && state.done == 5, "{state:?}");
}

#[test]
fn a_node_that_is_not_ready_holds_the_only_slot_and_is_named() {
    let down = super::with(worker("n3"), &[("Ready", "False")]);
    let (pools, nodes) = (
        [plain_pool("worker", 1)],
        [worker("n1"), down, worker("n2")],
    );
    let decision = decided(&pools, &nodes, |_| {});
    assert_eq!(granted(&decision), [""; 0]);
    let hold = &decision.pools[0].holds[0];
    assert_eq!(hold.reason, HoldReason::NodesUnavailable);
    assert!(hold.message.contains("n3 (not ready)"), "{}", hold.message);
}

pub(super) type PoolChange = fn(&mut PoolView);

#[test]
fn a_pool_that_is_held_grants_nothing_and_names_the_reason() {
    let changes: [(PoolChange, HoldReason); 7] = [
        (|pool| pool.spec.paused = true, HoldReason::Paused),
        (
            |pool| drop(pool.annotations.remove(pool_annotation::RESUME)),
            HoldReason::FirstRollout,
        ),
        (
            |pool| pool.spec.configuration.name.clear(),
            HoldReason::NoConfig,
        ),
        (
            |pool| {
                annotate(
                    pool,
                    pool_annotation::WINDOWS,
                    "{\"windows\": [{\"start\": \"2am\"}]}",
                )
            },
            HoldReason::SettingsInvalid,
        ),
        (
            |pool| annotate(pool, pool_annotation::GRANTS, "[1]"),
            HoldReason::GrantsUnreadable,
        ),
        (
            |pool| pool.spec.max_unavailable = Some(IntOrString::Text("60".to_owned())),
            HoldReason::LimitInvalid,
        ),
        (
            |pool| annotate(pool, pool_annotation::PINNED_CONFIG, "rendered-gone"),
            HoldReason::ConfigMissing,
        ),
    ];
    for (change, reason) in changes {
        let mut pool = plain_pool("worker", 1);
        change(&mut pool);
        let (pools, nodes) = ([pool], [worker("a")]);
        let decision = decided(&pools, &nodes, |inputs| {
            inputs.configs = Some([NEW, OLD].into());
        });
        assert_eq!(granted(&decision), [""; 0], "{reason:?}");
        assert_eq!(first_hold(&decision), Some(reason));
        let held = &decision.pools[0].conditions[0];
        assert_eq!((held.status, held.reason), (true, reason.as_str()));
    }
}

#[test]
fn a_pool_in_sync_or_without_work_requests_nothing() {
    let done = worker_in("a", NEW, NEW, "Done");
    let mut fresh = resumed_pool("worker", NEW);
    fresh.annotations.clear();
    let mut unset = fresh.clone();
    unset.spec.configuration.name.clear();
    let mut paused = plain_pool("worker", 1);
    paused.spec.paused = true;
    for (what, pool, node) in [
        ("M36: paused", paused, worker("a")),
        ("M37: no config", unset, worker("a")),
        ("M38: in sync", fresh, done),
    ] {
        let (pools, nodes) = ([pool], [node]);
        let decision = decided(&pools, &nodes, |inputs| inputs.taint_patches = 50);
        assert_eq!(decision.actions, [], "{what}");
    }
}

#[test]
fn control_plane_and_arbiter_share_one_limit() {
    let master = |name: &str| ready_node(name, "master", OLD);
    let nodes = [master("a"), master("b"), ready_node("c", "arbiter", OLD)];
    let pools = [plain_pool("arbiter", 1), plain_pool("master", 1)];
    let decision = decided(&pools, &nodes, |_| {});
    assert_eq!(granted(&decision), ["a"]);
    let arbiter = &decision.pools[0];
    assert_eq!(
        arbiter.holds[0].reason,
        HoldReason::WaitingForControlPlane,
        "M41"
    );
    let write = decision.actions.iter().find_map(|action| match action {
        Action::WritePool(write) => Some(write),
        _ => None,
    });
    assert_eq!(write.unwrap().pool, "master", "it fences both");
    let mut paused = pools.clone();
    paused[1].spec.paused = true;
    assert_eq!(
        granted(&decided(&paused, &nodes, |_| {})),
        ["c"],
        "not when master is paused"
    );
    let mut down = nodes.clone();
    down[0] = cordoned(down[0].clone());
    assert_eq!(
        granted(&decided(&paused, &down, |_| {})),
        [""; 0],
        "a master is unavailable"
    );
    let mut many = pools.clone();
    many[1].spec.max_unavailable = Some(IntOrString::Int(2));
    let refused = decided(&many, &nodes, |_| {});
    assert_eq!(first_hold(&refused), Some(HoldReason::LimitAboveQuorum));
}

#[test]
fn nodes_that_are_not_eligible_are_named_with_the_cause() {
    let mut silent = worker("silent");
    beat(&mut silent, start() - minutes(15));
    let mut transit = worker("transit");
    let first = (
        protocol::FIRST_PIVOT_CONFIG.to_owned(),
        "rendered-infra-1".to_owned(),
    );
    transit.annotations.extend([first]);
    let mut skipped = worker("skipped");
    skipped
        .annotations
        .insert(annotation::SKIP_ROLLOUT.to_owned(), NEW.to_owned());
    let pools = [plain_pool("worker", 9), resumed_pool("infra", NEW)];
    let nodes = [silent, transit.clone(), skipped];
    let decision = decided(&pools, &nodes, |_| {});
    assert_eq!(granted(&decision), [""; 0]);
    let hold = &decision.pools[0].holds[0];
    assert_eq!(hold.reason, HoldReason::NodesNotEligible);
    for part in [
        "15 min: silent",
        "another pool: transit",
        "operator: skipped",
    ] {
        assert!(hold.message.contains(part), "{}", hold.message);
    }
    let labelled = (protocol::CUSTOM_POOL_LABELS.to_owned(), String::new());
    transit.annotations.extend([labelled]);
    let nodes = [transit];
    assert_eq!(
        granted(&decided(&pools, &nodes, |_| {})),
        ["transit"],
        "M42: it has settled"
    );
}

#[test]
fn a_fresh_node_is_a_candidate_and_counts_only_when_it_is_not_ready() {
    let mut fresh = worker("fresh");
    fresh.annotations.clear();
    let pools = [plain_pool("worker", 1)];
    let nodes = [fresh.clone(), worker_in("b", NEW, NEW, "Done")];
    assert_eq!(granted(&decided(&pools, &nodes, |_| {})), ["fresh"]);
    let nodes = [cordoned(fresh), worker("b")];
    assert_eq!(granted(&decided(&pools, &nodes, |_| {})), [""; 0]);
}

#[test]
fn another_grantor_stops_every_request() {
    let (pools, nodes) = ([plain_pool("worker", 1)], [worker("a")]);
    let decision = decided(&pools, &nodes, |inputs| {
        inputs.other_grantor = Some("ControllerConfig machine-config-controller");
        inputs.taint_patches = 50;
    });
    assert_eq!(decision.actions, []);
    assert!(
        decision.pools[0].holds[0]
            .message
            .contains("ControllerConfig")
    );
}

#[test]
fn an_upgrade_time_holds_the_rollout_until_it_is_reached() {
    let (pools, nodes) = ([plain_pool("worker", 1)], [worker("a")]);
    let at = |offset: i64| -> Timestamp { start() + minutes(offset) };
    for (time, expected) in [
        (at(10), Some(HoldReason::NotYetDue)),
        (at(0), None),
        (at(-15), None),
    ] {
        let decision = decided(&pools, &nodes, |inputs| {
            inputs.start = RolloutStart::NotBefore(time);
        });
        assert_eq!(first_hold(&decision), expected, "{time}");
        if expected.is_some() {
            assert_eq!(decision.recheck, Some(time));
        }
    }
}

#[test]
fn an_upgrade_time_holds_a_rollout_that_has_begun_because_agents_wait_for_it_too() {
    let (mut pools, nodes) = ([plain_pool("worker", 1)], [worker("a")]);
    let time = start() + minutes(10);
    record(&mut pools[0], |state| state.started = Some(start()));
    let decision = decided(&pools, &nodes, |_| {});
    assert_eq!(granted(&decision), ["a"]);
    let decision = decided(&pools, &nodes, |inputs| {
        inputs.start = RolloutStart::NotBefore(time);
    });
    assert_eq!(first_hold(&decision), Some(HoldReason::NotYetDue));
    assert!(granted(&decision).is_empty());
}

#[test]
fn an_upgrade_time_that_cannot_be_parsed_holds_the_rollout_with_its_message() {
    let (pools, nodes) = ([plain_pool("worker", 1)], [worker("a")]);
    let decision = decided(&pools, &nodes, |inputs| {
        inputs.start = RolloutStart::Invalid("upgradeAt is wrong".to_owned());
    });
    assert!(granted(&decision).is_empty());
    let hold = decision.pools[0].holds.first().unwrap();
    assert_eq!(
        (hold.reason, hold.message.as_str()),
        (HoldReason::NotYetDue, "upgradeAt is wrong")
    );
}

#[test]
fn fields_that_are_not_carried_out_are_reported_and_do_not_hold() {
    let mut pool = plain_pool("worker", 1);
    pool.spec.os_image_stream.name = "rhel-10".to_owned();
    let (pools, nodes) = ([pool], [worker("a")]);
    let decision = decided(&pools, &nodes, |_| {});
    assert_eq!(granted(&decision), ["a"]);
    let found = decision.pools[0]
        .conditions
        .iter()
        .find(|it| it.kind == NOT_CARRIED_OUT);
    let found = found.unwrap();
    assert!(found.status && found.message.contains("spec.osImageStream"));
}
