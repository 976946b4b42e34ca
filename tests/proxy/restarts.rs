//! Restarts of agent, kubelet and plugin, and their effects on each other.

use std::{os::unix::net::UnixListener, path::PathBuf, time::Duration};

use super::{
    GPU,
    harness::{Agent, Stage, has, until},
    plugin::{Does, Plugin, Style},
};
use machinist_testkit::fake_kubelet::FakeKubelet;

const WATCHED: &str = "acme.dev/watched";
const POLLED: &str = "acme.dev/polled";

/// One plugin of each style.
async fn both(stage: &Stage) -> (Plugin, Plugin) {
    let directory = stage.directory("acme");
    let watching = Some(Style::Watches);
    let polling = Some(Style::Polls);
    (
        Plugin::start(&directory, WATCHED, "w.sock", &["w"], watching).await,
        Plugin::start(&directory, POLLED, "p.sock", &["p"], polling).await,
    )
}

/// A plugin whose registration is on disk, and the file.
async fn kept(stage: &Stage) -> (Agent, Plugin, PathBuf) {
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let plugin = Plugin::start(&directory, GPU, "a.sock", &["a"], None).await;
    let list = directory.with_extension("json");
    until("its list", || list.exists()).await;
    (agent, plugin, list)
}

async fn listed(kubelet: &FakeKubelet) {
    kubelet
        .until("both listed", |books| {
            has(books, WATCHED, &["w=Healthy"]) && has(books, POLLED, &["p=Healthy"])
        })
        .await;
}

