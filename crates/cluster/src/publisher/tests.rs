mod degraded;

use std::time::Duration;

use jiff::Timestamp;

use super::*;
use machinist_base::digest::Digest;
use machinist_ignition::Refusal;
use machinist_kube_api::{NodeCondition, NodeConditionKind, Progress};
use machinist_status::{
    Mode,
    readiness::{Gate, GateName},
};
use machinist_update::{
    journal::{ConfigName, UpdateFailure},
    node_port::Blocker,
    reconciler::UpdateConfigState,
};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const ALL: ExternalWriters = ExternalWriters {
    config: true,
    readiness: true,
};

fn config(name: &str) -> ConfigName {
    ConfigName::new(name, Digest::of(name.as_bytes()))
}

fn report(phase: Phase, current: &str, desired: &str) -> UpdateReport {
    let named = |name: &str| (!name.is_empty()).then(|| config(name));
    UpdateReport {
        phase,
        config: UpdateConfigState {
            current: named(current),
            desired: named(desired),
        },
        boot: Some("boot-1".to_owned()),
        ..UpdateReport::default()
    }
}

fn failure(code: Reason, retryable: bool) -> Option<UpdateFailure> {
    Some(UpdateFailure {
        code,
        message: "the cause".to_owned(),
        retryable,
        digest: None,
        refusals: Vec::new(),
    })
}

fn refused(code: Reason) -> Arc<Vec<Refusal>> {
    Arc::new(vec![Refusal::new(code, "this cannot be")])
}

#[test]
fn node_update_state_follows_the_mcd_protocol() {
    use NodeUpdateState::{Degraded, Done, Unreconcilable, Working};
    use Phase::*;
    let failed = |phase, code, retryable| UpdateReport {
        failure: failure(code, retryable),
        ..report(phase, "a", "b")
    };
    let unread = |code| UpdateReport {
        refused: refused(code),
        ..report(Idle, "a", "")
    };
    let regressed = Reason::HealthRegressed;
    // Each case: the report, and the state written for it.
    let cases = [
        (report(Idle, "a", "a"), Some(Done)),
        // Unhealthy during a boot that is being verified.
        (failed(Booted, regressed, true), Some(Working)),
        (failed(Verifying, regressed, true), Some(Working)),
        (failed(Failed, regressed, false), Some(Degraded)),
        (report(Idle, "a", ""), Some(Done)),
        (report(Idle, "", ""), None),
        (report(Idle, "a", "b"), Some(Working)),
        (report(Planned, "a", "b"), Some(Working)),
        (report(Draining, "a", "b"), Some(Working)),
        (report(Uncordoning, "b", "b"), Some(Working)),
        (failed(Failed, Reason::JobFailed, true), Some(Degraded)),
        (failed(Planned, Reason::JobFailed, true), Some(Degraded)),
        (
            failed(Planned, Reason::ApiServerUnreachable, true),
            Some(Working),
        ),
        (failed(Idle, Reason::NoSpace, false), Some(Unreconcilable)),
        // An obstacle is retried, and reported at once.
        (failed(Failed, Reason::ForeignContent, true), Some(Degraded)),
        (
            failed(Planned, Reason::ForeignContent, true),
            Some(Degraded),
        ),
        (unread(Reason::FieldUnknown), Some(Unreconcilable)),
        (unread(Reason::ConfigNotFound), Some(Working)),
    ];
    for (report, expected) in cases {
        let mut damper = DegradedDebounce::default();
        let shown = damper.record_state(degraded_input(&report), Instant::now());
        assert_eq!(state(&report, shown), expected, "{report:#?}");
        let notice = desired_node_status(&report, &open(), shown, ALL).unwrap();
        if let Some(Degraded | Unreconcilable) = expected {
            let text = value(&notice, keys::protocol::REASON).unwrap();
            assert!(!text.is_empty(), "{report:#?}");
            // The MachineConfigNode shows the same state.
            let clock = Clock::from_fn(|| NOW);
            let before = MachineConfigNodeStatus::default();
            let mcn = progress(&report, shown, None, &before, &clock).unwrap();
            let kind = NodeConditionKind::NodeDegraded.as_str();
            let mcn = mcn.conditions.iter().find(|it| it.kind == kind).unwrap();
            assert_eq!((mcn.status, &mcn.message), (Progress::True, &text));
        }
    }
    // The machine's current config is unknown.
    let mut unknown = report(Idle, "a", "a");
    (unknown.unknown, unknown.failure) = (true, failure(Reason::JournalUnreadable, true));
    let mut damper = DegradedDebounce::default();
    let shown = damper.record_state(degraded_input(&unknown), Instant::now());
    assert_eq!(state(&unknown, shown), Some(Degraded));
}

