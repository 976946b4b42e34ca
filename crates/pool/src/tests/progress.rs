//! Tests what ends, delays and stops a rollout: canary, failures, windows, stepping aside, deadlines, history.

use jiff::SignedDuration;

use super::{
    super::*,
    cordoned,
    model::{AgentStep, ApiServer, Leader, NEW, OLD, act, minutes, run_leader, start},
    rollout::{annotate, decided, first_hold, granted, plain_pool, record, worker, worker_in},
};
use machinist_base::maintenance_window::MaintenanceWindows;
use machinist_kube_api::keys::{annotation, pool_annotation};

const NIGHT: &str =
    "{\"windows\": [{\"days\": [\"Sat\"], \"start\": \"11:30\", \"duration\": \"1h\"}]}";

#[test]
fn failures_stop_a_rollout_by_the_size_of_the_pool() {
    for (machines, failures) in [
        (0, 1),
        (1, 1),
        (3, 1),
        (4, 2),
        (6, 2),
        (29, 2),
        (30, 3),
        (5000, 500),
    ] {
        assert_eq!(default_stop_after(machines), failures, "{machines}");
    }
}

#[test]
fn the_first_node_is_the_canary_and_soaks() {
    let mut pool = plain_pool("worker", 3);
    annotate(&mut pool, pool_annotation::CANARY, "1");
    annotate(&mut pool, pool_annotation::CANARY_SOAK, "30m");
    let nodes = ["a", "b", "c", "d"].map(worker);
    let mut server = ApiServer::new(vec![pool], nodes.to_vec());
    let mut leader = Leader::start(&server, None);
    run_leader(&mut leader, &mut server);
    assert_eq!(server.disrupted(), ["a"]);
    let held = |leader: &Leader, server: &ApiServer| {
        let condition = leader.decision(server).pools[0].conditions[0].clone();
        (condition.status, condition.reason)
    };
    assert_eq!(held(&leader, &server), (false, "CanaryInProgress"));
    let condition = leader.decision(&server).pools[0].conditions[0].clone();
    assert_eq!(condition.message, "the canary nodes are updated first: a");
    assert!(act(&mut server, "a", &AgentStep::Acknowledge));
    assert!(act(&mut server, "a", &AgentStep::End(GrantOutcome::Done)));
    run_leader(&mut leader, &mut server);
    assert_eq!(held(&leader, &server), (false, "CanarySoaking"));
    server.now += minutes(14);
    assert_eq!(server.disrupted(), [""; 0]);
    server.now += minutes(16);
    for node in &mut server.nodes {
        super::model::beat(node, start() + minutes(30));
    }
    run_leader(&mut leader, &mut server);
    assert_eq!(server.disrupted(), ["b", "c", "d"]);
}

/// While a node updates and the others wait for it, the condition is false; it is true when no node updates.
#[test]
fn a_rollout_is_held_only_while_no_node_updates() {
    let pool = plain_pool("worker", 1);
    let mut server = ApiServer::new(vec![pool], vec![worker("a"), worker("b")]);
    let mut leader = Leader::start(&server, None);
    run_leader(&mut leader, &mut server);
    let held = |leader: &Leader, server: &ApiServer| {
        let condition = leader.decision(server).pools[0].conditions[0].clone();
        assert!(!condition.message.is_empty());
        (condition.status, condition.reason)
    };
    assert_eq!(held(&leader, &server), (false, "NodesUnavailable"));
    assert!(act(&mut server, "a", &AgentStep::Acknowledge));
    assert!(act(&mut server, "a", &AgentStep::FailDrained));
    run_leader(&mut leader, &mut server);
    assert_eq!(held(&leader, &server), (true, "StoppedAfterFailures"));

    let nodes = [cordoned(worker("a")), worker("b")];
    let pools = [plain_pool("worker", 1)];
    let decision = decided(&pools, &nodes, |_| {});
    let condition = &decision.pools[0].conditions[0];
    assert_eq!(
        (condition.status, condition.reason),
        (true, "NodesUnavailable")
    );
}

