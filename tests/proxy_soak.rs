//! A plugin that restarts without end, in a process of its own: what the agent holds is counted before and
//! after.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the outside world that makes files and devices"
)]

#[path = "support/kubelet_double.rs"]
mod kubelet_double;
#[path = "support/machine.rs"]
mod machine;
#[path = "proxy/plugin.rs"]
mod plugin;
#[path = "proxy/stage.rs"]
mod stage;

use kubelet_double::KubeletDouble;
use machinist::kubelet::api::v1beta1 as api;
use plugin::{Plugin, device};
use stage::{Stage, has, until};

const GPU: &str = "acme.dev/gpu";
const RESTARTS: usize = 300;
/// What a process holds can be counted for one test at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Resident, in KiB.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The same devices each time: the kubelet's double keeps every list that it gets.
async fn once(stage: &Stage, kubelet: &KubeletDouble, ids: &[&str], round: usize) {
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
async fn hundreds_of_restarts_of_a_plugin_leave_nothing_behind() {
    let _alone = ALONE.lock().await;
    let stage = Stage::new("");
    let kubelet = KubeletDouble::start(stage.machine.root()).await;
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

/// Messages of 5 MiB, as fast as they are taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_large_lists_takes_no_more_memory_than_a_few_of_them() {
    let _alone = ALONE.lock().await;
    let stage = Stage::new("");
    let kubelet = KubeletDouble::start(stage.machine.root()).await;
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
    // The plugin and the test hold such lists, too; a queue of them would be 200 MiB and more.
    assert!(after <= before + 120 * 1024, "{before} KiB, then {after}");
    agent.stop().await;
}
