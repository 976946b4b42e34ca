//! The adapter to systemd and logind against a pretend machine on a socket pair.
#![allow(clippy::disallowed_methods, reason = "tests stand outside the rooms")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "support/pretend_systemd.rs"]
mod pretend_systemd;

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    time::Duration,
};

use machinist::{
    reason::Reason,
    systemd::{
        Active, InhibitMode, JobResult, Lines, Load, Method, RebootFlags, Receipt, SystemState,
        Systemd, Trouble, Verb,
    },
    update::ports::{RebootMethod, Services},
};
use pretend_systemd::{Job, PretendSystemd, Reboot, Unit};
use tokio::time::Instant;

const LIMIT: Duration = Duration::from_secs(60);
const SETTLE: Duration = Duration::from_secs(2);

fn machine() -> (PretendSystemd, Systemd) {
    let machine = PretendSystemd::new();
    machine.set_unit("a.service", Unit::default());
    let systemd = Systemd::new(machine.lines());
    (machine, systemd)
}

#[tokio::test(start_paused = true)]
async fn each_way_a_job_can_end_is_told_apart() {
    let (machine, systemd) = machine();
    for (said, result) in [
        ("done", JobResult::Done),
        ("canceled", JobResult::Canceled),
        ("timeout", JobResult::Timeout),
        ("failed", JobResult::Failed),
        ("dependency", JobResult::Dependency),
        ("skipped", JobResult::Skipped),
    ] {
        machine.script("a.service", Job::ends(said));
        let ended = systemd.run_job(Verb::Restart, "a.service", LIMIT).await;
        assert_eq!(ended.unwrap(), result, "{said}");
    }
    let heard = machine.heard();
    assert_eq!(heard[0], "Subscribe", "nothing is signalled before");
    assert!(
        heard[1..]
            .iter()
            .all(|it| it == "RestartUnit a.service replace")
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_that_ends_before_its_request_is_answered_is_not_lost() {
    let (machine, systemd) = machine();
    machine.script("a.service", Job::ends("failed").before_reply());
    let ended = systemd.run_job(Verb::Start, "a.service", LIMIT).await;
    assert_eq!(ended.unwrap(), JobResult::Failed);
}

#[tokio::test(start_paused = true)]
async fn ends_of_other_jobs_neither_end_ours_nor_block_the_line() {
    let (machine, systemd) = machine();
    let slow = Job::ends("failed").taking(Duration::from_secs(5));
    machine.script("a.service", slow);
    let ours = systemd.run_job(Verb::Restart, "a.service", LIMIT);
    // More than any queue between us holds.
    let others = async {
        for _ in 0..300 {
            let other = systemd.run_job(Verb::Start, "b.service", LIMIT).await;
            assert_eq!(other.unwrap(), JobResult::Done);
        }
    };
    let (ours, ()) = tokio::join!(ours, others);
    assert_eq!(ours.unwrap(), JobResult::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_does_not_end_is_left_after_our_own_limit() {
    let (machine, systemd) = machine();
    machine.script("a.service", Job::done().taking(Duration::from_secs(3600)));
    let began = Instant::now();
    let error = systemd
        .run_job(Verb::Start, "a.service", Duration::from_secs(30))
        .await
        .unwrap_err();
    assert_eq!(began.elapsed().as_secs(), 30);
    assert_eq!(error.reason(), Reason::JobTimeout);
    assert_eq!(error.to_string(), "cannot start a.service");
}

#[tokio::test(start_paused = true)]
async fn restarting_the_bus_loses_the_connection_and_not_the_job() {
    let (machine, systemd) = machine();
    for (active, result) in [("active", JobResult::Done), ("failed", JobResult::Failed)] {
        let job = Job::done().taking(Duration::from_secs(1));
        machine.script("a.service", job.becoming(move |unit| unit.active = active));
        let restart = systemd.run_job(Verb::Restart, "a.service", LIMIT);
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
async fn a_unit_that_dies_soon_after_done_is_found_out_at_once() {
    let (machine, systemd) = machine();
    let dies = Job::done().and_after(Duration::from_millis(200), |unit| {
        (unit.active, unit.sub, unit.result) = ("failed", "failed", "exit-code");
    });
    machine.script("a.service", dies);
    let ended = systemd.run_job(Verb::Restart, "a.service", LIMIT).await;
    assert_eq!(ended.unwrap(), JobResult::Done);
    let since = systemd.unit("a.service").await.unwrap();
    let began = Instant::now();
    let now = systemd.settle("a.service", SETTLE, &since).await.unwrap();
    assert!(now.has_died_since(&since));
    assert_eq!(now.service.unwrap().result, "exit-code");
    assert!(began.elapsed() < Duration::from_millis(500));
}

#[tokio::test(start_paused = true)]
async fn a_unit_that_stays_up_is_watched_to_the_end() {
    let (machine, systemd) = machine();
    let since = systemd.unit("a.service").await.unwrap();
    let began = Instant::now();
    let watched = systemd.settle("a.service", SETTLE, &since);
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
async fn a_oneshot_that_has_done_its_work_is_fine() {
    let (machine, systemd) = machine();
    let oneshot = Unit {
        service_type: "oneshot",
        ..Unit::stopped()
    };
    machine.set_unit("once.service", oneshot);
    let ended = systemd.run_job(Verb::Start, "once.service", LIMIT).await;
    assert_eq!(ended.unwrap(), JobResult::Done);
    let since = systemd.unit("once.service").await.unwrap();
    let now = systemd
        .settle("once.service", SETTLE, &since)
        .await
        .unwrap();
    assert_eq!(now.active, Active::Inactive);
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
        (Load::Masked, "masked")
    );
    let state = systemd.unit("nowhere.service").await.unwrap();
    assert_eq!((state.load, state.invocation_id), (Load::NotFound, None));
    let state = systemd.unit("a.service").await.unwrap();
    assert_eq!(state.invocation_id, Some("07".repeat(16)));
    assert_eq!(state.service.unwrap().main_pid, Some(4711));
    assert!(systemd.unit("no unit").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_refused_says_why() {
    let (machine, systemd) = machine();
    for (error, code, again) in [
        ("NoSuchUnit", Reason::UnitNotFound, false),
        ("UnitMasked", Reason::UnitMasked, false),
        ("OnlyByDependency", Reason::JobRefused, false),
        ("JobTypeNotApplicable", Reason::JobRefused, false),
        ("TransactionIsDestructive", Reason::RebootPending, true),
    ] {
        machine.refuse("a.service", error);
        let refused = systemd.run_job(Verb::Reload, "a.service", LIMIT).await;
        let refused = refused.unwrap_err();
        assert_eq!(
            (refused.reason(), refused.again()),
            (code, again),
            "{error}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn reloads_asked_for_at_the_same_time_share_one_that_began_later() {
    let (machine, systemd) = machine();
    machine.set_reload_takes(Duration::from_secs(100));
    let reload = || systemd.daemon_reload();
    let later = async {
        tokio::time::sleep(Duration::from_secs(50)).await;
        tokio::join!(reload(), reload(), reload())
    };
    let (first, (second, third, fourth)) = tokio::join!(reload(), later);
    for done in [first, second, third, fourth] {
        done.unwrap();
    }
    let reloads = machine.heard().iter().filter(|it| *it == "Reload").count();
    assert_eq!(
        reloads, 2,
        "one that was under way, one for all who came meanwhile"
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_bus_pid_1_is_reached_over_its_own_socket() {
    let (machine, systemd) = machine();
    machine.set_up(false, true);
    machine.script("a.service", Job::ends("dependency"));
    let ended = systemd.run_job(Verb::Restart, "a.service", LIMIT).await;
    assert_eq!(ended.unwrap(), JobResult::Dependency);
    let error = systemd.login().inhibitors().await.unwrap_err();
    assert!(matches!(error.trouble(), Trouble::NoManager(_)));
}

#[tokio::test(start_paused = true)]
async fn nobody_there_is_known_at_once_and_may_be_asked_again() {
    let machine = PretendSystemd::new();
    machine.set_up(false, false);
    let systemd = Systemd::new(machine.lines());
    let began = Instant::now();
    let error = systemd.failed_units().await.unwrap_err();
    assert!(began.elapsed() < Duration::from_millis(10));
    assert_eq!(
        (error.reason(), error.again()),
        (Reason::ManagerUnreachable, true)
    );
    machine.set_up(true, false);
    assert!(systemd.failed_units().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn states_of_units_and_of_the_system_are_listed() {
    let (machine, systemd) = machine();
    let failed = Unit {
        active: "failed",
        ..Unit::default()
    };
    machine.set_unit("z.service", failed.clone());
    machine.set_unit("b.service", failed);
    assert_eq!(
        systemd.failed_units().await.unwrap(),
        ["b.service", "z.service"]
    );
    assert_eq!(systemd.list_units().await.unwrap().len(), 3);
    let active = systemd
        .active_units(&["a.service", "x.service"])
        .await
        .unwrap();
    assert_eq!(active["a.service"], Active::Active);
    assert_eq!(active["x.service"], Active::Inactive);
    machine.set_system_state("degraded");
    assert_eq!(systemd.system_state().await.unwrap(), SystemState::Degraded);
}

#[tokio::test(start_paused = true)]
async fn the_default_target_is_started_again_only_when_the_boot_goes_there() {
    let (machine, systemd) = machine();
    machine.set_unit("default.target", Unit::stopped());
    assert!(!systemd.default_target_again().await.unwrap());
    assert_eq!(machine.heard(), [] as [&str; 0]);
    let queued = Unit {
        job: 5,
        ..Unit::stopped()
    };
    machine.set_unit("default.target", queued);
    assert!(systemd.default_target_again().await.unwrap());
    assert_eq!(machine.heard(), ["StartUnit default.target replace"]);
}

#[tokio::test(start_paused = true)]
async fn a_transient_unit_leaves_no_failed_unit_behind() {
    let (machine, systemd) = machine();
    machine.script("label.service", Job::ends("failed"));
    let argv = ["/sbin/restorecon", "-R", "/etc"];
    let ended = systemd
        .run_transient("label.service", &argv, "Label", LIMIT)
        .await;
    assert_eq!(ended.unwrap(), JobResult::Failed);
    let heard = machine.heard().join("\n");
    assert!(heard.contains("inactive-or-failed"), "{heard}");
    assert!(
        heard.contains("StartTransientUnit label.service fail"),
        "{heard}"
    );
    assert!(heard.contains("/sbin/restorecon"), "{heard}");
    // Else it would wait for a target that emergency mode has stopped.
    assert!(
        heard.contains("DefaultDependencies=OwnedVariant(Bool(false))"),
        "{heard}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_reboot_is_accepted_when_logind_announces_it() {
    for script in [Reboot::Announced, Reboot::ReplyLost, Reboot::BusRestarts] {
        let (machine, systemd) = machine();
        machine.on_reboot(script);
        let receipt = systemd
            .reboot_by(Method::Logind, RebootFlags::NONE, LIMIT)
            .await;
        assert_eq!(receipt.unwrap(), Receipt::Accepted, "{script:?}");
        assert_eq!(machine.heard(), ["RebootWithFlags 0"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_logind_without_flags_is_asked_the_old_way() {
    let (machine, systemd) = machine();
    machine.without_reboot_flags();
    let receipt = systemd
        .login()
        .reboot_with_receipt(RebootFlags::KEXEC, LIMIT)
        .await;
    assert_eq!(receipt.unwrap(), Receipt::Accepted);
    assert_eq!(machine.heard(), ["Reboot false"]);
}

#[tokio::test(start_paused = true)]
async fn a_reboot_that_does_not_come_about_says_so() {
    const IN_PROGRESS: &str = "org.freedesktop.login1.OperationInProgress";
    const DENIED: &str = "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired";
    let cases = [
        (Reboot::Silent, Err(Reason::RebootDidNotHappen)),
        (Reboot::Cancelled, Err(Reason::RebootCancelled)),
        (Reboot::Refused(IN_PROGRESS, ""), Ok(Receipt::InProgress)),
        (Reboot::Refused(DENIED, ""), Err(Reason::PermissionMissing)),
    ];
    for (script, outcome) in cases {
        let (machine, systemd) = machine();
        machine.on_reboot(script);
        let began = Instant::now();
        let receipt = systemd
            .login()
            .reboot_with_receipt(RebootFlags::NONE, LIMIT)
            .await;
        assert_eq!(
            receipt.map_err(|error| error.reason()),
            outcome,
            "{script:?}"
        );
        let waited = if script == Reboot::Silent { 60 } else { 0 };
        assert_eq!(began.elapsed().as_secs(), waited, "{script:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_lock_of_somebody_else_stops_every_way_and_is_named() {
    let (machine, systemd) = machine();
    machine.add_inhibitor("sleep", "player", "music", "block");
    machine.add_inhibitor("shutdown", "kubelet", "pods end", "delay");
    machine.add_inhibitor("shutdown", "machinist", "writing", "block");
    machine.add_inhibitor("shutdown:sleep", "backup", "tape is running", "block");
    for method in Method::ALL {
        let refused = systemd.reboot_by(method, RebootFlags::NONE, LIMIT).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.reason(), Reason::RebootInhibited);
        let trouble = refused.trouble().to_string();
        assert_eq!(trouble, "held off by backup (tape is running)");
    }
    assert_eq!(machine.heard(), [] as [&str; 0], "nothing was asked for");
}

#[tokio::test(start_paused = true)]
async fn the_other_ways_prove_that_the_machine_goes_down() {
    let (machine, systemd) = machine();
    let reboot = Systemd::reboot_by;
    let silent = reboot(&systemd, Method::TransientUnit, RebootFlags::NONE, LIMIT).await;
    assert_eq!(silent.unwrap_err().reason(), Reason::RebootDidNotHappen);
    machine.set_unit(
        "reboot.target",
        Unit {
            job: 9,
            ..Unit::stopped()
        },
    );
    for (method, asked) in [
        (
            Method::TransientUnit,
            "StartTransientUnit machinist-reboot.service fail",
        ),
        (
            Method::RebootTarget,
            "StartUnit reboot.target replace-irreversibly",
        ),
    ] {
        let receipt = reboot(&systemd, method, RebootFlags::NONE, LIMIT).await;
        assert_eq!(receipt.unwrap(), Receipt::Accepted);
        assert!(machine.heard().iter().any(|it| it == asked), "{asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_accepted_reboot_that_does_not_come_is_noticed_when_it_is_called_off_and_when_its_time_is_over()
 {
    // Said by a signal; said while the connection was down; never said.
    for case in ["signal", "connection", "time"] {
        let (machine, systemd) = machine();
        Services::reboot(&systemd, RebootMethod::Logind, "because")
            .await
            .unwrap();
        let over = systemd.reboot_over(LIMIT);
        let happens = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            match case {
                "signal" => machine.announce(false).await,
                "connection" => {
                    machine.call_off_in_silence();
                    machine.hang_up().await;
                }
                _ => {}
            }
        };
        let began = Instant::now();
        let (error, ()) = tokio::join!(over, happens);
        let (reason, seconds) = match case {
            "time" => (Reason::RebootDidNotHappen, 65..=66),
            _ => (Reason::RebootCancelled, 2..=4),
        };
        assert_eq!(error.reason, reason, "{case}");
        let took = began.elapsed().as_secs();
        assert!(seconds.contains(&took), "{case}: {took} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_held_until_it_is_dropped() {
    let (machine, systemd) = machine();
    let login = systemd.login();
    let lock = login
        .inhibit("shutdown", "applying", InhibitMode::Delay)
        .await
        .unwrap();
    assert_eq!(machine.locks_held(), 1);
    drop(lock);
    assert_eq!(machine.locks_held(), 0);
    let listed = login.inhibitors().await.unwrap();
    assert_eq!(
        (listed[0].who.as_str(), listed[0].mode.as_str()),
        ("machinist", "delay")
    );
    assert_eq!(login.inhibit_delay_max().await.unwrap().as_secs(), 5);
    login.set_wall_message("new config").await.unwrap();
    assert_eq!(machine.heard()[1], "SetWallMessage \"new config\" true");
}

#[tokio::test(start_paused = true)]
async fn a_reboot_that_nobody_here_asked_for_is_heard() {
    let (machine, systemd) = machine();
    let login = systemd.login();
    let mut signals = login.prepare_for_shutdown().await.unwrap();
    assert!(!login.preparing_for_shutdown().await.unwrap());
    machine.announce(true).await;
    assert_eq!(signals.next().await, Some(true));
    assert!(login.preparing_for_shutdown().await.unwrap());
    machine.announce(false).await;
    assert_eq!(signals.next().await, Some(false));
    machine.hang_up().await;
    assert_eq!(signals.next().await, None, "listen anew");
}

#[tokio::test(start_paused = true)]
async fn the_clock_is_unknown_where_no_service_tells() {
    let (machine, systemd) = machine();
    let timedate = systemd.timedate();
    for told in [Some(true), Some(false), None] {
        machine.set_ntp(told);
        assert_eq!(timedate.ntp_synchronized().await.unwrap(), told);
    }
}

/// One answer as PID 1 gives it on its own socket, byte by byte: on that line the sender field holds
/// a name that the specification does not allow there.
fn answer_of_pid_1(call: &[u8]) -> Vec<u8> {
    let fixed = [b'l', 2, 1, 1, 16, 0, 0, 0, 9, 0, 0, 0, 55, 0, 0, 0];
    let reply_serial = [5, 1, b'u', 0, call[8], call[9], call[10], call[11]];
    let sender = b"\x07\x01s\0\x18\0\0\0org.freedesktop.systemd1\0\0\0\0\0\0\0\0";
    let signature = [8, 1, b'g', 0, 1, b'v', 0, 0];
    let body = b"\x01s\0\0\x07\0\0\0running\0";
    [&fixed[..], &reply_serial, sender, &signature, body].concat()
}

fn pid_1(mut line: UnixStream) {
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    while !said.ends_with(b"BEGIN\r\n") {
        let count = line.read(&mut buffer).unwrap();
        said.extend_from_slice(&buffer[..count]);
    }
    assert!(said.starts_with(b"\0AUTH EXTERNAL "));
    line.write_all(b"OK 0123456789abcdef0123456789abcdef\r\n")
        .unwrap();
    for _ in 0..2 {
        let count = line.read(&mut buffer).unwrap();
        line.write_all(&answer_of_pid_1(&buffer[..count])).unwrap();
    }
}

#[tokio::test]
async fn pid_1_may_call_itself_by_name_on_its_own_socket() {
    let (near, far) = UnixStream::pair().unwrap();
    let far = std::thread::spawn(|| pid_1(far));
    let lines = Lines::none().private(move || near.try_clone());
    let systemd = Systemd::new(lines);
    for _ in 0..2 {
        assert_eq!(systemd.system_state().await.unwrap(), SystemState::Running);
    }
    far.join().unwrap();
}