fn gate(name: GateName, effect: GateEffect) -> Gate {
    Gate {
        name: name.into(),
        open: false,
        effect,
        since: NOW,
        reason: Reason::DevicesMissing,
        message: "one is missing".to_owned(),
    }
}

fn open() -> Gates {
    let gate = Gate {
        open: true,
        ..gate(GateName::Devices, GateEffect::Hold)
    };
    [gate].into_iter().collect()
}

fn value(notice: &DesiredNodeStatus, name: &str) -> Option<String> {
    notice.annotations[name].clone()
}

#[test]
fn current_config_annotation_changes_only_together_with_done() {
    use keys::protocol::*;
    let at = |phase, current| {
        desired_node_status(&report(phase, current, "b"), &open(), None, ALL).unwrap()
    };
    assert_eq!(
        value(&at(Phase::Staging, "a"), CURRENT_CONFIG).as_deref(),
        Some("a")
    );
    // The disk is verified, but the node is not uncordoned yet.
    assert!(
        !at(Phase::Uncordoning, "b")
            .annotations
            .contains_key(CURRENT_CONFIG)
    );
    // The guard has verified it, and the agent has just started.
    let mut starting = report(Phase::Idle, "b", "b");
    starting.cordoned = Some(NOW);
    let starting = desired_node_status(&starting, &open(), None, ALL).unwrap();
    assert!(!starting.annotations.contains_key(CURRENT_CONFIG));
    assert_eq!(value(&starting, STATE).as_deref(), Some("Working"));
    let done = at(Phase::Idle, "b");
    assert_eq!(value(&done, CURRENT_CONFIG).as_deref(), Some("b"));
    assert_eq!(value(&done, STATE).as_deref(), Some("Done"));
    assert_eq!(value(&done, REASON).as_deref(), Some(""));
    assert_eq!(value(&done, POST_CONFIG_ACTION).as_deref(), Some(""));
    let rebooting = at(Phase::RebootPending, "a");
    assert_eq!(
        value(&rebooting, POST_CONFIG_ACTION).as_deref(),
        Some("Rebooting")
    );
    assert_eq!(value(&done, keys::annotation::BLOCKED_BY), None);
    // The desired config is set by the controller, on every node.
    assert!(!done.annotations.contains_key(DESIRED_CONFIG));
}

#[test]
fn a_long_failure_message_is_truncated_and_starts_with_its_code() {
    let mut failed = report(Phase::Failed, "a", "b");
    failed.failure = failure(Reason::JobFailed, true);
    failed.failure.as_mut().unwrap().message = "ü".repeat(2000);
    let mut damper = DegradedDebounce::default();
    let shown = damper.record_state(degraded_input(&failed), Instant::now());
    let notice = desired_node_status(&failed, &open(), shown, ALL).unwrap();
    let reason = value(&notice, keys::protocol::REASON).unwrap();
    assert!(reason.starts_with("JobFailed: ü"));
    assert!((1999..=2000).contains(&reason.len()), "{}", reason.len());
}

#[test]
fn remediation_is_excluded_while_the_node_is_cordoned_or_reboots() {
    let stands = |report: &_| {
        desired_node_status(report, &open(), None, ALL)
            .unwrap()
            .stand_back
    };
    let mut report = report(Phase::RunningActions, "a", "b");
    assert!(!stands(&report), "a restarted unit is nothing to them");
    report.cordoned = Some(NOW);
    assert!(stands(&report));
    (report.cordoned, report.reboot_needed_in) = (None, report.boot.clone());
    assert!(stands(&report));
}

#[test]
fn no_mcd_annotations_are_written_while_another_daemon_manages_the_config() {
    let duties = ExternalWriters {
        config: false,
        readiness: true,
    };
    let notice =
        desired_node_status(&report(Phase::Idle, "a", "a"), &open(), None, duties).unwrap();
    assert!(notice.annotations.is_empty());
    // Conditions that only updates cause are absent, too.
    assert_eq!(notice.conditions.len(), 1);
    let ready = &notice.conditions[0];
    assert_eq!(
        (ready.kind, ready.status, &*ready.reason),
        (keys::condition::READY, "True", "Ok")
    );
}

