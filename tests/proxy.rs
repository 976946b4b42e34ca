//! Unmodified device plugins that use the agent in place of the kubelet, over a root in a temporary
//! directory.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the outside world that makes files and devices"
)]

mod allocations;
mod harness;
mod plugin;
mod refusals;
mod restarts;
mod rollout;

use machinist_testkit::fake_kubelet;

use std::time::Duration;

use fake_kubelet::FakeKubelet;
use harness::{Stage, has};
use machinist_device_plugins::kubelet::api::v1beta1 as api;
use plugin::{Does, Plugin, device};

const GPU: &str = "acme.dev/gpu";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugins_devices_reach_the_kubelet_under_their_own_ids() {
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let (directory, ids) = (stage.directory("acme"), ["u-1::0", "u-2"]);
    let plugin = Plugin::start(&directory, GPU, "a.sock", &ids, None).await;
    kubelet
        .until("listed", |books| {
            has(books, GPU, &["u-1::0=Healthy", "u-2=Healthy"])
        })
        .await;
    plugin.list(vec![device("u-1::0", false), device("u-3", true)]);
    kubelet
        .until("changed", |books| {
            has(books, GPU, &["u-1::0=Unhealthy", "u-3=Healthy"])
        })
        .await;
    assert_eq!(
        agent.reason(GPU, "u-1::0").unwrap(),
        "its plugin reports \"Unhealthy\""
    );
    let seen = plugin.seen();
    assert_eq!((seen.registered, seen.listed), (1, 1));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_vendor_has_its_own_directory_and_is_isolated_from_others() {
    let stage = Stage::new("");
    stage.declare(&[("acme", "  grace: 1s\n"), ("other", "")]);
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    stage.until_open("other").await;
    let one = Plugin::start(&stage.directory("acme"), GPU, "x.sock", &["a"], None).await;
    let nic = "other.dev/nic";
    let two = Plugin::start(&stage.directory("other"), nic, "x.sock", &["b"], None).await;
    two.script(|script| {
        script.allocate = Does::Answers(harness::answer("/dev/other0", "/opt/other"))
    });
    kubelet
        .until("both", |books| {
            has(books, GPU, &["a=Healthy"]) && has(books, nic, &["b=Healthy"])
        })
        .await;
    drop(one);
    let books = kubelet
        .until("gone", |books| has(books, GPU, &["a=Unhealthy"]))
        .await;
    assert_eq!(books[nic].lists, [["b=Healthy"]]);
    kubelet.allocate(nic, &["b"]).await.unwrap();
    // The agent task that removed the plugin also serves the new one, so the effects of the removal
    // on others are complete.
    let _one = Plugin::start(&stage.directory("acme"), GPU, "x.sock", &["a"], None).await;
    let books = kubelet
        .until("back", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    assert_eq!(books[nic].lists, [["b=Healthy"]]);
    kubelet.allocate(nic, &["b"]).await.unwrap();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_above_the_message_limit_is_truncated_and_the_stream_kept() {
    let stage = Stage::new("  limits: {devices: 2000}\n");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let plugin = Plugin::start(&stage.directory("acme"), GPU, "a.sock", &["a"], None).await;
    kubelet
        .until("listed", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    let many = (0..50_000).map(|n| device(&format!("{n:0100}"), true));
    let many: Vec<_> = many.collect();
    let size: usize = many.iter().map(|one| one.id.len() + 9).sum();
    assert!(size > 4 * 1024 * 1024, "{size}");
    plugin.list(many);
    kubelet
        .until("cut", |books| books[GPU].list().len() == 2000)
        .await;
    let left_out = format!("48000 devices of {GPU} are beyond spec.limits.devices (2000)");
    let problems = agent.problems();
    assert!(
        matches!(problems.as_slice(), [one] if one.starts_with(&left_out)),
        "{problems:?}"
    );
    plugin.list(vec![device("b", true)]);
    let books = kubelet
        .until("small again", |books| has(books, GPU, &["b=Healthy"]))
        .await;
    assert_eq!(books[GPU].registrations, 1);
    assert!(agent.problems().is_empty());
    drop(plugin);
    let away = format!("the plugin of {GPU} ended: ");
    harness::until(
        "the plugin to be reported as disconnected",
        || matches!(agent.problems().as_slice(), [one] if one.starts_with(&away)),
    )
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_device_lists_is_coalesced_to_the_latest() {
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let plugin = Plugin::start(&stage.directory("acme"), GPU, "a.sock", &["a"], None).await;
    kubelet
        .until("listed", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    let began = std::time::Instant::now();
    for round in 0..5000 {
        plugin.list(vec![
            device("a", true),
            device(&format!("n{}", round % 2), true),
        ]);
        tokio::task::yield_now().await;
    }
    plugin.list(vec![device("a", true), device("last", true)]);
    let books = kubelet
        .until("the last one", |books| {
            has(books, GPU, &["a=Healthy", "last=Healthy"])
        })
        .await;
    let most = 3 + began.elapsed().as_millis() / 50;
    assert!(
        books[GPU].lists.len() as u128 <= most,
        "{}",
        books[GPU].lists.len()
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_vendor_loses_its_resources_and_a_changed_one_continues() {
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let plugin = Plugin::start(&stage.directory("acme"), GPU, "a.sock", &["a"], None).await;
    kubelet
        .until("listed", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    stage.declare(&[("acme", "  grace: 7s\n")]);
    let seen = plugin.until("listed again", |seen| seen.listed == 2).await;
    assert_eq!(seen.registered, 1);
    let nic = "acme.dev/nic";
    let _nic = Plugin::start(&stage.directory("acme"), nic, "n.sock", &["n"], None).await;
    kubelet
        .until("two", |books| has(books, nic, &["n=Healthy"]))
        .await;
    stage.only("acme", GPU);
    kubelet
        .until("one resource less", |books| !books[nic].streaming)
        .await;
    plugin
        .until("listed once more", |seen| seen.listed == 3)
        .await;
    assert!(has(&kubelet.books(), GPU, &["a=Healthy"]));
    stage.declare(&[]);
    let books = kubelet
        .until("withdrawn", |books| !books[GPU].streaming)
        .await;
    assert_eq!(books[GPU].lists, [vec!["a=Healthy".to_owned()], vec![]]);
    let socket = stage.directory("acme").join("kubelet.sock");
    harness::until("closed", || !socket.exists()).await;
    assert!(stage.directory("acme").is_dir());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_registration_socket_is_recreated() {
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let plugin = Plugin::start(&directory, GPU, "a.sock", &["a"], None).await;
    kubelet
        .until("listed", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    std::fs::remove_file(directory.join("kubelet.sock")).unwrap();
    stage.until_open("acme").await;
    assert_eq!(plugin.seen().listed, 1, "streams do not end with it");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_agent_does_not_take_over_vendor_directories() {
    let stage = Stage::new("");
    let first = stage.ready().await;
    let directory = stage.directory("acme");
    let plugin = Plugin::start(&directory, GPU, "a.sock", &["a"], None).await;
    let second = stage.agent();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let seen = plugin.seen();
    assert_eq!((seen.registered, seen.listed), (1, 1));
    assert!(directory.join("a.sock").exists());
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_declared_resource_is_owned_by_its_file_until_that_is_removed() {
    let stage = Stage::new("");
    stage.machine.plug("acme0");
    stage.machine.declare("gpu.yaml", GPU, "/dev/acme0", 1);
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    kubelet
        .until("the file's", |books| has(books, GPU, &["acme0=Healthy"]))
        .await;
    let plugin = Plugin::start(&stage.directory("acme"), GPU, "a.sock", &["a"], None).await;
    plugin
        .until("the list to be read", |seen| seen.listed == 1)
        .await;
    kubelet.allocate(GPU, &["acme0"]).await.unwrap();
    assert!(plugin.seen().allocated.is_empty());
    let file = stage.machine.path("etc/machinist/devices.d/gpu.yaml");
    std::fs::remove_file(file).unwrap();
    kubelet
        .until("the plugin's", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    agent.stop().await;
}

#[test]
fn documented_vendor_file_and_paths_work() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/vendors/plugins.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut blocks = page.split("```yaml\n").skip(1);
    let file = blocks.next().unwrap().split("```").next().unwrap();
    let vendor = machinist_device::vendor_declaration::parse("acme.yaml", file).unwrap();
    let directory = format!(
        "path: {}/{}",
        machinist_device_plugins::plugin_proxy::VENDOR_DIRS_ROOT,
        vendor.name
    );
    let mount = blocks.next().unwrap();
    assert!(mount.contains(&directory), "{directory}");
    let usual = format!(
        "mountPath: {}",
        machinist_device_plugins::kubelet::DEVICE_PLUGIN_DIR
    );
    assert!(mount.contains(&usual), "{usual}");
}
