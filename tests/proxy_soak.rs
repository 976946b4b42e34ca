//! Plugins that restart repeatedly, and plugins that send as much as they can: the agent's
//! resources are counted.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the outside world that makes files and devices"
)]

#[path = "proxy/harness.rs"]
mod harness;
#[path = "proxy/plugin.rs"]
mod plugin;

use machinist_testkit::fake_kubelet;

use fake_kubelet::FakeKubelet;
use harness::{Stage, has, until};
use machinist_device_plugins::kubelet::api::v1beta1 as api;
use plugin::{Plugin, device};

const GPU: &str = "acme.dev/gpu";
const RESTARTS: usize = 300;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Resident, in KiB.
fn memory() -> usize {
    of_process("self", "VmRSS:")
}

/// A line of a process's status, in KiB.
fn of_process(process: &str, wanted: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(wanted)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The same devices each time: the fake kubelet keeps every list that it gets.
async fn once(stage: &Stage, kubelet: &FakeKubelet, ids: &[&str], round: usize) {
    let endpoint = format!("{}.sock", round % 7);
    let plugin = Plugin::start(&stage.directory("acme"), GPU, &endpoint, ids, None).await;
    plugin.until("asked", |seen| seen.listed == 1).await;
    kubelet
        .until("listed", |books| {
            books
                .get(GPU)
                .is_some_and(|one| one.list().len() == ids.len())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_plugin_restarts_leak_nothing() {
    let _alone = crate::ALONE.lock().await;
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let ids: Vec<_> = (0..500).map(|n| format!("d{n:050}")).collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    for round in 0..20 {
        once(&stage, &kubelet, &ids, round).await;
    }
    let before = (descriptors(), memory());
    for round in 0..RESTARTS {
        once(&stage, &kubelet, &ids, round).await;
    }
    until("descriptors are closed", || descriptors() <= before.0 + 4).await;
    let after = memory();
    println!(
        "{RESTARTS} restarts: {} KiB before, {after} after",
        before.1
    );
    assert!(
        after <= before.1 + 8 * 1024,
        "{} KiB, then {after}",
        before.1
    );
    assert_eq!(kubelet.sockets().len(), 1);
    assert_eq!(kubelet.books()[GPU].registrations, 1);
    agent.stop().await;
}

/// Messages of 5 MiB, at the highest possible rate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_large_lists_uses_bounded_memory() {
    let _alone = crate::ALONE.lock().await;
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let plugin = Plugin::start(&stage.directory("acme"), GPU, "a.sock", &["a"], None).await;
    kubelet
        .until("listed", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    let large: Vec<_> = (0..50_000)
        .map(|n| device(&format!("{n:0100}"), true))
        .collect();
    let before = memory();
    for _ in 0..40 {
        plugin.list(large.clone());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    plugin.list(vec![device("last", true)]);
    kubelet
        .until("the last one", |books| has(books, GPU, &["last=Healthy"]))
        .await;
    let after = memory();
    println!("a flood of large lists: {before} KiB before, {after} after");
    // The plugin and the test keep such lists, too; a queue of them would be 200 MiB and more.
    assert!(after <= before + 120 * 1024, "{before} KiB, then {after}");
    agent.stop().await;
}

/// The environment variable with the root of a child; it is unset in the parent.
const ROOT: &str = "MACHINIST_TEST_PROXY_ROOT";

/// An agent in a process of its own, so that its memory can be measured separately.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_an_agent_in_a_child_process() {
    let Some(root) = std::env::var_os(ROOT) else {
        return;
    };
    let vendors = harness::vendors(&[("acme", "")]);
    let vendors = tokio::sync::watch::Sender::new(std::sync::Arc::new(vendors));
    let _agent = harness::agent(std::path::Path::new(&root), vendors.subscribe());
    // Until the parent ends it.
    std::future::pending::<()>().await;
}

/// Lists of many MiB are slow in a program that is not optimized.
async fn within_a_minute(is: impl Fn() -> bool) {
    let began = tokio::time::Instant::now();
    while !is() {
        assert!(began.elapsed() < std::time::Duration::from_secs(60));
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn fifty_thousand_devices() -> Vec<api::Device> {
    let names = (0..50_000).map(|n| format!("{n:0100}"));
    names.map(|name| device(&name, true)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_vendor_list_uses_less_than_8_mib() {
    let _alone = crate::ALONE.lock().await;
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "proxy_soak::runs_an_agent_in_a_child_process",
            "--exact",
            "--nocapture",
        ])
        .env(ROOT, stage.machine.root())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let (process, _child) = (child.id().to_string(), Child(child));
    stage.until_open("acme").await;
    let names: Vec<_> = (0..8).map(|n| format!("acme.dev/r{n}")).collect();
    let mut plugins = Vec::new();
    for name in &names {
        let socket = format!("{}.sock", plugins.len());
        let directory = stage.directory("acme");
        plugins.push(Plugin::start(&directory, name, &socket, &["a"], None).await);
        kubelet
            .until("listed", |books| has(books, name, &["a=Healthy"]))
            .await;
    }
    let before = of_process(&process, "VmRSS:");
    // The peak is counted from here.
    std::fs::write(format!("/proc/{process}/clear_refs"), "5").unwrap();
    // Two bytes each, which would be eighty once they are decoded.
    for plugin in &plugins {
        plugin.list(vec![api::Device::default(); 500_000]);
    }
    // A vendor may have a thousand devices altogether, so each resource lists them in turn.
    for (plugin, name) in plugins.iter().zip(&names) {
        plugin.list(fifty_thousand_devices());
        within_a_minute(|| kubelet.books()[name].list().len() > 900).await;
        plugin.list(vec![device("last", true)]);
        within_a_minute(|| has(&kubelet.books(), name, &["last=Healthy"])).await;
    }
    // And all at once.
    for plugin in &plugins {
        plugin.list(fifty_thousand_devices());
    }
    within_a_minute(|| {
        names
            .iter()
            .any(|name| kubelet.books()[name].list().len() > 900)
    })
    .await;
    for plugin in &plugins {
        plugin.list(vec![device("last", true)]);
    }
    for name in &names {
        within_a_minute(|| has(&kubelet.books(), name, &["last=Healthy"])).await;
    }
    let peak = of_process(&process, "VmHWM:");
    println!("eight lists of 5 MiB and of 500,000 devices: {before} KiB before, {peak} at most");
    assert!(peak <= before + 8 * 1024, "{before} KiB, then {peak}");
}