/// Asserts that every list since the kubelet's start has devices, all of them healthy.
fn never_lost(kubelet: &FakeKubelet) {
    for (name, known) in kubelet.books() {
        for list in &known.lists {
            assert!(!list.is_empty(), "{name}: {:?}", known.lists);
            let well = list.iter().all(|one| one.ends_with("=Healthy"));
            assert!(well, "{name}: {:?}", known.lists);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_agent_restart_watching_plugins_register_again() {
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let mut agent = stage.ready().await;
    let (watching, polling) = both(&stage).await;
    listed(&kubelet).await;
    for round in 2..=4 {
        agent.stop().await;
        agent = stage.ready().await;
        polling
            .until("listed again", |seen| seen.listed == round)
            .await;
        watching
            .until("registered again", |seen| seen.registered == round)
            .await;
        listed(&kubelet).await;
        never_lost(&kubelet);
    }
    let seen = polling.seen();
    assert_eq!((seen.vanished, seen.registered), (0, 1));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_socket_recreated_while_being_dialled_is_kept() {
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let plugin = Plugin::start(&directory, GPU, "a.sock", &["a"], None).await;
    kubelet
        .until("listed", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    agent.stop().await;
    plugin.script(|script| script.asked_options = Does::Hangs);
    let agent = stage.ready().await;
    // A plugin that restarts its server: it ends during the call, and has not registered yet.
    plugin.until("asked", |seen| seen.asked == 2).await;
    std::fs::remove_file(directory.join("a.sock")).unwrap();
    let _anew = UnixListener::bind(directory.join("a.sock")).unwrap();
    drop(plugin);
    let known = directory.with_extension("json");
    until("given up", || {
        !std::fs::read_to_string(&known).unwrap().contains("a.sock")
    })
    .await;
    assert!(directory.join("a.sock").exists());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_boot_all_plugins_register_again() {
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let (watching, polling) = both(&stage).await;
    listed(&kubelet).await;
    agent.stop().await;
    // After a boot the agent knows only the files on disk, so it treats these sockets as leftovers.
    stage.machine.boot("boot-2");
    let agent = stage.ready().await;
    for plugin in [&watching, &polling] {
        plugin.until("again", |seen| seen.registered == 2).await;
    }
    assert_eq!(polling.seen().vanished, 1);
    listed(&kubelet).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_lost_during_an_agent_restart_is_unhealthy_after_its_grace() {
    let stage = Stage::new("  grace: 1s\n");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let plugin = Plugin::start(&stage.directory("acme"), GPU, "a.sock", &["a"], None).await;
    kubelet
        .until("listed", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    agent.stop().await;
    drop(plugin);
    let agent = stage.ready().await;
    let books = kubelet
        .until("gone", |books| has(books, GPU, &["a=Unhealthy"]))
        .await;
    assert_eq!(books[GPU].lists[0], ["a=Healthy"], "as it was, at first");
    assert!(agent.reason(GPU, "a").unwrap().starts_with("plugin gone"));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_restart_is_invisible_to_the_plugin() {
    let stage = Stage::new("");
    let mut kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let (watching, polling) = both(&stage).await;
    for _ in 0..3 {
        listed(&kubelet).await;
        drop(kubelet);
        kubelet = FakeKubelet::start(stage.machine.root()).await;
    }
    listed(&kubelet).await;
    for plugin in [&watching, &polling] {
        let seen = plugin.seen();
        assert_eq!((seen.registered, seen.listed, seen.vanished), (1, 1, 0));
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_restart_within_its_grace_is_invisible_to_the_kubelet() {
    let stage = Stage::new("  grace: 5s\n");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    for round in 0..20 {
        // Some keep their socket's name, others choose a new one each time.
        let endpoint = format!("{}.sock", round % 2 * round);
        let plugin = Plugin::start(&directory, GPU, &endpoint, &["a"], None).await;
        kubelet
            .until("listed", |books| has(books, GPU, &["a=Healthy"]))
            .await;
        plugin.until("asked", |seen| seen.listed == 1).await;
        drop(plugin);
    }
    let books = kubelet.books();
    assert_eq!(books[GPU].lists, [["a=Healthy"]]);
    assert_eq!(books[GPU].registrations, 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_plugin_is_unhealthy_with_a_reason_until_it_returns() {
    let stage = Stage::new("  grace: 1s\n");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let plugin = Plugin::start(&directory, GPU, "a.sock", &["a"], None).await;
    kubelet
        .until("listed", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    drop(plugin);
    let left = std::time::Instant::now();
    kubelet
        .until("gone", |books| has(books, GPU, &["a=Unhealthy"]))
        .await;
    assert!(
        left.elapsed() >= Duration::from_millis(900),
        "{:?}",
        left.elapsed()
    );
    assert!(agent.reason(GPU, "a").unwrap().starts_with("plugin gone"));
    let _plugin = Plugin::start(&directory, GPU, "a.sock", &["a"], None).await;
    let books = kubelet
        .until("back", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    assert_eq!(books[GPU].lists.len(), 3);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reregistered_plugin_without_a_list_is_unhealthy_after_its_grace() {
    let stage = Stage::new("  grace: 1s\n");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let plugin = Plugin::start(&directory, GPU, "a.sock", &["a"], None).await;
    kubelet
        .until("listed", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    plugin.script(|script| script.lists_nothing = true);
    plugin.register().await;
    kubelet
        .until("not vouched for", |books| has(books, GPU, &["a=Unhealthy"]))
        .await;
    plugin.script(|script| script.lists_nothing = false);
    plugin.register().await;
    kubelet
        .until("well again", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vendor_file_removed_while_the_agent_is_down_leaves_nothing_behind() {
    let stage = Stage::new("");
    let (agent, _plugin, list) = kept(&stage).await;
    let directory = stage.directory("acme");
    agent.stop().await;
    stage.declare(&[]);
    let agent = stage.agent();
    until("nothing left", || {
        !list.exists() && !directory.join("kubelet.sock").exists()
    })
    .await;
    assert!(directory.exists(), "a pod may have it mounted");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_vendor_file_leaves_nothing_despite_another_invalid_file() {
    let stage = Stage::new("");
    let (agent, _plugin, list) = kept(&stage).await;
    let directory = stage.directory("acme");
    // The vendors of a broken file are unknown, so directories of unknown vendors must stay.
    let other = directory.with_file_name("other.json");
    std::fs::write(&other, "{}").unwrap();
    stage.declare_with_broken_file(&[]);
    until("nothing left", || {
        !list.exists() && !directory.join("kubelet.sock").exists()
    })
    .await;
    assert!(directory.exists() && directory.join("a.sock").exists());
    assert!(other.exists());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vendor_file_with_fewer_resources_withdraws_the_others() {
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let _gpu = Plugin::start(&directory, GPU, "a.sock", &["a"], None).await;
    let _nic = Plugin::start(&directory, "acme.dev/nic", "b.sock", &["b"], None).await;
    kubelet
        .until("both", |books| {
            has(books, GPU, &["a=Healthy"]) && has(books, "acme.dev/nic", &["b=Healthy"])
        })
        .await;
    stage.declare(&[("acme", "  limits: {resources: 1}\n")]);
    kubelet
        .until("one", |books| {
            let nic = books.get("acme.dev/nic");
            has(books, GPU, &["a=Healthy"]) && nic.is_none_or(|one| !one.streaming)
        })
        .await;
    agent.stop().await;
}
