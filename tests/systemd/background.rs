//! Programs of the host in the background, such as the download of an image.

use super::*;
use machinist_update::os::{BackgroundError, HostCommand as _, OutputFiles};

const FILES: OutputFiles<'_> = OutputFiles {
    output: "/run/machinist/output",
    errors: "/run/machinist/errors",
};

#[tokio::test(start_paused = true)]
async fn a_program_in_the_background_has_a_low_share_and_files_of_its_own() {
    let (machine, systemd) = machine();
    let run = systemd.run_in_background("/usr/bin/ostree", &["pull"], LIMIT, FILES);
    run.await.unwrap();
    let received = machine.requests();
    for property in [
        "CPUWeight=OwnedVariant(U64(20))",
        "IOWeight=OwnedVariant(U64(20))",
        "IPAccounting=OwnedVariant(Bool(true))",
        "PrivateTmp=OwnedVariant(Bool(true))",
    ] {
        let is_set = received.iter().any(|request| request == property);
        assert!(is_set, "{property}: {received:#?}");
    }
    let received = received.join("\n");
    for part in [
        "StartTransientUnit machinist-os.service",
        FILES.output,
        FILES.errors,
    ] {
        assert!(received.contains(part), "{part}: {received}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_in_the_background_is_stopped_after_its_limit() {
    let (machine, systemd) = machine();
    let endless = Job::done().taking(10 * LIMIT);
    // The first job stops a program that an earlier process has left.
    for job in [Job::done(), endless] {
        machine.script("machinist-os.service", job);
    }
    let run = systemd.run_in_background("/usr/bin/ostree", &["pull"], LIMIT, FILES);
    let ended = run.await;
    assert!(matches!(ended, Err(BackgroundError::TimedOut)), "{ended:?}");
    let received = machine.requests();
    let last = received.last().map(String::as_str);
    assert_eq!(last, Some("StopUnit machinist-os.service replace"));
    machine.refuse("machinist-os.service", "NoSuchUnit");
    systemd.stop_background().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_program_in_the_background_that_fails_is_no_timeout() {
    let (machine, systemd) = machine();
    for job in [Job::done(), Job::ends("failed")] {
        machine.script("machinist-os.service", job);
    }
    let run = systemd.run_in_background("/bin/sh", &["-c", "exit 1"], LIMIT, FILES);
    let Err(BackgroundError::Failed(error)) = run.await else {
        panic!("a failed program did not fail");
    };
    let error = error.to_string();
    assert!(
        error.contains("journalctl -u machinist-os.service"),
        "{error}"
    );
}