#[test]
fn a_failed_canary_stops_the_rollout_until_it_is_resumed() {
    let mut pool = plain_pool("worker", 3);
    annotate(&mut pool, pool_annotation::CANARY, "1");
    let mut server = ApiServer::new(vec![pool], ["a", "b", "c"].map(worker).to_vec());
    let mut leader = Leader::start(&server, None);
    run_leader(&mut leader, &mut server);
    assert!(act(&mut server, "a", &AgentStep::Acknowledge));
    assert!(act(&mut server, "a", &AgentStep::FailDrained));
    server.now += minutes(1);
    run_leader(&mut leader, &mut server);
    assert_eq!(
        first_hold(&leader.decision(&server)),
        Some(HoldReason::CanaryFailed)
    );
    assert_eq!(server.disrupted(), ["a"], "it keeps its slot");
    let message = leader.decision(&server).pools[0].holds[0].message.clone();
    assert!(
        message.contains("1 node failed") && message.contains("(a)"),
        "{message}"
    );
    annotate(&mut server.pools[0], pool_annotation::RESUME, "2");
    run_leader(&mut leader, &mut server);
    let state = &RolloutStates::of(&server.pools[0]).unwrap().rollouts["worker"];
    assert_eq!((state.failures, state.stopped.as_deref()), (0, None));
}

#[test]
fn failures_that_hold_all_slots_are_named() {
    let mut pool = plain_pool("worker", 1);
    annotate(&mut pool, pool_annotation::STOP_AFTER_FAILURES, "9");
    record(&mut pool, |state| state.canary_passed = Some(start()));
    let nodes = [worker_in("a", "rendered-old", NEW, "Degraded"), worker("b")];
    let pools = [pool];
    let decision = decided(&pools, &nodes, |_| {});
    assert_eq!(first_hold(&decision), Some(HoldReason::SlotsHeldByFailures));
    assert!(decision.pools[0].holds[0].message.contains("a (failing)"));
}

#[test]
fn a_blocked_node_steps_aside_once_and_all_blocked_stops() {
    let mut pool = plain_pool("worker", 1);
    annotate(&mut pool, pool_annotation::STEP_ASIDE_AFTER, "5m");
    let mut server = ApiServer::new(vec![pool], ["a", "b"].map(worker).to_vec());
    let mut leader = Leader::start(&server, None);
    let blocked = |leader: &Leader, server: &ApiServer| {
        let names: Vec<_> = leader.nodes.iter().map(|it| it.name.clone()).collect();
        let mut inputs = RolloutInputs::new(&leader.pools, &leader.nodes, server.now);
        let blockers = || vec!["budget shop/db allows none".to_owned()];
        let blocked = names.iter().map(|name| (name.as_str(), blockers()));
        inputs.blockers = Some(blocked.collect());
        decide(&inputs)
    };
    for name in ["a", "b"] {
        run_leader(&mut leader, &mut server);
        assert_eq!(server.disrupted(), [name]);
        assert!(act(&mut server, name, &AgentStep::Acknowledge));
        assert!(act(&mut server, name, &AgentStep::Block));
        server.now += minutes(5);
        run_leader(&mut leader, &mut server);
        assert_eq!(server.node(name).unwrap().cancel(), Some(NEW));
        assert!(act(
            &mut server,
            name,
            &AgentStep::End(GrantOutcome::Cancelled)
        ));
        // The slot is free when the desired config is set back.
        run_leader(&mut leader, &mut server);
        assert_eq!(
            server.node(name).unwrap().desired_config(),
            Some("rendered-old")
        );
    }
    leader.sync_pools(&server);
    let decision = blocked(&leader, &server);
    assert_eq!(first_hold(&decision), Some(HoldReason::AllBlocked));
    let message = &decision.pools[0].holds[0].message;
    assert_eq!(message.matches("shop/db").count(), 1, "{message}");

    // The pods no longer block: nothing holds the rollout.
    let mut inputs = RolloutInputs::new(&leader.pools, &leader.nodes, server.now);
    inputs.blockers = Some(std::collections::BTreeMap::new());
    assert_eq!(first_hold(&decide(&inputs)), None);
    // It is not known whether the pods block: the nodes are tried again after a while, or at once when resumed.
    assert_eq!(
        first_hold(&leader.decision(&server)),
        Some(HoldReason::NodesNotEligible)
    );
    server.now += minutes(1);
    annotate(&mut server.pools[0], pool_annotation::RESUME, "2");
    run_leader(&mut leader, &mut server);
    assert_eq!(server.disrupted().len(), 1);
}

