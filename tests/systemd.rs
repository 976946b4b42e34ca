//! The adapter to systemd and logind against a fake machine on a socket pair.
#![allow(clippy::disallowed_methods, reason = "tests stand outside the rooms")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod background;
mod jobs;
mod reboots;
mod rpm_ostree;
mod shutdowns;

use machinist_testkit::fake_systemd;

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    time::Duration,
};

use fake_systemd::{FakeSystemd, Job, Reboot, Unit};
use machinist_base::reason::Reason;
use machinist_systemd::{
    ActiveState, BusAddresses, InhibitMode, JobResult, JobVerb, LoadState, RebootFlags,
    RebootProof, SystemState, Systemd, SystemdErrorKind,
};
use machinist_update::service_port::{RebootKind, RebootMethod, Services};
use tokio::time::Instant;

const LIMIT: Duration = Duration::from_secs(60);
const SETTLE: Duration = Duration::from_secs(2);

fn machine() -> (FakeSystemd, Systemd) {
    let machine = FakeSystemd::new();
    machine.set_unit("a.service", Unit::default());
    let systemd = Systemd::new(machine.lines());
    (machine, systemd)
}

#[tokio::test(start_paused = true)]
async fn concurrent_daemon_reloads_share_a_later_one() {
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
    let reloads = machine
        .requests()
        .iter()
        .filter(|it| *it == "Reload")
        .count();
    assert_eq!(
        reloads, 2,
        "one that was under way, one for all who came meanwhile"
    );
}

#[tokio::test(start_paused = true)]
async fn without_dbus_pid_1_is_reached_over_its_private_socket() {
    let (machine, systemd) = machine();
    machine.set_up(false, true);
    machine.script("a.service", Job::ends("dependency"));
    let ended = systemd.run_job(JobVerb::Restart, "a.service", LIMIT).await;
    assert_eq!(ended.unwrap(), JobResult::Dependency);
    let error = systemd.login().inhibitors().await.unwrap_err();
    assert!(matches!(error.trouble(), SystemdErrorKind::NoManager(_)));
}

