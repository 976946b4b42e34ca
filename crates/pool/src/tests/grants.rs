//! Tests the record of grants, their marks, and what follows from them.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    super::*,
    cordoned,
    model::{AgentStep, ApiServer, Leader, NEW, OLD, act, minutes, ready_node, run_leader, start},
    rollout::{annotate, decided, granted, plain_pool, record, worker, worker_in},
};
use machinist_kube_api::{
    NodeView, PoolView,
    keys::{annotation, pool_annotation, protocol},
};

pub(super) fn grant(id: &str, node: &str) -> Grant {
    Grant {
        id: id.to_owned(),
        kind: GrantKind::Config,
        pool: "worker".to_owned(),
        node: node.to_owned(),
        uid: format!("uid-{node}"),
        target: NEW.to_owned(),
        time: start(),
        acknowledged: false,
        failed: false,
        rollback: false,
        rest: BTreeMap::new(),
    }
}

pub(super) fn listing(pool: &mut PoolView, grants: Vec<Grant>) {
    let all = PoolGrants {
        grants,
        rest: BTreeMap::new(),
    };
    annotate(pool, pool_annotation::GRANTS, &all.to_annotation());
}

pub(super) fn holding(mut node: NodeView, grant: &Grant, acknowledged: bool) -> NodeView {
    let mut set =
        |name: &str, value: &str| node.annotations.insert(name.to_owned(), value.to_owned());
    set(annotation::GRANT, &grant.to_annotation());
    set(protocol::DESIRED_CONFIG, &grant.target);
    if acknowledged {
        set(annotation::GRANT_ACKNOWLEDGED, &grant.id);
    }
    node
}

fn ended(mut node: NodeView, grant: &Grant, outcome: GrantOutcome) -> NodeView {
    let ends = with_end(
        &grant_ends(&node).unwrap(),
        grant.end(outcome, "Code", start()),
    );
    node.annotations
        .insert(annotation::GRANT_ENDS.to_owned(), ends);
    node
}

fn listed(decision: &Decision) -> Option<Vec<&str>> {
    decision.actions.iter().find_map(|action| match action {
        Action::WritePool(write) => Some(
            write
                .grants
                .grants
                .iter()
                .map(|it| it.id.as_str())
                .collect(),
        ),
        _ => None,
    })
}

fn change(decision: &Decision) -> Option<&NodeChange> {
    decision.actions.iter().find_map(|action| match action {
        Action::PatchNode(patch) => Some(&patch.change),
        _ => None,
    })
}

#[test]
fn fields_and_kinds_of_a_later_version_survive() {
    let text = "{\"grants\":[{\"id\":\"g1\",\"kind\":\"Firmware\",\"pool\":\"worker\",\"node\":\"a\",\
        \"uid\":\"u\",\"time\":\"2026-11-21T12:00:00Z\",\"slot\":7}],\"format\":2}";
    let read = PoolGrants::parse("worker", Some(text)).unwrap().unwrap();
    assert_eq!(
        read.grants[0].kind,
        GrantKind::Unknown("Firmware".to_owned())
    );
    let again: serde_json::Value = serde_json::from_str(&read.to_annotation()).unwrap();
    assert_eq!(
        again,
        serde_json::from_str::<serde_json::Value>(text).unwrap()
    );
    assert!(read.is_kept(Some(text)) && !read.is_kept(None) && !read.is_kept(Some("{}")));
}

#[test]
fn grants_that_cannot_be_used_name_object_and_annotation() {
    let long = format!(
        "{{\"grants\":[],\"x\":\"{}\"}}",
        "y".repeat(MAX_GRANTS_BYTES)
    );
    for text in [
        "",
        "null",
        "[]",
        "{\"grants\":[{\"id\":1}]}",
        "{\"grants\":",
        long.as_str(),
    ] {
        let error = PoolGrants::parse("infra", Some(text))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("machinist.dev/grants of MachineConfigPool infra"),
            "{error}"
        );
    }
    assert_eq!(PoolGrants::parse("infra", None).unwrap(), None);
}