/// Its blockers have to be read again, although another node is what the pool waits for.
#[test]
fn a_blocked_node_beside_one_that_waits_for_its_own_window_is_reported() {
    let mut pool = plain_pool("worker", 1);
    record(&mut pool, |state| {
        state.canary_passed = Some(start());
        state.record_stepped_aside("a");
    });
    let mut waiting = worker("b");
    let windows = (annotation::WINDOWS.to_owned(), NIGHT.to_owned());
    waiting.annotations.extend([windows]);
    let (pools, nodes) = ([pool], [worker("a"), waiting]);
    for (blockers, is_reported, expected) in [(vec!["shop/db"], true, ""), (vec![], false, "a")] {
        let decision = decided(&pools, &nodes, |inputs| {
            let blockers = blockers.iter().map(|it| (*it).to_owned()).collect();
            inputs.blockers = Some([("a", blockers)].into());
            inputs.now = start() - minutes(45);
        });
        assert_eq!(decision.pools[0].is_any_blocked, is_reported);
        assert_eq!(granted(&decision).concat(), expected);
    }
}

#[test]
fn no_node_starts_that_its_window_cannot_finish() {
    // The window is open from 11:30 to 12:30; a node takes 5 min and its reboot.
    for (now, reboot, expected) in [
        (0, "15m", None),
        (10, "15m", None),
        (11, "15m", Some(HoldReason::OutsideWindow)),
        (45, "15m", Some(HoldReason::OutsideWindow)),
        (-45, "15m", Some(HoldReason::OutsideWindow)),
        (-30, "2h", None),
        (-10, "2h", Some(HoldReason::OutsideWindow)),
    ] {
        let mut pool = plain_pool("worker", 2);
        annotate(&mut pool, pool_annotation::WINDOWS, NIGHT);
        annotate(&mut pool, pool_annotation::REBOOT_TIME, reboot);
        let (pools, nodes) = ([pool], [worker("a"), worker("b")]);
        let decision = decided(&pools, &nodes, |inputs| inputs.now = start() + minutes(now));
        assert_eq!(
            first_hold(&decision).filter(|_| granted(&decision).is_empty()),
            expected,
            "{now} {reboot}"
        );
        let is_short = decision.pools[0]
            .conditions
            .iter()
            .any(|it| it.kind == WINDOW_TOO_SHORT && it.status);
        assert_eq!(
            is_short && granted(&decision).len() == 1,
            reboot == "2h" && expected.is_none()
        );
    }
}

#[test]
fn the_agents_own_window_counts_too() {
    let mut node = worker("a");
    let text = "{\"windows\": [{\"start\": \"20:00\", \"duration\": \"4h\"}]}".to_owned();
    node.annotations.insert(
        machinist_kube_api::keys::annotation::WINDOWS.to_owned(),
        text,
    );
    let (pools, nodes) = ([plain_pool("worker", 2)], [node, worker("b")]);
    assert_eq!(granted(&decided(&pools, &nodes, |_| {})), ["b"]);
    let always = WindowTimes::new(&MaintenanceWindows::default(), start());
    assert_eq!(always.permit(minutes(99_999)), WindowPermit::Open);
}

