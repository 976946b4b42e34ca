use super::*;
use RolloutEventKind::*;
use machinist_pool::GrantKind;

fn grant(node: &str, acknowledged: bool) -> Grant {
    Grant {
        id: format!("of {node}"),
        kind: GrantKind::Config,
        pool: "worker".to_owned(),
        node: node.to_owned(),
        uid: "first".to_owned(),
        target: "rendered-worker-1".to_owned(),
        time: jiff::Timestamp::UNIX_EPOCH,
        acknowledged,
        failed: false,
        rollback: false,
        rest: BTreeMap::new(),
    }
}

fn write(grants: Vec<Grant>, freed: Vec<(Grant, Option<GrantEnd>)>) -> PoolWrite {
    PoolWrite {
        pool: "worker".to_owned(),
        uid: String::new(),
        resource_version: String::new(),
        grants: record(grants),
        rollouts: None,
        freed,
        is_rebuild: false,
        begins: Vec::new(),
        ends: Vec::new(),
        found: Vec::new(),
    }
}

fn record(grants: Vec<Grant>) -> PoolGrants {
    PoolGrants {
        grants,
        rest: BTreeMap::new(),
    }
}

fn ended(node: &str, outcome: GrantOutcome, reason: &str) -> (Grant, Option<GrantEnd>) {
    let grant = grant(node, true);
    let end = grant.end(outcome, reason, jiff::Timestamp::UNIX_EPOCH);
    (grant, Some(end))
}

/// Kind, node and reason of each event.
fn shown(write: &PoolWrite, known: Vec<Grant>) -> Vec<(RolloutEventKind, String, String)> {
    let known = record(known).to_annotation();
    let events = of_write(write, Some(&known), &RolloutView::default()).into_iter();
    let shown = events.map(|it| {
        let node = it.node.unwrap_or_default();
        (it.kind, node, it.reason.unwrap_or_default())
    });
    shown.collect()
}

fn row(kind: RolloutEventKind, node: &str, reason: &str) -> (RolloutEventKind, String, String) {
    (kind, node.to_owned(), reason.to_owned())
}

#[test]
fn an_acknowledgement_is_reported_once() {
    let acknowledged = write(vec![grant("a", true), grant("b", false)], Vec::new());
    let known = vec![grant("a", false), grant("b", false)];
    assert_eq!(shown(&acknowledged, known), [row(NodeStarted, "a", "")]);
    let known = vec![grant("a", true), grant("b", false)];
    assert_eq!(shown(&acknowledged, known), []);
}

#[test]
fn ends_are_reported_with_their_codes_and_a_beginning_that_was_not_seen() {
    let freed = vec![
        ended("a", GrantOutcome::Done, ""),
        ended("b", GrantOutcome::Failed, "UnitDied"),
        ended("c", GrantOutcome::RolledBack, ""),
        ended("d", GrantOutcome::Cancelled, ""),
        ended("e", GrantOutcome::Declined, ""),
        ended("f", GrantOutcome::Withdrawn, ""),
        (grant("g", true), None),
    ];
    let known = ["a", "b", "c", "d", "e", "f", "g"].map(|node| grant(node, node != "a"));
    let expected = [
        row(NodeStarted, "a", ""),
        row(NodeDone, "a", ""),
        row(NodeFailed, "b", "UnitDied"),
        row(NodeFailed, "c", "RolledBack"),
        row(NodeCancelled, "d", ""),
    ];
    assert_eq!(shown(&write(Vec::new(), freed), known.to_vec()), expected);
}

#[test]
fn a_failure_that_keeps_its_slot_is_reported_once() {
    let mut failed = grant("a", true);
    failed.failed = true;
    let first = write(vec![failed.clone()], Vec::new());
    let expected = [row(NodeFailed, "a", "")];
    assert_eq!(shown(&first, vec![grant("a", true)]), expected);
    assert_eq!(shown(&first, vec![failed.clone()]), []);
    let freed = vec![ended("a", GrantOutcome::Failed, "UnitDied")];
    assert_eq!(shown(&write(Vec::new(), freed), vec![failed]), []);
}

#[test]
fn a_failure_that_keeps_its_slot_is_reported_with_the_code_that_the_node_reports() {
    let mut failed = grant("a", true);
    failed.failed = true;
    let first = write(vec![failed], Vec::new());
    let known = record(vec![grant("a", true)]).to_annotation();
    for (text, uid, code) in [
        ("UnitDied: unit a.service failed", "first", "UnitDied"),
        ("UnitDied: unit a.service failed", "second", ""),
        ("a text: of another daemon", "first", ""),
        ("", "first", ""),
    ] {
        let reason = (protocol::REASON.to_owned(), text.to_owned());
        let node = NodeView {
            name: "a".to_owned(),
            uid: uid.to_owned(),
            annotations: [reason].into(),
            ..NodeView::default()
        };
        let mut view = RolloutView::default();
        view.put_node("a", Some(node));
        let events = of_write(&first, Some(&known), &view);
        let codes: Vec<_> = events.iter().map(|it| it.reason.as_deref()).collect();
        assert_eq!(
            codes,
            [Some(code).filter(|it| !it.is_empty())],
            "{text:?}, {uid}"
        );
        assert!(events[0].message.ends_with(code), "{}", events[0].message);
    }
}

#[test]
fn the_end_of_a_rollout_precedes_the_beginning_of_the_next_one() {
    let edge = |target: &str, result: &str| RolloutEdge {
        pool: "worker".to_owned(),
        target: target.to_owned(),
        result: result.to_owned(),
        skipped: Vec::new(),
    };
    let mut both = write(Vec::new(), Vec::new());
    both.ends = vec![
        edge("one", "Completed"),
        edge("two", "Superseded"),
        edge("three", "CanaryFailed"),
    ];
    both.begins = vec![edge("four", "")];
    let expected = [
        row(RolloutCompleted, "", ""),
        row(RolloutStopped, "", "CanaryFailed"),
        row(RolloutStarted, "", ""),
    ];
    assert_eq!(shown(&both, Vec::new()), expected);
    let events = of_write(&both, None, &RolloutView::default());
    assert_eq!(
        events[1].message,
        "the rollout of three was stopped: CanaryFailed"
    );
    assert_eq!(events[1].target.as_deref(), Some("three"));
}

#[test]
fn holds_with_which_a_rollout_only_waits_for_its_nodes_are_not_reported() {
    let hold = |reason| Hold {
        reason,
        message: "because".to_owned(),
    };
    assert_eq!(
        of_hold("worker", None, &hold(HoldReason::CanaryInProgress)),
        None
    );
    let event = of_hold("worker", Some("one"), &hold(HoldReason::Paused)).unwrap();
    assert_eq!(
        (event.kind, event.message.as_str()),
        (RolloutHeld, "Paused: because")
    );
    assert_eq!(event.reason.as_deref(), Some("Paused"));
}