proptest! {
    #[test]
    fn no_text_makes_the_parsers_panic(text in ".{0,200}", json in "[\\[\\]{}\":,a-z0-9]{0,80}") {
        for text in [text, json] {
            let _ = PoolGrants::parse("p", Some(&text));
            let mut node = worker("a");
            for name in [annotation::GRANT, annotation::GRANT_ENDS, annotation::WINDOWS] {
                node.annotations.insert(name.to_owned(), text.clone());
            }
            let mut pool = plain_pool("worker", 1);
            for name in [pool_annotation::GRANTS, pool_annotation::ROLLOUT, pool_annotation::HISTORY] {
                annotate(&mut pool, name, &text);
            }
            decided(&[pool], &[node], |_| {});
        }
    }
}

#[test]
fn end_marks_are_few_and_short() {
    let mut node = worker("a");
    for at in 0..40 {
        node = ended(node, &grant(&format!("g{at}"), "a"), GrantOutcome::Done);
    }
    let ends = grant_ends(&node).unwrap();
    assert_eq!(ends.len(), MAX_GRANT_ENDS);
    assert_eq!(ends.last().unwrap().id, "g39");
    let mut long = grant("g40", "a");
    long.target = "x".repeat(3000);
    let node = ended(
        ended(node, &long, GrantOutcome::Done),
        &long,
        GrantOutcome::Failed,
    );
    assert!(node.annotation(annotation::GRANT_ENDS).unwrap().len() <= MAX_NODE_GRANT_BYTES);
}

#[test]
fn end_marks_lose_the_times_of_old_updates_before_old_marks() {
    let names = (0..16).map(|phase| (format!("PhaseWithLongName{phase}"), 100_000));
    let times = UpdateTimes {
        phases: names.collect(),
        blocked: 100_000,
    };
    let mut ends = Vec::new();
    for at in 0..MAX_GRANT_ENDS {
        let end = grant(&format!("g{at}"), "a").end(GrantOutcome::Done, "", start());
        let times = Some(times.clone());
        ends = serde_json::from_str(&with_end(&ends, GrantEnd { times, ..end })).unwrap();
    }
    assert_eq!(ends.len(), MAX_GRANT_ENDS);
    assert_eq!(ends[0].times, None);
    assert_eq!(ends[MAX_GRANT_ENDS - 1].times, Some(times));
}

#[test]
fn a_grant_proceeds_only_by_marks() {
    let one = grant("g1", "a");
    let acknowledged = || holding(worker_in("a", OLD, NEW, "Working"), &one, true);
    let looks_done = holding(worker_in("a", NEW, NEW, "Done"), &one, true);
    let end = |outcome| ended(worker_in("a", NEW, NEW, "Done"), &one, outcome);
    // The time since the grant in minutes, and whether it is still listed after the decision.
    for (what, node, after, stays, expected) in [
        ("placed", holding(worker("a"), &one, false), 9, true, ""),
        ("not placed", worker("a"), 9, true, "PlaceGrant"),
        (
            "not acknowledged",
            holding(worker("a"), &one, false),
            10,
            true,
            "WithdrawGrant",
        ),
        ("acknowledged", acknowledged(), 99, true, ""),
        ("looks done", looks_done, 99, true, ""),
        ("done", end(GrantOutcome::Done), 1, false, ""),
        ("withdrawn", end(GrantOutcome::Withdrawn), 11, false, ""),
        (
            "declined",
            ended(worker("a"), &one, GrantOutcome::Declined),
            1,
            false,
            "",
        ),
        (
            "declined, and still desired",
            ended(
                worker_in("a", OLD, NEW, "Done"),
                &one,
                GrantOutcome::Declined,
            ),
            1,
            true,
            "ResetDesired",
        ),
    ] {
        let mut pool = plain_pool("worker", 1);
        listing(&mut pool, vec![one.clone()]);
        record(&mut pool, |state| state.started = Some(start()));
        let (pools, nodes) = ([pool], [node]);
        let decision = decided(&pools, &nodes, |inputs| {
            inputs.now = start() + minutes(after)
        });
        let ids = listed(&decision);
        let is_listed = ids.is_none_or(|ids| ids.contains(&"g1"));
        assert_eq!(is_listed, stays, "{what}");
        let name = change(&decision).map_or_else(String::new, |change| format!("{change:?}"));
        assert!(
            name.starts_with(expected) && name.is_empty() == expected.is_empty(),
            "{what}: {name}"
        );
    }
}

