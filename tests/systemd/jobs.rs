//! Jobs, and the states of units after them.

use super::*;

#[tokio::test(start_paused = true)]
async fn each_systemd_job_result_is_distinguished() {
    let (machine, systemd) = machine();
    for (output, result) in [
        ("done", JobResult::Done),
        ("canceled", JobResult::Canceled),
        ("timeout", JobResult::Timeout),
        ("failed", JobResult::Failed),
        ("dependency", JobResult::Dependency),
        ("skipped", JobResult::Skipped),
    ] {
        machine.script("a.service", Job::ends(output));
        let ended = systemd.run_job(JobVerb::Restart, "a.service", LIMIT).await;
        assert_eq!(ended.unwrap(), result, "{output}");
    }
    let received = machine.requests();
    assert_eq!(received[0], "Subscribe", "nothing is signalled before");
    assert!(
        received[1..]
            .iter()
            .all(|it| it == "RestartUnit a.service replace")
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_that_ends_before_its_request_is_answered_is_not_lost() {
    let (machine, systemd) = machine();
    machine.script("a.service", Job::ends("failed").before_reply());
    let ended = systemd.run_job(JobVerb::Start, "a.service", LIMIT).await;
    assert_eq!(ended.unwrap(), JobResult::Failed);
}

#[tokio::test(start_paused = true)]
async fn removals_of_other_jobs_neither_end_ours_nor_block_the_connection() {
    let (machine, systemd) = machine();
    let slow = Job::ends("failed").taking(Duration::from_secs(5));
    machine.script("a.service", slow);
    let ours = systemd.run_job(JobVerb::Restart, "a.service", LIMIT);
    // More than any queue in between can hold.
    let others = async {
        for _ in 0..300 {
            let other = systemd.run_job(JobVerb::Start, "b.service", LIMIT).await;
            assert_eq!(other.unwrap(), JobResult::Done);
        }
    };
    let (ours, ()) = tokio::join!(ours, others);
    assert_eq!(ours.unwrap(), JobResult::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_systemd_job_that_does_not_end_times_out() {
    let (machine, systemd) = machine();
    machine.script("a.service", Job::done().taking(Duration::from_secs(3600)));
    let began = Instant::now();
    let error = systemd
        .run_job(JobVerb::Start, "a.service", Duration::from_secs(30))
        .await
        .unwrap_err();
    assert_eq!(began.elapsed().as_secs(), 30);
    assert_eq!(error.reason(), Reason::JobTimeout);
    assert_eq!(error.to_string(), "cannot start a.service");
}

#[tokio::test(start_paused = true)]
async fn a_dbus_restart_loses_the_connection_and_not_the_job() {
    let (machine, systemd) = machine();
    for (active, result) in [("active", JobResult::Done), ("failed", JobResult::Failed)] {
        let job = Job::done().taking(Duration::from_secs(1));
        machine.script("a.service", job.becoming(move |unit| unit.active = active));
        let restart = systemd.run_job(JobVerb::Restart, "a.service", LIMIT);
        let bus = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            machine.set_up(false, false);
            machine.hang_up().await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            machine.set_manager_on_bus(false);
            machine.set_up(true, false);
            tokio::time::sleep(Duration::from_secs(1)).await;
            machine.set_manager_on_bus(true);
        };
        let (ended, ()) = tokio::join!(restart, bus);
        assert_eq!(ended.unwrap(), result);
    }
}

#[tokio::test(start_paused = true)]
async fn a_unit_that_dies_soon_after_job_done_is_reported_at_once() {
    let (machine, systemd) = machine();
    let dies = Job::done().and_after(Duration::from_millis(200), |unit| {
        (unit.active, unit.sub, unit.result) = ("failed", "failed", "exit-code");
    });
    machine.script("a.service", dies);
    let ended = systemd.run_job(JobVerb::Restart, "a.service", LIMIT).await;
    assert_eq!(ended.unwrap(), JobResult::Done);
    let since = systemd.unit("a.service").await.unwrap();
    let began = Instant::now();
    let now = systemd
        .observe_stability("a.service", SETTLE, &since)
        .await
        .unwrap();
    assert!(now.has_died_since(&since));
    assert_eq!(now.service.unwrap().result, "exit-code");
    assert!(began.elapsed() < Duration::from_millis(500));
}

#[tokio::test(start_paused = true)]
async fn a_unit_that_stays_up_is_watched_to_the_end() {
    let (machine, systemd) = machine();
    let since = systemd.unit("a.service").await.unwrap();
    let began = Instant::now();
    let watched = systemd.observe_stability("a.service", SETTLE, &since);
    let reloads = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        machine
            .change("a.service", |unit| unit.active = "reloading")
            .await;
        machine.hang_up().await;
        machine
            .change("a.service", |unit| unit.active = "active")
            .await;
    };
    let (now, ()) = tokio::join!(watched, reloads);
    assert!(!now.unwrap().has_died_since(&since));
    assert_eq!(began.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_finished_oneshot_is_healthy() {
    let (machine, systemd) = machine();
    let oneshot = Unit {
        service_type: "oneshot",
        ..Unit::stopped()
    };
    machine.set_unit("once.service", oneshot);
    let ended = systemd.run_job(JobVerb::Start, "once.service", LIMIT).await;
    assert_eq!(ended.unwrap(), JobResult::Done);
    let since = systemd.unit("once.service").await.unwrap();
    let now = systemd
        .observe_stability("once.service", SETTLE, &since)
        .await
        .unwrap();
    assert_eq!(now.active, ActiveState::Inactive);
    assert!(!now.has_died_since(&since));
}

#[tokio::test(start_paused = true)]
async fn a_missing_or_masked_unit_is_a_state_and_a_bad_name_an_error() {
    let (machine, systemd) = machine();
    let masked = Unit {
        load: "masked",
        file_state: "masked",
        ..Unit::stopped()
    };
    machine.set_unit("masked.service", masked);
    let state = systemd.unit("masked.service").await.unwrap();
    assert_eq!(
        (state.load, state.file_state.as_str()),
        (LoadState::Masked, "masked")
    );
    let state = systemd.unit("nowhere.service").await.unwrap();
    assert_eq!(
        (state.load, state.invocation_id),
        (LoadState::NotFound, None)
    );
    let state = systemd.unit("a.service").await.unwrap();
    assert_eq!(state.invocation_id, Some("07".repeat(16)));
    assert_eq!(state.service.unwrap().main_pid, Some(4711));
    assert!(systemd.unit("no unit").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_rejected_systemd_job_reports_the_reason() {
    let (machine, systemd) = machine();
    for (error, code, again) in [
        ("NoSuchUnit", Reason::UnitNotFound, false),
        ("UnitMasked", Reason::UnitMasked, false),
        ("OnlyByDependency", Reason::JobRefused, false),
        ("JobTypeNotApplicable", Reason::JobRefused, false),
        ("TransactionIsDestructive", Reason::RebootPending, true),
    ] {
        machine.refuse("a.service", error);
        let refused = systemd.run_job(JobVerb::Reload, "a.service", LIMIT).await;
        let refused = refused.unwrap_err();
        assert_eq!(
            (refused.reason(), refused.is_retryable()),
            (code, again),
            "{error}"
        );
    }
}
