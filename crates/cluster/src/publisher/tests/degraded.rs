//! Tests of when a failure is published, and for how long.

use super::*;

/// Waiting for a disruption budget is not a failure, however long it takes; an alert is raised from
/// the journal.
#[test]
fn a_budget_blocking_for_an_hour_is_reported_but_not_degraded() {
    let start = Instant::now();
    let mut damper = DegradedDebounce::default();
    let mut waits = report(Phase::Draining, "old", "new");
    waits.cordoned = Some(NOW);
    waits.blockers = vec![blocker()];
    for minute in 0..=60 {
        let at = start + Duration::from_secs(60 * minute);
        let shown = damper.record_state(degraded_input(&waits), at);
        let notice = desired_node_status(&waits, &open(), shown, ALL).unwrap();
        assert_eq!(value(&notice, keys::protocol::STATE).unwrap(), "Working");
        let blocked = value(&notice, keys::annotation::BLOCKED_BY).unwrap();
        assert!(blocked.starts_with("shop/web-0"), "{blocked}");
    }
    waits.blockers.clear();
    let notice = desired_node_status(&waits, &open(), None, ALL).unwrap();
    assert_eq!(value(&notice, keys::annotation::BLOCKED_BY), None);
}

fn failed(phase: Phase, code: Reason, desired: &str) -> UpdateReport {
    UpdateReport {
        failure: failure(code, true),
        ..report(phase, "a", desired)
    }
}

/// The publications over time: takes reports with the second of each, returns changes of state and
/// reason.
fn written(
    reported: impl IntoIterator<Item = (u64, UpdateReport)>,
) -> Vec<(u64, NodeUpdateState, String)> {
    let start = Instant::now();
    let mut damper = DegradedDebounce::default();
    let mut all: Vec<(u64, NodeUpdateState, String)> = Vec::new();
    for (second, report) in reported {
        let shown =
            damper.record_state(degraded_input(&report), start + Duration::from_secs(second));
        let notice = desired_node_status(&report, &open(), shown, ALL).unwrap();
        let state = state(&report, shown).unwrap();
        let reason = value(&notice, keys::protocol::REASON).unwrap();
        let is_fault = matches!(
            state,
            NodeUpdateState::Degraded | NodeUpdateState::Unreconcilable
        );
        assert!(!is_fault || !reason.is_empty(), "{second}: {report:#?}");
        if all
            .last()
            .is_none_or(|(_, known, why)| (known, why) != (&state, &reason))
        {
            all.push((second, state, reason));
        }
    }
    all
}

fn states(all: &[(u64, NodeUpdateState, String)]) -> Vec<(u64, NodeUpdateState)> {
    all.iter()
        .map(|(second, state, _)| (*second, *state))
        .collect()
}

#[test]
fn a_failure_is_shown_at_once_and_stays_through_retries_of_the_same_config() {
    // Every attempt fails with another message, with ten seconds without a failure in between.
    let reported = (0..600).map(|second| match second % 20 {
        0..10 => {
            let mut failed = failed(Phase::Failed, Reason::JobFailed, "b");
            failed.failure.as_mut().unwrap().message = format!("attempt {}", second / 20);
            (second, failed)
        }
        _ => (second, report(Phase::Planned, "a", "b")),
    });
    let all = written(reported);
    assert_eq!(all[0].1, NodeUpdateState::Degraded);
    assert!(
        all.iter().all(|it| it.1 == NodeUpdateState::Degraded),
        "{all:?}"
    );
    // At most one write per minute.
    assert!(
        all.len() > 1 && all.windows(2).all(|it| it[1].0 - it[0].0 >= 60),
        "{all:?}"
    );
}

#[test]
fn another_config_clears_a_failure_at_once() {
    let all = written([
        (0, failed(Phase::Failed, Reason::JobFailed, "b")),
        (5, report(Phase::Planned, "a", "c")),
        (6, report(Phase::Idle, "c", "c")),
    ]);
    use NodeUpdateState::{Degraded, Done, Working};
    assert_eq!(states(&all), [(0, Degraded), (5, Working), (6, Done)]);
    assert_eq!(all[1].2, "", "the message refers to the previous config");
    // A config that could not be read is withdrawn; the previous one is on the disk all the time.
    let mut unread = report(Phase::Idle, "a", "a");
    unread.refused = refused(Reason::FieldUnknown);
    let all = written([(0, unread), (1, report(Phase::Idle, "a", "a"))]);
    assert_eq!(
        states(&all),
        [(0, NodeUpdateState::Unreconcilable), (1, Done)]
    );
}