#[test]
fn a_grant_of_a_deleted_node_is_freed_for_workers_and_kept_for_the_quorum() {
    for (role, is_free) in [("worker", true), ("master", false)] {
        let mut one = grant("g1", "gone");
        one.pool = role.to_owned();
        let mut pool = plain_pool(role, 1);
        listing(&mut pool, vec![one]);
        record(&mut pool, |_| {});
        let pools = [pool.clone()];
        let unknown = decided(&pools, &[], |_| {});
        assert_eq!(unknown.actions, [Action::ReadNode("gone".to_owned())]);
        let absent = decided(&pools, &[], |inputs| {
            inputs.node_reads = [("gone", NodeRead::Absent)].into()
        });
        assert_eq!(listed(&absent) == Some(vec![]), is_free, "{role}");
        annotate(&mut pool, pool_annotation::RELEASED_GRANTS, "g0, g1");
        let pools = [pool];
        let released = decided(&pools, &[], |_| {});
        assert_eq!(
            listed(&released),
            Some(vec![]),
            "{role}: an administrator releases it"
        );
    }
}

#[test]
fn a_recreated_node_inherits_the_grant() {
    let mut one = grant("g1", "a");
    one.acknowledged = true;
    let mut pool = plain_pool("worker", 1);
    listing(&mut pool, vec![one]);
    record(&mut pool, |_| {});
    let mut node = worker("a");
    node.uid = "uid-new".to_owned();
    let mut server = ApiServer::new(vec![pool], vec![node]);
    let mut leader = Leader::start(&server, None);
    run_leader(&mut leader, &mut server);
    let placed = open_grant(&server.nodes[0]).unwrap().unwrap();
    assert_eq!((placed.id.as_str(), placed.uid.as_str()), ("g1", "uid-new"));
    server.now += minutes(60);
    run_leader(&mut leader, &mut server);
    assert!(
        open_grant(&server.nodes[0]).unwrap().is_some(),
        "it is never withdrawn"
    );
}

/// Its grant was freed when it was deleted. Its agent is in the middle of the update, and waits for a desired config.
#[test]
fn a_node_that_was_created_again_during_its_update_gets_a_grant() {
    let mut pool = plain_pool("worker", 1);
    record(&mut pool, |_| {});
    let mut again = worker("a");
    for (name, value) in [
        (protocol::DESIRED_CONFIG, None),
        (protocol::STATE, Some("Working")),
    ] {
        again.annotations.remove(name);
        let value = value.map(|value: &str| (name.to_owned(), value.to_owned()));
        again.annotations.extend(value);
    }
    let (pools, nodes) = ([pool], [worker("b"), again]);
    assert_eq!(granted(&decided(&pools, &nodes, |_| {})), ["a"]);
}

#[test]
fn grants_are_rebuilt_from_a_live_list_before_anything_is_granted() {
    let one = grant("g1", "a");
    let nodes = vec![holding(cordoned(worker("a")), &one, true), worker("b")];
    let mut server = ApiServer::new(vec![plain_pool("worker", 1)], nodes);
    let mut leader = Leader::start(&server, None);
    assert!(
        leader
            .decision(&server)
            .actions
            .contains(&Action::ListNodes)
    );
    leader.listed.insert("worker".to_owned());
    let decision = leader.decision(&server);
    let found = decision.actions.iter().find_map(|action| match action {
        Action::WritePool(write) => Some(write.found.clone()),
        _ => None,
    });
    assert_eq!(found.unwrap(), ["g1"], "it was not granted now");
    leader.listed.clear();
    run_leader(&mut leader, &mut server);
    let text = server.pools[0].annotation(pool_annotation::GRANTS);
    let grants = PoolGrants::parse("worker", text).unwrap().unwrap().grants;
    assert_eq!(grants.len(), 1, "{grants:?}");
    assert_eq!(
        (grants[0].id.as_str(), grants[0].acknowledged),
        ("g1", true)
    );
    assert!(open_grant(&server.nodes[1]).unwrap().is_none());
}