#[test]
fn nothing_is_published_before_the_gates_are_evaluated() {
    let report = report(Phase::Idle, "a", "a");
    assert_eq!(
        desired_node_status(&report, &Gates::default(), None, ALL),
        None
    );
}

fn blocker() -> Blocker {
    Blocker {
        kind: "Pod".to_owned(),
        namespace: "shop".to_owned(),
        name: "web-0".to_owned(),
        reason: Reason::UnderPressure,
        message: "budget web allows 0 of 1".to_owned(),
        since: NOW,
    }
}

#[test]
fn ready_condition_names_closed_gates_and_drain_blockers() {
    let gates: Gates = [
        gate(GateName::Devices, GateEffect::Hold),
        gate(GateName::Pressure, GateEffect::Warn),
    ]
    .into_iter()
    .collect();
    let mut report = report(Phase::Draining, "a", "b");
    let ready = |report: &_| {
        desired_node_status(report, &gates, None, ALL)
            .unwrap()
            .conditions
            .remove(0)
    };
    let held = ready(&report);
    assert_eq!((held.kind, held.status), (keys::condition::READY, "False"));
    assert_eq!(held.reason, "DevicesMissing");
    assert_eq!(held.message, "Devices: one is missing; warnings: Pressure");
    report.blockers = vec![blocker()];
    let blocked = ready(&report);
    assert_eq!(blocked.reason, "UnderPressure", "the blocker's");
    assert!(
        blocked
            .message
            .starts_with("Pod shop/web-0: budget web allows 0 of 1; Devices"),
        "{}",
        blocked.message
    );
    let notice = desired_node_status(&report, &gates, None, ALL).unwrap();
    let blocked = value(&notice, keys::annotation::BLOCKED_BY);
    assert_eq!(blocked.as_deref(), Some("shop/web-0 (UnderPressure)"));
}

fn lifecycle(report: &UpdateReport) -> [&'static str; 3] {
    let reported = desired_node_status(report, &open(), None, ALL)
        .unwrap()
        .conditions;
    [
        keys::condition::MAINTENANCE,
        keys::condition::DRAIN,
        keys::condition::DRAINED,
    ]
    .map(|kind| reported.iter().find(|one| one.kind == kind).unwrap().status)
}

#[test]
fn lifecycle_conditions_match_each_update_phase() {
    use Phase::*;
    let (yes, no) = ("True", "False");
    let table = [
        (Waiting, false, [no, no, no]),
        (Cordoned, true, [yes, no, no]),
        (DisablingDevices, true, [yes, no, no]),
        (Draining, true, [yes, yes, no]),
        (Drained, true, [yes, no, yes]),
        (Staging, true, [yes, no, yes]),
        (Booted, true, [yes, no, yes]),
        (Uncordoning, true, [yes, no, yes]),
        (Idle, false, [no, no, no]),
        // An update that disturbs no pod is not maintenance.
        (Staging, false, [no, no, no]),
    ];
    for (phase, cordoned, expected) in table {
        let mut report = report(phase, "a", "b");
        report.cordoned = cordoned.then_some(NOW);
        assert_eq!(lifecycle(&report), expected, "{phase:?}");
    }
    let mut rebooting = report(RebootPending, "a", "b");
    rebooting.reboot_needed_in = rebooting.boot.clone();
    assert_eq!(lifecycle(&rebooting), [yes, no, no], "no node was drained");
    // An aborted drain leaves pods; a drain whose update was withdrawn later does not.
    let mut failed = report(Failed, "a", "b");
    failed.cordoned = Some(NOW);
    assert_eq!(lifecycle(&failed), [yes, no, no]);
    failed.unverified = true;
    assert_eq!(lifecycle(&failed), [yes, no, yes]);
    let mut withdrawn = report(Uncordoning, "a", "a");
    (withdrawn.cordoned, withdrawn.failure) = (Some(NOW), failure(Reason::Withdrawn, false));
    assert_eq!(lifecycle(&withdrawn), [yes, no, no]);
    let mut lost = report(Idle, "", "");
    lost.unknown = true;
    assert_eq!(lifecycle(&lost), ["Unknown"; 3]);
}

/// Runs through the phases of an update and records each change of a condition, as the end-to-end
/// test of the real controller does.
type Step = (Phase, fn(&mut UpdateReport));