#[test]
fn a_flapping_failure_changes_the_state_at_most_once_each_way() {
    for code in [Reason::JobFailed, Reason::ApiServerUnreachable] {
        let comes_and_goes = (0..600).map(|second| match second / 10 % 2 {
            0 => (second, failed(Phase::Idle, code, "a")),
            _ => (second, report(Phase::Idle, "a", "a")),
        });
        let after = (600..700).map(|second| (second, report(Phase::Idle, "a", "a")));
        let all = states(&written(comes_and_goes.chain(after)));
        match is_transient(code) {
            false => assert_eq!(
                all,
                [(0, NodeUpdateState::Degraded), (620, NodeUpdateState::Done)]
            ),
            // The failure never lasts long enough.
            true => assert!(
                all.iter().all(|it| it.1 != NodeUpdateState::Degraded),
                "{all:?}"
            ),
        }
    }
}

#[test]
fn a_transient_failure_becomes_degraded_only_after_five_minutes() {
    let reported =
        (0..400).map(|second| (second, failed(Phase::Failed, Reason::ImageUnreachable, "b")));
    let all = states(&written(reported));
    assert_eq!(
        all,
        [
            (0, NodeUpdateState::Working),
            (300, NodeUpdateState::Degraded)
        ]
    );
}

/// No input changes meanwhile: neither the report nor the gates.
#[tokio::test(start_paused = true)]
async fn degraded_is_set_and_cleared_by_time_alone() {
    let failing = UpdateReport {
        failure: failure(Reason::ImageUnreachable, true),
        ..report(Phase::Failed, "a", "b")
    };
    let (update, reports) = watch::channel(Arc::new(failing));
    let mut status = Status::starting("/".to_owned(), Mode::Cluster, NOW);
    status.gates = open();
    let (_statuses, reported) = watch::channel(Arc::new(status));
    let (notice, mut statuses) = watch::channel(None);
    let (progress, progressed) = watch::channel(None);
    let to = Publishers { notice, progress };
    let stop = CancellationToken::new();
    let clock = Clock::from_fn(|| NOW);
    let duties = watch::channel(ALL).1;
    let images = watch::channel(None).1;
    let publishing = publish(reports, reported, duties, images, to, clock, stop.clone());
    tokio::spawn(publishing);
    let begun = Instant::now();
    let is = |wanted: &'static str| {
        move |notice: &Option<DesiredNodeStatus>| {
            let notice = notice.as_ref();
            let state = notice.and_then(|it| it.annotations[keys::protocol::STATE].as_deref());
            state == Some(wanted)
        }
    };
    statuses.wait_for(is("Working")).await.unwrap();
    statuses.wait_for(is("Degraded")).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 300);
    update.send_replace(Arc::new(report(Phase::Idle, "b", "b")));
    statuses.wait_for(is("Done")).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 330);
    let progress = progressed.borrow().clone().unwrap();
    let degraded = NodeConditionKind::NodeDegraded.as_str();
    let degraded = progress.conditions.iter().find(|it| it.kind == degraded);
    assert_eq!(degraded.unwrap().status, Progress::False);
    stop.cancel();
}

/// The journal keeps the failure until the next update starts to change the machine.
#[test]
fn a_new_config_clears_the_previous_failure_from_its_first_phase() {
    let mut bad = failed(Phase::Idle, Reason::NoProviderForOSImage, "bad");
    if let Some(failure) = &mut bad.failure {
        (failure.retryable, failure.digest) = (false, Some(config("bad").digest));
    }
    let left = bad.failure.clone();
    let next = |phase| {
        let failure = left.clone();
        let report = report(phase, "a", "good");
        UpdateReport { failure, ..report }
    };
    let reported = [
        (0, bad),
        (1, next(Phase::Idle)),
        (2, next(Phase::Planned)),
        (3, next(Phase::Draining)),
        (4, next(Phase::Staging)),
        (5, report(Phase::Committing, "a", "good")),
        (6, report(Phase::Idle, "good", "good")),
    ];
    let seen = reported.map(|(second, report)| {
        let report = without_old_failure(Arc::new(report));
        (second, UpdateReport::clone(&report))
    });
    assert_eq!(
        states(&written(seen)),
        [
            (0, NodeUpdateState::Unreconcilable),
            (1, NodeUpdateState::Working),
            (6, NodeUpdateState::Done)
        ]
    );
}

#[test]
fn a_failed_rollback_stays_degraded_whatever_config_is_desired() {
    let mut stuck = failed(Phase::Idle, Reason::RollbackFailed, "good");
    if let Some(failure) = &mut stuck.failure {
        failure.digest = Some(config("bad").digest);
    }
    let shown = without_old_failure(Arc::new(stuck.clone()));
    assert_eq!(shown.failure, stuck.failure);
}
