//! The memory that one vendor can make the agent use. Each test measures a process of its own, since
//! other tests of this program run at the same time.

use std::{future::Future, process::Command};

use machinist_device_plugins::vendor_api::api::v1::{self as api, from_vendor::Said};
use tonic::Code;

use super::path_policy::{is_unaffected, with_a_neighbour};
use machinist_testkit::vendor_program::{device, node};

/// Set in the process that measures itself.
const CHILD: &str = "MACHINIST_TEST_VENDOR_MEMORY";

/// Runs `measured` in a process of its own: this test program with only the test `name`.
fn run_in_own_process(name: &str, measured: impl Future<Output = ()>) {
    if std::env::var_os(CHILD).is_some() {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        return runtime.block_on(measured);
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args([&format!("vendor::memory::{name}"), "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let output =
        [child.stdout, child.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    eprintln!("{}{}", output[0], output[1]);
    assert!(child.status.success(), "{}", child.status);
    assert!(
        output[0].contains("1 passed"),
        "the test {name} was not found"
    );
}

#[test]
fn a_message_flood_ends_the_session_without_using_memory() {
    run_in_own_process(
        "a_message_flood_ends_the_session_without_using_memory",
        flood_with_messages(),
    );
}

async fn flood_with_messages() {
    let (machine, agent, good) = with_a_neighbour().await;
    let before = resident();
    for _ in 0..3 {
        let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
        // As large as the agent reads, and never accepted: the id is invalid.
        let reason = "x".repeat(500);
        let wrong = api::Device {
            reason,
            ..api::Device::default()
        };
        for generation in 1..20 {
            program
                .send_message(Said::Snapshot(api::Snapshot {
                    resource: "acme.dev/x".into(),
                    generation,
                    devices: vec![wrong.clone(); 1000],
                    asks: None,
                }))
                .await;
        }
        // Small ones are quick on any machine: more than are read ahead.
        for number in 0..2000 {
            program
                .send_message(Said::Heartbeat(api::Heartbeat { number }))
                .await;
        }
        let last = program.wait_for_end().await;
        // The connection may be reset before the program has read the status.
        match last.code() {
            Code::Unknown | Code::Unavailable => {}
            code => {
                assert_eq!(code, Code::ResourceExhausted);
                assert_eq!(last.message(), "more than 20 messages in a second");
            }
        }
    }
    let grown = resident().saturating_sub(before);
    // Of 60 messages with 30 MiB only a few are in transit, most of them in the program.
    eprintln!("resident memory after the floods: +{grown} KiB, the program's own included");
    assert!(grown < 32 * 1024, "+{grown} KiB");
    is_unaffected(&machine, &agent, good).await;
    agent.stop().await;
}

#[test]
fn the_maximum_vendor_snapshot_uses_a_few_mebibytes() {
    run_in_own_process(
        "the_maximum_vendor_snapshot_uses_a_few_mebibytes",
        offer_the_maximum(),
    );
}

async fn offer_the_maximum() {
    let (machine, agent, mut good) = with_a_neighbour().await;
    machine.vendor("large", "  limits: {devices: 2000}\n");
    let (mut program, _) = machine
        .hello("large", "one", &["acme.dev/x"])
        .await
        .unwrap();
    let long = |number: usize| {
        let mut device = device(&format!("{number:0>40}"));
        // A device that is not advertised need not exist.
        device.health = api::Health::Unhealthy.into();
        device.recipe = Some(node(&format!("/dev/acme{number:0>40}")));
        device
    };
    let before = resident();
    program
        .offer("acme.dev/x", 1, (0..2000).map(long).collect())
        .await
        .unwrap();
    agent
        .until("all are listed", |status| {
            status.devices.iter().any(|one| one.devices.len() == 2000)
        })
        .await;
    let grown = resident().saturating_sub(before);
    eprintln!(
        "2000 devices of one vendor: +{grown} KiB, including the lists for kubelet and status, and the program's own memory"
    );
    assert!(grown < 16 * 1024, "+{grown} KiB");
    good.offer("acme.dev/good", 2, vec![device("acme0")])
        .await
        .unwrap();
    agent.stop().await;
}

/// Resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.unwrap().parse().unwrap()
}