#[test]
fn a_rollout_that_did_not_begin_by_its_deadline_waits_for_resume() {
    let mut pool = plain_pool("worker", 1);
    annotate(&mut pool, pool_annotation::START_DEADLINE, "2h");
    record(&mut pool, |state| state.since = start() - minutes(120));
    let nodes = [worker("a")];
    let pools = [pool.clone()];
    assert_eq!(
        first_hold(&decided(&pools, &nodes, |_| {})),
        Some(HoldReason::StartDeadlineMissed)
    );
    annotate(&mut pool, pool_annotation::RESUME, "2");
    let pools = [pool];
    assert_eq!(granted(&decided(&pools, &nodes, |_| {})), ["a"]);
}

#[test]
fn estimates_give_the_documented_figures() {
    let size = |machines, at_most| PoolSize {
        machines,
        at_most,
        node_time: NODE_UPDATE_TIME,
    };
    for (at_most, expected) in [(1, 90), (2, 75)] {
        let time = cluster_update_time(&[size(3, 1), size(6, at_most)]);
        assert_eq!(time, minutes(expected));
    }
    let none = RolloutHistory::default();
    let settings = RolloutSettings::default();
    let time = |reboot| node_update_time(&none, &settings, reboot);
    assert_eq!(time(RebootKind::None), minutes(5));
    assert_eq!(time(RebootKind::Soft), minutes(7));
    assert_eq!(time(RebootKind::Full), minutes(20));
}

fn update(node: &str, outcome: GrantOutcome, seconds: i64) -> NodeUpdate {
    let time = SignedDuration::from_secs(seconds);
    NodeUpdate {
        node: node.to_owned(),
        outcome,
        code: "HealthRegressed".to_owned(),
        total: time + minutes(60),
        blocked: minutes(60),
        phases: vec![("Draining".to_owned(), time)],
    }
}

#[test]
fn history_keeps_ten_rollouts_within_its_size() {
    let mut history = RolloutHistory::default();
    for rollout in 0..14 {
        let target = format!("rendered-{rollout}");
        history.begin(&target, start());
        history.begin(&target, start());
        for node in 0..60 {
            let name = format!("{node}-{}", "n".repeat(200));
            history.record(&target, &update(&name, GrantOutcome::Done, 100 + node));
        }
        history.record(&target, &update("bad", GrantOutcome::RolledBack, 1));
    }
    history.end("rendered-13", "Completed", &[], start());
    assert_eq!(history.rollouts.len(), MAX_ROLLOUTS);
    let newest = &history.rollouts[0];
    assert_eq!(
        (newest.target.as_str(), newest.result.as_str()),
        ("rendered-13", "Completed")
    );
    assert_eq!(newest.worst.len(), MAX_WORST_NODES);
    assert!(newest.worst[0].failed && newest.worst[0].node == "bad");
    assert_eq!(history.rollouts[1].result, "Superseded");
    assert_eq!(
        history.expected_update_time(RebootKind::None),
        Some(SignedDuration::from_secs(159)),
        "without blocked time"
    );
    // Updates without a reboot do not show how long one with a reboot takes.
    assert_eq!(history.expected_update_time(RebootKind::Full), None);
    let mut rebooted = update("one", GrantOutcome::Done, 700);
    rebooted
        .phases
        .push(("RebootPending".to_owned(), minutes(10)));
    let mut with_reboot = history.clone();
    with_reboot.begin("rendered-14", start());
    with_reboot.record("rendered-14", &rebooted);
    let expected = with_reboot.expected_update_time(RebootKind::Full);
    assert!(
        expected.is_some_and(|time| time >= SignedDuration::from_secs(700)),
        "{expected:?}"
    );
    assert_eq!(
        with_reboot.expected_update_time(RebootKind::None),
        history.expected_update_time(RebootKind::None)
    );
    assert!(history.has_run("rendered-12") && !history.has_run("rendered-1"));
    let text = history.to_annotation();
    assert!(text.len() <= MAX_HISTORY_BYTES, "{}", text.len());
    let mut pool = plain_pool("worker", 1);
    annotate(&mut pool, pool_annotation::HISTORY, &text);
    assert_eq!(RolloutHistory::of(&pool).rollouts.len(), MAX_ROLLOUTS);
    assert_eq!(
        RolloutHistory::of(&pool).rollouts[0].worst,
        newest.worst,
        "the newest loses nothing"
    );
}

