use jiff::Timestamp;
use machinist_base::digest::Digest;
use machinist_ignition::Refusal;
use machinist_kube_api::keys::protocol;
use machinist_pool::GrantKind;
use machinist_update::{
    journal::{ConfigName, Outcome, PhaseRecord, UpdateFailure},
    reconciler::{BlockReason, BlockedUpdate, UpdateConfigState},
};

use super::*;

fn grant(acknowledged: bool) -> Grant {
    Grant {
        id: "g1".to_owned(),
        kind: GrantKind::Config,
        pool: "worker".to_owned(),
        node: "a".to_owned(),
        uid: "uid".to_owned(),
        target: "new".to_owned(),
        time: Timestamp::UNIX_EPOCH,
        acknowledged,
        failed: false,
        rollback: false,
        rest: std::collections::BTreeMap::new(),
    }
}

/// A Node with this current config, desired config and state.
fn node(text: &str) -> NodeView {
    let mut view = NodeView::default();
    let names = [
        protocol::CURRENT_CONFIG,
        protocol::DESIRED_CONFIG,
        protocol::STATE,
    ];
    for (name, value) in names.into_iter().zip(text.split(' ')) {
        view.annotations.insert(name.to_owned(), value.to_owned());
    }
    view
}

fn ended(node: &str, report: &UpdateReport, acknowledged: bool) -> String {
    match outcome(&grant(acknowledged), &self::node(node), report, false) {
        Some((outcome, reason)) => format!("{} {reason}", String::from(outcome)),
        None => String::new(),
    }
}

fn report(current: &str, desired: &str) -> UpdateReport {
    let name = |name: &str| Some(ConfigName::new(name, Digest::of(name.as_bytes())));
    UpdateReport {
        config: UpdateConfigState {
            current: name(current),
            desired: name(desired),
        },
        ..UpdateReport::default()
    }
}

fn blocked(reason: Reason) -> UpdateReport {
    let cause = BlockReason {
        reason,
        message: String::new(),
    };
    UpdateReport {
        blocked: Some(BlockedUpdate {
            cause: Arc::new(cause),
            stands: true,
        }),
        ..report("old", "new")
    }
}

fn failed() -> UpdateReport {
    UpdateReport {
        failure: Some(UpdateFailure {
            code: Reason::VerifyFailed,
            message: String::new(),
            retryable: false,
            digest: Some(Digest::of(b"new")),
            refusals: Vec::new(),
        }),
        ..report("old", "new")
    }
}

#[test]
fn a_grant_ends_when_the_node_shows_how_its_update_ended() {
    let cordoned = UpdateReport {
        cordoned: Some(Timestamp::UNIX_EPOCH),
        ..failed()
    };
    let rebooting = UpdateReport {
        unverified: true,
        ..report("old", "new")
    };
    let done = || report("new", "new");
    for (what, node, report, acknowledged, expected) in [
        ("done", "new new Done", done(), true, "Done "),
        ("done, not shown", "old new Working", done(), true, ""),
        ("equal content", "new new Done", done(), false, "Done "),
        (
            "failed",
            "old new Degraded",
            failed(),
            true,
            "RolledBack VerifyFailed",
        ),
        ("failed, not shown", "old new Working", failed(), true, ""),
        (
            "failed after its drain",
            "old new Degraded",
            cordoned,
            true,
            "",
        ),
        ("in a reboot", "old new Working", rebooting, true, ""),
    ] {
        assert_eq!(ended(node, &report, acknowledged), expected, "{what}");
    }
}

#[test]
fn a_refused_config_ends_its_grant_as_a_failure() {
    let refused = |config: &str| {
        let mut refusal = Refusal::new(Reason::SourceRemote, "");
        refusal.config = Some(config.into());
        UpdateReport {
            refused: Arc::new(vec![refusal]),
            ..report("old", "new")
        }
    };
    let mut plan_refused = failed();
    if let Some(failure) = &mut plan_refused.failure {
        failure.code = Reason::ReadOnly;
        failure.refusals = vec![Refusal::new(Reason::ReadOnly, "")];
    }
    let retried = UpdateReport {
        phase: Phase::Failed,
        ..plan_refused.clone()
    };
    let cordoned = UpdateReport {
        cordoned: Some(Timestamp::UNIX_EPOCH),
        ..retried.clone()
    };
    for (what, report, expected) in [
        ("no plan, retried", retried, "Failed ReadOnly"),
        ("no plan after a drain", cordoned, ""),
        ("refused", refused("new"), "Failed SourceRemote"),
        ("an earlier one", refused("older"), ""),
        ("no plan", plan_refused, "Failed ReadOnly"),
    ] {
        assert_eq!(
            ended("old new Degraded", &report, false),
            expected,
            "{what}"
        );
    }
}

