//! The device service and kubelets that refuse, restart, or end during a call.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the outside world that makes files and devices"
)]

use machinist_testkit as support;

use std::time::{Duration, Instant};

use machinist_device_plugins::kubelet::api::v1beta1 as api;
use support::{
    device_host::Machine,
    fake_kubelet::{FakeKubelet, Knobs, ResourceAccounts},
};

const TTY: &str = "acme.dev/tty";

fn with(devices: &[&str]) -> Machine {
    let machine = Machine::new();
    for name in devices {
        machine.plug(name);
    }
    machine.declare("tty.yaml", TTY, "/dev/tty?", 1);
    machine
}

fn healthy(books: &ResourceAccounts) -> usize {
    let list = books.get(TTY).map_or(&[][..], |known| known.list());
    list.iter().filter(|one| one.ends_with("=Healthy")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permanent_registration_refusal_is_reported_and_retried_with_backoff() {
    let machine = with(&["ttyA"]);
    let refuse = Knobs {
        refuse: usize::MAX,
        ..Knobs::default()
    };
    let kubelet = FakeKubelet::start_with(machine.root(), refuse).await;
    let agent = machine.agent();
    let refused = |status: &machinist_device::status::DevicesStatus| {
        let reason = status.devices.first().and_then(|one| one.reason.as_deref());
        reason.is_some_and(|why| why.contains("rejected by the test"))
    };
    let status = agent.until("the kubelet's own words", refused).await;
    assert!(!status.devices[0].registered);
    let (asked, since) = (kubelet.asked(), Instant::now());
    kubelet.wait_for_requests(asked + 4).await;
    // 50 ms, then doubled each time: load can only add to that.
    let took = since.elapsed();
    assert!(took > Duration::from_millis(400), "four more in {took:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_killed_during_registration_is_followed_by_a_new_registration() {
    let machine = with(&["ttyA"]);
    let silent = Knobs {
        answer_late: Duration::from_secs(60),
        ..Knobs::default()
    };
    let first = FakeKubelet::start_with(machine.root(), silent).await;
    let agent = machine.agent();
    first.wait_for_requests(1).await;
    drop(first);
    let second = FakeKubelet::start(machine.root()).await;
    let books = second
        .until("the next one knows it", |books| healthy(books) == 1)
        .await;
    assert_eq!(books[TTY].registrations, 1);
    assert_eq!(second.sockets().len(), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_counts_follow_alternating_removals_and_additions() {
    let all = ["ttyA", "ttyB", "ttyC", "ttyD"];
    let machine = with(&all);
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    let counted = async |what: &str, count: usize| {
        let books = kubelet.until(what, |books| healthy(books) == count).await;
        assert_eq!(books[TTY].list().len(), all.len(), "the capacity stays");
    };
    counted("four", 4).await;
    machine.unplug("ttyA");
    counted("three", 3).await;
    machine.unplug("ttyD");
    counted("two of four", 2).await;
    machine.plug("ttyD");
    counted("three again", 3).await;
    machine.plug("ttyA");
    counted("four again", 4).await;
    machine.unplug("ttyB");
    machine.unplug("ttyC");
    counted("two", 2).await;
    machine.plug("ttyB");
    counted("three of four", 3).await;
    machine.plug("ttyC");
    counted("all of them", 4).await;
    agent.stop().await;
}

/// Links appear some milliseconds after their nodes, so an addition is debounced. That a removal is
/// reported sooner, `tests/bench` measures.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn additions_are_debounced() {
    let machine = with(&["ttyA"]);
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    kubelet.until("one", |books| healthy(books) == 1).await;
    for (number, name) in ["ttyB", "ttyC", "ttyD"].into_iter().enumerate() {
        let since = Instant::now();
        machine.plug(name);
        let count = number + 2;
        kubelet.until(name, |books| healthy(books) == count).await;
        let took = since.elapsed();
        assert!(took >= Duration::from_millis(50), "{took:?}");
    }
    agent.stop().await;
}

/// More directories than are watched: no event is received for the last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_without_a_uevent_is_found_by_the_periodic_scan() {
    let machine = Machine::new();
    for number in 0..300 {
        std::fs::create_dir_all(machine.path(&format!("dev/d{number:03}"))).unwrap();
    }
    machine.plug("d000/x");
    machine.declare("tty.yaml", TTY, "/dev/d*/x", 1);
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent_that_looks_every(Duration::from_millis(500));
    kubelet.until("one", |books| healthy(books) == 1).await;
    machine.plug("d299/x");
    kubelet.until("both", |books| healthy(books) == 2).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_that_listens_late_on_its_socket_is_registered_with() {
    let machine = with(&["ttyA"]);
    let agent = machine.agent();
    let knobs = Knobs {
        listen_late: Duration::from_secs(4),
        ..Knobs::default()
    };
    let kubelet = FakeKubelet::start_with(machine.root(), knobs).await;
    kubelet.until("listed", |books| healthy(books) == 1).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_device_plugin_call_is_answered_including_pre_start() {
    let machine = with(&["ttyA"]);
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    kubelet.until("one", |books| healthy(books) == 1).await;
    let mut plugin = kubelet.plugin(TTY);
    let options = plugin.get_device_plugin_options(api::Empty {}).await;
    assert!(!options.unwrap().into_inner().pre_start_required);
    let ids = vec!["ttyA".to_owned()];
    let wish = api::ContainerPreferredAllocationRequest {
        available_device_i_ds: ids.clone(),
        must_include_device_i_ds: Vec::new(),
        allocation_size: 1,
    };
    let wishes = api::PreferredAllocationRequest {
        container_requests: vec![wish],
    };
    let preferred = plugin.get_preferred_allocation(wishes).await.unwrap();
    let preferred = preferred.into_inner().container_responses;
    assert_eq!(preferred[0].device_i_ds, ids);
    kubelet.allocate(TTY, &["ttyA"]).await.unwrap();
    let start = api::PreStartContainerRequest { devices_ids: ids };
    plugin.pre_start_container(start).await.unwrap();
    agent.stop().await;
}
