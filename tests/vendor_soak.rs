//! A vendor's program that restarts repeatedly, in a process of its own: the agent's resources are
//! counted before and after.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::expect_used,
    dead_code,
    reason = "a test may panic, and plays the outside world that makes files and devices"
)]

use device_host::{Agent, Machine};
use machinist_testkit::{device_host, vendor_program};
use vendor_program::{device, lists, vendor_is, wait};

/// A thousand take some minutes.
fn rounds() -> usize {
    let given = std::env::var("MACHINIST_SOAK_ROUNDS").ok();
    given.map_or(40, |given| given.parse().unwrap())
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn sockets() -> usize {
    std::fs::read_to_string("/proc/self/net/unix")
        .unwrap()
        .lines()
        .filter(|line| line.contains("agent.sock"))
        .count()
}

/// Resident, in KiB.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// One run of the program: every second time it is the same instance, and every third time it ends
/// early.
async fn once(machine: &Machine, agent: &Agent, round: usize) {
    let instance = format!("instance-{}", round / 2);
    let (mut program, welcome) = loop {
        match machine.hello("acme", &instance, &["acme.dev/x"]).await {
            Ok(begun) => break begun,
            // The previous session has ended, and the agent is about to notice that.
            Err(status) => assert_eq!(status.code(), tonic::Code::AlreadyExists, "{status}"),
        }
    };
    if !round.is_multiple_of(3) {
        let next = welcome.kept.first().map_or(1, |kept| kept.generation + 1);
        let devices = vec![device("acme0")];
        program.offer("acme.dev/x", next, devices).await.unwrap();
        lists(agent, &["x/acme0=Healthy"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vendor_restarts_leak_nothing() {
    let _alone = crate::ALONE.lock().await;
    let machine = Machine::new();
    machine.plug("acme0");
    machine.vendor("acme", "");
    let agent = machine.agent();
    for round in 0..8 {
        once(&machine, &agent, round).await;
    }
    let gone = || vendor_is(&agent, "acme", |one| one.instance.is_none());
    gone().await;
    let before = (descriptors(), sockets(), agent.tasks(), memory());
    let rounds = rounds();
    for round in 0..rounds {
        once(&machine, &agent, 100 + round).await;
    }
    gone().await;
    wait("descriptors are closed", || descriptors() <= before.0 + 4).await;
    wait("tasks end", || agent.tasks() <= before.2 + 2).await;
    wait("sockets are closed", || sockets() <= before.1 + 2).await;
    let after = memory();
    println!(
        "{rounds} restarts: {} KiB before, {after} after; {} descriptors, {} tasks",
        before.3, before.0, before.2
    );
    assert!(
        after <= before.3 + 8 * 1024,
        "{} KiB, then {after}",
        before.3
    );
    agent.stop().await;
}