#[test]
fn a_grant_of_an_update_that_does_not_begin_is_declined_or_cancelled() {
    let waiting = UpdateReport {
        phase: Phase::Waiting,
        opens: Some(Timestamp::UNIX_EPOCH),
        ..report("old", "new")
    };
    let withdrawn = report("old", "old");
    for (node, report, acknowledged, expected) in [
        (
            "old new Done",
            blocked(Reason::Cancelled),
            true,
            "Cancelled Cancelled",
        ),
        (
            "old new Done",
            blocked(Reason::Cancelled),
            false,
            "Declined Cancelled",
        ),
        (
            "old new Done",
            blocked(Reason::OtherDaemon),
            false,
            "Declined OtherDaemon",
        ),
        // The report is older than the grant.
        ("old new Done", blocked(Reason::AwaitingGrant), false, ""),
        (
            "old new Working",
            waiting.clone(),
            false,
            "Declined OutsideWindow",
        ),
        // It began before the window closed.
        ("old new Working", waiting, true, ""),
        (
            "old old Done",
            withdrawn,
            true,
            "Cancelled DesiredConfigChanged",
        ),
        // The desired config of the Node was not received yet.
        ("old old Done", report("old", "new"), true, ""),
    ] {
        assert_eq!(
            ended(node, &report, acknowledged),
            expected,
            "{node} {report:?}"
        );
    }
    let node = node("old new Done");
    let pinned = outcome(&grant(false), &node, &report("old", "new"), true);
    assert_eq!(pinned, Some((GrantOutcome::Declined, PINNED.to_owned())));
}

/// An update to `new` that ended at this second, with a drain of ten seconds and two reboots of five.
fn finished(second: i64, repair: bool) -> UpdateRecord {
    let at = |second| Timestamp::from_second(second).unwrap();
    let phase = |name: &str, from, to: Option<i64>| PhaseRecord {
        name: name.to_owned(),
        started: at(from),
        finished: to.map(at),
    };
    UpdateRecord {
        id: "1".to_owned(),
        from: "old".to_owned(),
        to: "new".to_owned(),
        digest: Digest::of(b"new"),
        started: at(second - 20),
        finished: at(second),
        outcome: Outcome::Done,
        reason: None,
        phases: vec![
            phase("Draining", second - 20, Some(second - 10)),
            phase("RebootPending", second - 10, Some(second - 5)),
            phase("RebootPending", second - 5, None),
        ],
        blocked_for: 4,
        actions: Vec::new(),
        left_behind: Vec::new(),
        repair,
    }
}

#[test]
fn a_grants_end_has_the_times_of_its_own_update() {
    let mut grant = grant(true);
    grant.time = Timestamp::from_second(100).unwrap();
    let times = |updates| {
        let report = UpdateReport {
            updates,
            ..report("new", "new")
        };
        update_times(&grant, &report)
    };
    let expected = UpdateTimes {
        phases: [("Draining", 10), ("RebootPending", 10)]
            .map(|(name, seconds)| (name.to_owned(), seconds))
            .into(),
        blocked: 4,
    };
    let own = finished(130, false);
    let earlier = finished(90, false);
    let repair = finished(140, true);
    assert_eq!(
        times(vec![repair.clone(), own, earlier.clone()]),
        Some(expected)
    );
    assert_eq!(times(vec![repair, earlier]), None);
    let mut other = finished(130, false);
    other.to = "other".to_owned();
    assert_eq!(times(vec![other]), None);
    assert_eq!(machinist_pool::DRAIN_PHASE, Phase::Draining.name());
}
