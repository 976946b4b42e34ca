//! `machinist vendor-check`: its findings in programs that follow the protocol, and in those that
//! do not.

use std::time::Duration;

use machinist_base::{abs_path::AbsPath, shutdown::Tasks};
use machinist_device::vendor_declaration;
use machinist_device_plugins::vendor_api::{
    api::v1::{self as api, from_vendor::Said},
    conformance::{ConformanceCheck, ProgramExit, RuleResult, RuleVerdict, StepTimeouts},
};
use machinist_rootfs::Root;
use machinist_testkit::WAIT_TIMEOUT;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::vendor::examples::example;

const FILE: &str = "\
apiVersion: machinist.dev/v1
kind: DeviceVendor
metadata: {name: acme}
spec: {connects: program, resources: [acme.dev/*], devices: ['/dev/acme*']}
";

/// For programs that break rules: the check waits for all of this.
const SHORT: StepTimeouts = StepTimeouts {
    step: Duration::from_secs(3),
    answer: Duration::from_secs(1),
    heartbeats: Duration::from_secs(4),
};

/// Checks the program that `program` starts on the socket's path.
async fn check<F: Future<Output = ()> + Send + 'static>(
    timeouts: StepTimeouts,
    program: impl FnOnce(String) -> F,
) -> Vec<RuleResult> {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path()).unwrap();
    let tasks = Tasks::new();
    let vendor = vendor_declaration::parse("acme.yaml", FILE).unwrap();
    let path = AbsPath::new("/agent.sock").unwrap();
    let check = ConformanceCheck::listen(&root, path, vendor, &tasks).unwrap();
    let socket = dir.path().join("agent.sock").display().to_string();
    let program = tokio::spawn(program(socket));
    let found = check.run(timeouts).await;
    program.abort();
    tasks.finish(WAIT_TIMEOUT).await.unwrap();
    found
}

fn broken(found: &[RuleResult]) -> Vec<String> {
    let broken = found
        .iter()
        .filter(|one| one.verdict == RuleVerdict::Broken);
    broken
        .map(|one| format!("{}: {}", one.rule, one.seen))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_vendor_passes_every_conformance_rule() {
    let timeouts = StepTimeouts {
        step: WAIT_TIMEOUT,
        answer: WAIT_TIMEOUT,
        ..SHORT
    };
    let found = check(timeouts, example::serve).await;
    assert_eq!(broken(&found), Vec::<String>::new());
    let kept = found
        .iter()
        .filter(|one| one.verdict == RuleVerdict::Kept)
        .count();
    assert_eq!((kept, found.len()), (10, 15), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vendor_program_that_never_connects_is_reported() {
    let found = check(SHORT, |_| std::future::pending()).await;
    assert_eq!(found.len(), 15, "all rules are named, whatever happens");
    let broken = broken(&found);
    assert_eq!(broken.len(), 1, "{broken:?}");
    assert!(broken[0].ends_with("no session within 3 s"), "{broken:?}");
}

fn snapshot(generation: u64, device: &str) -> api::Snapshot {
    api::Snapshot {
        resource: "acme.dev/x".into(),
        generation,
        devices: vec![machinist_testkit::vendor_program::device(device)],
        asks: None,
    }
}

/// Sends Hello and one invalid snapshot, and nothing more.
async fn send_invalid_snapshot(socket: String) {
    send_snapshots(socket, vec![snapshot(1, "sda")]).await;
}

/// Sends Hello and these snapshots, and nothing more; returns when the session ends.
async fn send_snapshots(socket: String, snapshots: Vec<api::Snapshot>) {
    let endpoint = tonic::transport::Endpoint::new(format!("unix:{socket}")).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let (to, messages) = mpsc::channel(8);
    let send = |message| {
        to.send(api::FromVendor {
            said: Some(message),
        })
    };
    let hello = api::Hello {
        api_versions: vec!["v1".into()],
        vendor: "acme".into(),
        instance: "one".into(),
        resources: vec!["acme.dev/x".into()],
    };
    send(Said::Hello(hello)).await.unwrap();
    for snapshot in snapshots {
        send(Said::Snapshot(snapshot)).await.unwrap();
    }
    let mut client = api::vendor_client::VendorClient::new(channel);
    let mut from = client
        .session(ReceiverStream::new(messages))
        .await
        .unwrap()
        .into_inner();
    while from.message().await.is_ok_and(|message| message.is_some()) {}
    drop(to);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_violated_rule_is_reported_with_the_observation() {
    let broken = broken(&check(SHORT, send_invalid_snapshot).await);
    let expected = [
        "/dev/sda is not among the nodes that vendor acme may hand out",
        "it sends a message within three heartbeats",
        "it answers Quiesce: no answer in time",
        "it answers Resume: no answer in time",
        "it reconnects when the session ends: not within 3 s",
    ];
    assert_eq!(broken.len(), expected.len(), "{broken:#?}");
    for (found, expected) in broken.iter().zip(expected) {
        assert!(found.contains(expected), "{found}: {expected}");
    }
}

#[test]
fn an_exited_vendor_program_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("acme.yaml");
    std::fs::write(&file, FILE).unwrap();
    let command = std::process::Command::new(env!("CARGO_BIN_EXE_machinist"))
        .args(["vendor-check", "--file"])
        .arg(&file)
        .args(["--", "sh", "-c", "exit 7"])
        .output()
        .unwrap();
    assert_eq!(command.status.code(), Some(1));
    let report = String::from_utf8(command.stdout).unwrap();
    assert!(
        report.contains("the program exited: exit status: 7"),
        "{report}"
    );
    assert!(!report.contains("no session within"), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemonising_vendor_program_is_checked_over_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path()).unwrap();
    let tasks = Tasks::new();
    let vendor = vendor_declaration::parse("acme.yaml", FILE).unwrap();
    let path = AbsPath::new("/agent.sock").unwrap();
    let check = ConformanceCheck::listen(&root, path, vendor, &tasks).unwrap();
    let well = Some(ProgramExit {
        how: "exit status: 0".to_owned(),
        well: true,
    });
    let (_tell, ended) = tokio::sync::watch::channel(well);
    let socket = dir.path().join("agent.sock").display().to_string();
    // Later than the last message of a program that has ended can arrive.
    let program = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        loop {
            send_snapshots(socket.clone(), vec![snapshot(1, "acme0")]).await;
        }
    });
    let patience = StepTimeouts {
        step: WAIT_TIMEOUT,
        answer: Duration::from_secs(1),
        heartbeats: Duration::from_secs(1),
    };
    let found = check.of_program(ended).run(patience).await;
    program.abort();
    tasks.finish(WAIT_TIMEOUT).await.unwrap();
    for kept in &found[..3] {
        assert_eq!(kept.verdict, RuleVerdict::Kept, "{kept:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_after_the_first_snapshot_are_checked_too() {
    let rule = "a later snapshot replaces the previous one, and generations never decrease";
    let check = |generations: &[u64]| {
        let healthy = |generation: &u64| snapshot(*generation, "acme0");
        let said = generations.iter().map(healthy).collect();
        check(SHORT, |socket| send_snapshots(socket, said))
    };
    // Most of a check is waiting, so they run at the same time.
    let (older, newer, single) = tokio::join!(check(&[7, 3]), check(&[7, 8]), check(&[7]));
    for (found, expected) in [
        (older, RuleVerdict::Broken),
        (newer, RuleVerdict::Kept),
        (single, RuleVerdict::Skipped),
    ] {
        let one = found.iter().find(|one| one.rule == rule).unwrap();
        assert_eq!(one.verdict, expected, "{one:?}");
        if expected == RuleVerdict::Broken {
            let why = "generation 3 is older than 7";
            assert!(one.seen.contains(why), "{one:?}");
        }
    }
}

#[test]
fn a_rejected_vendor_file_is_reported_and_no_program_is_started() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("acme.yaml");
    std::fs::write(&file, FILE.replace("program", "telepathy")).unwrap();
    let command = std::process::Command::new(env!("CARGO_BIN_EXE_machinist"))
        .args(["vendor-check", "--file"])
        .arg(&file)
        .args(["--", "touch"])
        .arg(dir.path().join("started"))
        .output()
        .unwrap();
    assert_eq!(command.status.code(), Some(1));
    let report = String::from_utf8(command.stderr).unwrap();
    assert!(report.contains("acme.yaml:4:18"), "{report}");
    assert!(report.contains("program, plugin"), "{report}");
    assert!(!dir.path().join("started").exists());
}
