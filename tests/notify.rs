//! machinist's messages to the service manager, received on a real `NOTIFY_SOCKET`.
//!
//! The socket comes through the environment, which a running test cannot change, so this test
//! starts itself again in an environment of its own.
#![expect(
    clippy::disallowed_methods,
    reason = "tests run the program and fail by panicking"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{os::unix::net::UnixDatagram, process::Command, time::Duration};

use machinist_systemd::Notifier;

const CHILD: &str = "MACHINIST_TEST_SPEAKS";

fn speak() {
    let notifier = Notifier::from_env();
    notifier.status("planning\nREADY=1");
    notifier.status("planning\nREADY=1");
    notifier.status("idle");
    notifier.ready();
    notifier.watchdog();
    notifier.extend_timeout(Duration::from_secs(2));
    notifier.stopping();
    assert_eq!(notifier.watchdog_interval(), Some(Duration::from_secs(60)));
}

#[test]
fn sd_notify_sends_each_state_once_and_only_changed_status() {
    if std::env::var_os(CHILD).is_some() {
        return speak();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let ears = UnixDatagram::bind(&path).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args([
            "notify::sd_notify_sends_each_state_once_and_only_changed_status",
            "--exact",
        ])
        .env(CHILD, "1")
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "120000000")
        .env_remove("WATCHDOG_PID")
        .status();
    assert!(status.unwrap().success());
    ears.set_nonblocking(true).unwrap();
    let mut received = Vec::new();
    let mut buffer = [0; 256];
    while let Ok(count) = ears.recv(&mut buffer) {
        received.push(String::from_utf8(buffer[..count].to_vec()).unwrap());
    }
    let expected = [
        "STATUS=planning READY=1\n",
        "STATUS=idle\n",
        "READY=1\n",
        "WATCHDOG=1\n",
        "EXTEND_TIMEOUT_USEC=2000000\n",
        "STOPPING=1\n",
    ];
    assert_eq!(received, expected);
}

#[test]
fn without_a_notify_socket_nothing_is_sent() {
    if std::env::var_os(CHILD).is_some() || std::env::var_os("NOTIFY_SOCKET").is_some() {
        return;
    }
    let notifier = Notifier::from_env();
    notifier.ready();
    notifier.status("idle");
    assert_eq!(notifier.watchdog_interval(), None);
}