fn condition_changes(phases: &[Step]) -> Vec<String> {
    let mut before: Vec<NodeCondition> = Vec::new();
    let mut changes = Vec::new();
    for (phase, change) in phases {
        let mut report = report(*phase, "a", "b");
        report.cordoned = Some(NOW);
        change(&mut report);
        let settled = super::is_settled(&report);
        let after = conditions(&report, settled, None, &before, NOW);
        for one in &after {
            let known = before.iter().find(|it| it.kind == one.kind);
            if known.map_or(Progress::False, |it| it.status) != one.status {
                changes.push(format!("{} {:?}", one.kind, one.status));
            }
        }
        before = after;
    }
    changes
}

#[test]
fn an_update_with_reboot_sets_conditions_in_the_documented_order() {
    use Phase::*;
    let here: fn(&mut UpdateReport) = |_| {};
    let pending: fn(&mut UpdateReport) = |it| it.reboot_needed_in = Some("boot-1".to_owned());
    let back: fn(&mut UpdateReport) = |it| it.reboot_needed_in = Some("boot-0".to_owned());
    let changes = condition_changes(&[
        (Planned, here),
        (Waiting, here),
        (Cordoned, here),
        (DisablingDevices, here),
        (Draining, here),
        (Drained, here),
        (Staging, here),
        (Committing, here),
        (RunningActions, pending),
        (RebootPending, pending),
        (Booted, back),
        (Verifying, back),
        // The boot is verified, so the report no longer names it.
        (Uncordoning, here),
    ]);
    let expected = [
        "UpdatePrepared True",
        "UpdateExecuted Unknown",
        "Cordoned True",
        "Drained Unknown",
        "Drained True",
        "AppliedFilesAndOS Unknown",
        "UpdateExecuted True",
        "AppliedFilesAndOS True",
        "RebootedNode Unknown",
        "RebootedNode True",
        "Resumed True",
        "UpdateComplete True",
        "Uncordoned Unknown",
    ];
    assert!(
        !changes
            .iter()
            .any(|it| it == "UpdatePostActionComplete True"),
        "the reboot was the action: {changes:?}"
    );
    let but_actions: Vec<_> = changes
        .into_iter()
        .filter(|it| !it.starts_with("UpdatePostAction"))
        .collect();
    assert_eq!(but_actions, expected);
}

#[test]
fn an_update_without_reboot_reports_its_actions_instead() {
    use Phase::*;
    let here: fn(&mut UpdateReport) = |_| {};
    let phases = [
        Planned,
        Waiting,
        Cordoned,
        DisablingDevices,
        Draining,
        Drained,
        Staging,
        Committing,
        RunningActions,
        Verifying,
        Uncordoning,
    ];
    let expected = [
        "UpdatePrepared True",
        "UpdateExecuted Unknown",
        "Cordoned True",
        "Drained Unknown",
        "Drained True",
        "AppliedFilesAndOS Unknown",
        "UpdateExecuted True",
        "AppliedFilesAndOS True",
        "UpdatePostActionComplete Unknown",
        "UpdatePostActionComplete True",
        "Resumed True",
        "UpdateComplete True",
        "Uncordoned Unknown",
    ];
    assert_eq!(
        condition_changes(&phases.map(|phase| (phase, here))),
        expected
    );
}

#[test]
fn only_updated_is_true_at_the_end_and_a_rollback_keeps_the_reached_steps() {
    let all = |report: &UpdateReport, settled, before: &[NodeCondition]| {
        let all = conditions(report, settled, Some("JobFailed"), before, NOW);
        let names: Vec<_> = all.iter().map(|it| it.kind.clone()).collect();
        let order: Vec<_> = NodeConditionKind::ALL
            .iter()
            .map(|it| it.as_str())
            .collect();
        assert_eq!(names, order);
        all
    };
    let on = |all: &[NodeCondition]| -> Vec<String> {
        let on = all.iter().filter(|it| it.status == Progress::True);
        on.map(|it| it.kind.clone()).collect()
    };
    let acting = all(&report(Phase::RunningActions, "a", "b"), false, &[]);
    let failed = all(&report(Phase::Failed, "a", "b"), false, &acting);
    assert_eq!(
        on(&failed),
        [
            "UpdatePrepared",
            "UpdateExecuted",
            "AppliedFilesAndOS",
            "NodeDegraded"
        ]
    );
    assert!(failed.iter().all(|it| it.status != Progress::Unknown));
    let done = all(&report(Phase::Idle, "b", "b"), true, &failed);
    assert_eq!(
        on(&done),
        ["Updated", "NodeDegraded"],
        "the latter until it is sure"
    );
}