#[tokio::test(start_paused = true)]
async fn a_missing_systemd_is_a_retryable_error_at_once() {
    let machine = FakeSystemd::new();
    machine.set_up(false, false);
    let systemd = Systemd::new(machine.lines());
    let began = Instant::now();
    let error = systemd.failed_units().await.unwrap_err();
    assert!(began.elapsed() < Duration::from_millis(10));
    assert_eq!(
        (error.reason(), error.is_retryable()),
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
    assert_eq!(active["a.service"], ActiveState::Active);
    assert_eq!(active["x.service"], ActiveState::Inactive);
    machine.set_system_state("degraded");
    assert_eq!(systemd.system_state().await.unwrap(), SystemState::Degraded);
}

#[tokio::test(start_paused = true)]
async fn units_that_users_control_are_not_among_the_failed_units() {
    let (machine, systemd) = machine();
    let failed = Unit {
        active: "failed",
        ..Unit::default()
    };
    for unit in [
        "user@1000.service",
        "session-3.scope",
        "crio-12.scope",
        "a.service",
    ] {
        machine.set_unit(unit, failed.clone());
    }
    assert_eq!(systemd.failed_units().await.unwrap(), ["a.service"]);
}

#[tokio::test(start_paused = true)]
async fn a_boot_does_not_wait_for_jobs_of_units_that_users_control() {
    let (machine, systemd) = machine();
    let state = async || systemd.system_state().await.unwrap();
    machine.set_system_state("starting");
    machine.set_boot_jobs(&[]);
    assert_eq!(state().await, SystemState::Starting);
    machine.set_boot_jobs(&["user@1000.service", "multi-user.target"]);
    assert_eq!(state().await, SystemState::Starting);
    machine.set_boot_jobs(&["user@1000.service", "session-1.scope"]);
    assert_eq!(state().await, SystemState::Running);
    // A finished boot stays finished, also while the administrator's services are started.
    machine.set_boot_jobs(&["user@1000.service", "logrotate.service"]);
    assert_eq!(state().await, SystemState::Running);
    machine.set_unit("emergency.target", Unit::default());
    assert_eq!(state().await, SystemState::Maintenance);
    machine.set_boot_jobs(&["user@1000.service", "shutdown.target"]);
    assert_eq!(state().await, SystemState::Stopping);
    machine.set_system_state("initializing");
    assert_eq!(state().await, SystemState::Initializing);
}

#[tokio::test(start_paused = true)]
async fn the_default_target_is_started_again_only_when_the_boot_leads_to_it() {
    let (machine, systemd) = machine();
    machine.set_unit("default.target", Unit::stopped());
    assert!(!systemd.default_target_again().await.unwrap());
    assert_eq!(machine.requests(), [] as [&str; 0]);
    let queued = Unit {
        job: 5,
        ..Unit::stopped()
    };
    machine.set_unit("default.target", queued);
    assert!(systemd.default_target_again().await.unwrap());
    assert_eq!(machine.requests(), ["StartUnit default.target replace"]);
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
    let received = machine.requests().join("\n");
    assert!(received.contains("inactive-or-failed"), "{received}");
    assert!(
        received.contains("StartTransientUnit label.service fail"),
        "{received}"
    );
    assert!(received.contains("/sbin/restorecon"), "{received}");
    // Otherwise it would wait for a target that emergency mode has stopped.
    assert!(
        received.contains("DefaultDependencies=OwnedVariant(Bool(false))"),
        "{received}"
    );
}

#[tokio::test(start_paused = true)]
async fn clock_synchronisation_is_known_only_through_timedated() {
    let (machine, systemd) = machine();
    let timedate = systemd.timedate();
    for message in [Some(true), Some(false), None] {
        machine.set_ntp(message);
        assert_eq!(timedate.ntp_synchronized().await.unwrap(), message);
    }
}

/// One answer as PID 1 sends it on its own socket, byte by byte: on that connection the sender
/// field has a name that the specification does not allow there.
fn answer_of_pid_1(call: &[u8]) -> Vec<u8> {
    let fixed = [b'l', 2, 1, 1, 16, 0, 0, 0, 9, 0, 0, 0, 55, 0, 0, 0];
    let reply_serial = [5, 1, b'u', 0, call[8], call[9], call[10], call[11]];
    let sender = b"\x07\x01s\0\x18\0\0\0org.freedesktop.systemd1\0\0\0\0\0\0\0\0";
    let signature = [8, 1, b'g', 0, 1, b'v', 0, 0];
    let body = b"\x01s\0\0\x07\0\0\0running\0";
    [&fixed[..], &reply_serial, sender, &signature, body].concat()
}

fn pid_1(mut line: UnixStream) {
    let mut output = Vec::new();
    let mut buffer = [0; 4096];
    while !output.ends_with(b"BEGIN\r\n") {
        let count = line.read(&mut buffer).unwrap();
        output.extend_from_slice(&buffer[..count]);
    }
    assert!(output.starts_with(b"\0AUTH EXTERNAL "));
    line.write_all(b"OK 0123456789abcdef0123456789abcdef\r\n")
        .unwrap();
    for _ in 0..2 {
        let count = line.read(&mut buffer).unwrap();
        line.write_all(&answer_of_pid_1(&buffer[..count])).unwrap();
    }
}

#[tokio::test]
async fn pid_1_may_use_its_bus_name_on_the_private_socket() {
    let (near, far) = UnixStream::pair().unwrap();
    let far = std::thread::spawn(|| pid_1(far));
    let lines = BusAddresses::none().private(move || near.try_clone());
    let systemd = Systemd::new(lines);
    for _ in 0..2 {
        assert_eq!(systemd.system_state().await.unwrap(), SystemState::Running);
    }
    far.join().unwrap();
}
