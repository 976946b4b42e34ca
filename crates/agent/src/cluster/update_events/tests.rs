//! Tests of the events that follow from two reports.

use jiff::Timestamp;

use super::*;
use crate::reported_updates::tests::{history, machine};
use machinist_base::digest::Digest;
use machinist_rootfs::Root;
use machinist_update::journal::UpdateFailure;

fn at(phase: Phase) -> UpdateReport {
    UpdateReport {
        phase,
        ..UpdateReport::default()
    }
}

/// The events of a process that starts and ends with this report.
async fn emitted(root: &Root, report: &UpdateReport) -> Vec<(EventReason, String)> {
    let (to, update) = watch::channel(Arc::new(report.clone()));
    let reported = ReportedUpdates::load(root, report);
    let (events, mut queue) = Events::new();
    // The task ends with its channel.
    drop(to);
    emit_update_events(update, reported, events, CancellationToken::new()).await;
    let mut emitted = Vec::new();
    while let Some(event) = queue.recv().await {
        emitted.push((event.reason, event.note));
    }
    emitted
}

#[tokio::test]
async fn a_rollback_that_ended_before_the_start_is_reported_once() {
    let (_dir, root) = machine();
    assert_eq!(emitted(&root, &history(&["1"])).await, []);
    let report = UpdateReport {
        phase: Phase::Failed,
        ..history(&["2", "1"])
    };
    let note = "rolled back to a: b failed: OSBootFailed".to_owned();
    let event = (EventReason::RolledBack, note);
    assert_eq!(emitted(&root, &report).await, [event]);
    assert_eq!(emitted(&root, &report).await, []);
}

#[tokio::test]
async fn an_update_that_was_verified_before_the_start_is_reported_once() {
    let (_dir, root) = machine();
    assert_eq!(emitted(&root, &history(&[])).await, []);
    let mut report = at(Phase::Idle);
    report.updates = vec![update("1", 0)];
    report.config.current = Some(config("b"));
    let events = emitted(&root, &report).await;
    let events: Vec<_> = events.into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(events, [EventReason::SkipReboot, EventReason::NodeDone]);
    assert_eq!(emitted(&root, &report).await, []);
}

fn reasons(before: &UpdateReport, now: &UpdateReport) -> Vec<EventReason> {
    news(before, now)
        .into_iter()
        .map(|(reason, _)| reason)
        .collect()
}

#[test]
fn only_the_first_report_after_a_reboot_emits_the_rebooted_event() {
    let mut report = at(Phase::Booted);
    report.boot = Some("new".to_owned());
    assert_eq!(returned(&report), None);
    (report.unverified, report.reboot_needed_in) = (true, Some("old".to_owned()));
    assert!(returned(&report).is_some());
    report.boot = Some("old".to_owned());
    assert_eq!(returned(&report), None);
}

#[test]
fn each_update_step_emits_one_event_and_an_unchanged_report_none() {
    let pending = at(Phase::RebootPending);
    assert_eq!(
        reasons(&at(Phase::RunningActions), &pending),
        [EventReason::Reboot]
    );
    assert_eq!(reasons(&pending, &pending), []);
    let refused = UpdateReport {
        failure: Some(UpdateFailure {
            code: Reason::NoSpace,
            message: "no room".to_owned(),
            retryable: false,
            digest: None,
            refusals: Vec::new(),
        }),
        ..at(Phase::Idle)
    };
    let reported_text = reasons(&at(Phase::Planned), &refused);
    assert_eq!(reported_text, [EventReason::FailedToReconcile]);
    assert_eq!(reasons(&refused, &refused), []);
    let mut obstacle = UpdateReport {
        phase: Phase::Failed,
        ..refused
    };
    let failure = obstacle.failure.as_mut().unwrap();
    (failure.code, failure.retryable) = (Reason::ForeignContent, true);
    let reported_text = reasons(&at(Phase::Planned), &obstacle);
    assert_eq!(reported_text, [EventReason::FailedToReconcile]);
    let retry = UpdateReport {
        phase: Phase::Planned,
        ..obstacle.clone()
    };
    assert_eq!(reasons(&retry, &obstacle), []);
}

fn config(name: &str) -> ConfigName {
    ConfigName::new(name, Digest::of(b""))
}

fn update(id: &str, finished: i64) -> UpdateRecord {
    let finished = Timestamp::from_second(finished).unwrap();
    UpdateRecord {
        id: id.to_owned(),
        from: "a".to_owned(),
        to: "b".to_owned(),
        digest: Digest::of(b""),
        started: finished,
        finished,
        outcome: Outcome::Done,
        reason: None,
        phases: Vec::new(),
        blocked_for: 0,
        actions: Vec::new(),
        left_behind: Vec::new(),
        repair: false,
    }
}

#[test]
fn objects_left_behind_are_reported_once() {
    let before = at(Phase::RollingBack);
    let mut now = at(Phase::Failed);
    let mut ended = update("1", 200);
    ended.left_behind = vec!["/home/bob/a: why".to_owned()];
    now.updates = vec![ended];
    let reported = reasons(&before, &now);
    assert!(reported.contains(&EventReason::LeftBehind), "{reported:?}");
    assert!(!reasons(&now, &now).contains(&EventReason::LeftBehind));
}

#[test]
fn config_warnings_emit_one_event_per_new_config() {
    let before = at(Phase::Idle);
    let mut now = at(Phase::Planned);
    now.config.desired = Some(config("c"));
    now.warnings = vec!["a".to_owned(), "b".to_owned()];
    let event = (EventReason::ConfigWarning, "a; b".to_owned());
    assert_eq!(news(&before, &now), [event]);
    assert_eq!(news(&now, &now), []);
    // The plan comes later and can be repeated.
    let mut planned = now.clone();
    planned.phase = Phase::Waiting;
    planned.plan_warnings = vec!["c".to_owned()];
    let event = (EventReason::ConfigWarning, "c".to_owned());
    assert_eq!(news(&now, &planned), [event]);
    assert_eq!(news(&planned, &planned), []);
    // A restart reads the current config again.
    now.config.current = Some(config("c"));
    assert_eq!(news(&before, &now), []);
}

#[test]
fn done_event_names_the_finished_updates_config_by_its_current_name() {
    let mut before = at(Phase::Uncordoning);
    before.cordoned = Some(Timestamp::from_second(100).unwrap());
    before.updates = vec![update("1", 200)];
    let mut now = at(Phase::Idle);
    now.updates = before.updates.clone();
    now.config.current = Some(config("c"));
    let reported_text = news(&before, &now);
    assert_eq!(reported_text, [(EventReason::NodeDone, "on c".to_owned())]);
    // An aborted drain: the last update had ended before this cordon.
    before.cordoned = Some(Timestamp::from_second(300).unwrap());
    assert_eq!(news(&before, &now), []);
    // Without a cordon the record appears together with the end of the update.
    before = at(Phase::Verifying);
    assert!(reasons(&before, &now).contains(&EventReason::NodeDone));
    before.updates = now.updates.clone();
    assert_eq!(news(&before, &now), []);
}