#[test]
fn rendered_configs_in_use_are_never_collected() {
    let mut pool = plain_pool("worker", 1);
    annotate(&mut pool, pool_annotation::PINNED_CONFIG, "r1");
    pool.status.configuration.name = "r2".to_owned();
    let node = worker_in("a", "r3", "r4", "Working");
    let used = used_configs(&[pool], &[node]).unwrap();
    let config = |at: i64| RenderedConfig {
        name: format!("r{at}"),
        pool: "worker".to_owned(),
        created: Some(start() + minutes(at)),
    };
    let all: Vec<_> = (0..10).map(config).collect();
    assert_eq!(unused_configs(&all, &used, 3), ["r0", "r5", "r6"]);
    assert_eq!(missing_configs(&all, &used), [NEW]);
    let mut broken = plain_pool("worker", 1);
    annotate(&mut broken, pool_annotation::GRANTS, "?");
    assert!(
        used_configs(&[broken], &[]).is_err(),
        "what is not known is in use"
    );
}

#[test]
fn a_pinned_pool_returns_to_the_earlier_config_and_grants_a_rollback() {
    let mut history = RolloutHistory::default();
    history.begin("rendered-old", start());
    history.record("rendered-old", &update("a", GrantOutcome::Done, 1));
    let mut pool = plain_pool("worker", 1);
    annotate(
        &mut pool,
        pool_annotation::HISTORY,
        &history.to_annotation(),
    );
    annotate(&mut pool, pool_annotation::PINNED_CONFIG, "rendered-old");
    let (pools, nodes) = ([pool], [worker_in("a", NEW, NEW, "Done")]);
    let decision = decided(&pools, &nodes, |_| {});
    let grant = decision.actions.iter().find_map(|action| match action {
        Action::WritePool(write) => write.grants.grants.first(),
        _ => None,
    });
    let grant = grant.unwrap();
    assert_eq!(
        (grant.target.as_str(), grant.rollback),
        ("rendered-old", true)
    );
    assert!(
        decision.pools[0]
            .conditions
            .iter()
            .any(|it| it.kind == PINNED && it.status)
    );
}

#[test]
fn nodes_that_wait_in_service_do_not_hold_each_other() {
    // The limit was lowered after both had been chosen or had failed.
    for (state, resumed) in [("Done", false), ("Degraded", true)] {
        let mut pool = plain_pool("worker", 1);
        record(&mut pool, |rollout| {
            rollout.started = Some(start());
            if resumed {
                rollout.resumed = Some(start() + minutes(1));
            }
        });
        let nodes = ["a", "b"].map(|name| worker_in(name, OLD, NEW, state));
        let first = decided(&[pool.clone()], &nodes, |inputs| {
            inputs.now = start() + minutes(2)
        });
        assert_eq!(granted(&first).len(), 1, "{state}: {first:#?}");
        // One that is out of service holds the slot.
        let nodes = [cordoned(nodes[0].clone()), nodes[1].clone()];
        let second = decided(&[pool], &nodes, |inputs| inputs.now = start() + minutes(2));
        assert_eq!(granted(&second).len(), 0, "{state}: {second:#?}");
    }
}

#[test]
fn the_windows_of_an_agent_are_read_as_they_are_written() {
    assert_eq!(format_windows(&MaintenanceWindows::default()), None);
    for text in [
        NIGHT,
        "{\"timeZone\": \"Europe/Berlin\", \"windows\": [{\"start\": \"22:00\", \"duration\": \"90m\"}, \
         {\"days\": [\"Mon\", \"Thu\"], \"start\": \"03:05\", \"duration\": \"168h\"}]}",
    ] {
        let windows = crate::rollout_settings::parse_windows(text).unwrap();
        let again = format_windows(&windows).unwrap();
        assert_eq!(
            crate::rollout_settings::parse_windows(&again).unwrap(),
            windows,
            "{again}"
        );
    }
}