#[test]
fn grants_that_the_server_does_not_keep_stop_everything() {
    let (pools, nodes) = ([plain_pool("worker", 1)], [worker("a")]);
    let decision = decided(&pools, &nodes, |inputs| {
        inputs
            .reads
            .values_mut()
            .for_each(|read| read.is_not_kept = true);
    });
    assert_eq!(granted(&decision), [""; 0]);
    let conditions = &decision.pools[0].conditions;
    assert!(
        conditions
            .iter()
            .any(|it| it.kind == GRANTS_NOT_KEPT && it.status)
    );
}

#[test]
fn a_node_that_changes_its_pool_counts_in_both() {
    let mut old = plain_pool("worker", 1);
    listing(&mut old, vec![grant("g1", "a")]);
    record(&mut old, |_| {});
    let moved = holding(ready_node("a", "infra", OLD), &grant("g1", "a"), true);
    let nodes = [moved, worker("b"), ready_node("c", "infra", OLD)];
    let pools = [plain_pool("infra", 1), old];
    let decision = decided(&pools, &nodes, |_| {});
    let named = |at: usize| decision.pools[at].holds[0].message.contains("a (granted)");
    assert!(named(0) && named(1), "{:?}", decision.pools);
}

#[test]
fn a_node_that_failed_after_its_drain_is_retargeted_in_its_slot() {
    let mut one = grant("g1", "a");
    one.target = "rendered-bad".to_owned();
    one.acknowledged = true;
    one.failed = true;
    let failed = holding(
        cordoned(worker_in("a", OLD, "rendered-bad", "Degraded")),
        &one,
        true,
    );
    let mut pool = plain_pool("worker", 1);
    listing(&mut pool, vec![one]);
    record(&mut pool, |state| state.target = "rendered-bad".to_owned());
    let mut server = ApiServer::new(vec![pool], vec![failed, worker("b")]);
    let mut leader = Leader::start(&server, None);
    run_leader(&mut leader, &mut server);
    let placed = open_grant(&server.nodes[0]).unwrap().unwrap();
    assert_eq!((placed.id.as_str(), placed.target.as_str()), ("g1", NEW));
    assert_eq!(server.nodes[0].desired_config(), Some(NEW));
    assert!(
        open_grant(&server.nodes[1]).unwrap().is_none(),
        "the limit holds"
    );
    assert!(act(&mut server, "a", &AgentStep::Acknowledge));
    assert!(act(&mut server, "a", &AgentStep::End(GrantOutcome::Done)));
    run_leader(&mut leader, &mut server);
    let decision = leader.decision(&server);
    assert!(
        open_grant(&server.nodes[1]).unwrap().is_some(),
        "{decision:?}"
    );
}

#[test]
fn an_outdated_view_of_a_recreated_node_neither_takes_nor_frees_its_grant() {
    let mut one = grant("g1", "a");
    one.uid = "uid-new".to_owned();
    let mut pool = plain_pool("worker", 1);
    listing(&mut pool, vec![one.clone()]);
    record(&mut pool, |_| {});
    // The grant was withdrawn from the Node before it was created again and inherited it.
    let before = ended(worker("a"), &grant("g1", "a"), GrantOutcome::Withdrawn);
    let (pools, nodes) = ([pool], [before]);
    let decision = decided(&pools, &nodes, |_| {});
    assert_eq!(decision.actions, [Action::ReadNode("a".to_owned())]);
}

#[test]
fn a_withdrawal_resets_the_desired_config_of_a_node_that_lost_its_grant() {
    let one = grant("g1", "a");
    let mut pool = plain_pool("worker", 1);
    listing(&mut pool, vec![one]);
    record(&mut pool, |_| {});
    let (pools, nodes) = ([pool], [worker_in("a", OLD, NEW, "Done")]);
    let decision = decided(&pools, &nodes, |inputs| inputs.now = start() + minutes(10));
    let Some(NodeChange::WithdrawGrant {
        is_placed,
        resets_desired,
        desired,
        ..
    }) = change(&decision)
    else {
        panic!("{decision:#?}");
    };
    let resets = (*is_placed, *resets_desired, desired.as_deref());
    assert_eq!(resets, (false, true, Some(OLD)));
}
