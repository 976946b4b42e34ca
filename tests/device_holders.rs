//! Which pod has which device, from a kubelet that is running, busy, unresponsive, restarted or
//! stopped.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the outside world that makes files and devices"
)]

use machinist_testkit as support;

use std::time::Duration;

use machinist_device::{holders::HolderSnapshot, status::DevicesStatus};
use machinist_device_plugins::kubelet::{PodResources, PodResourcesError};
use machinist_rootfs::Root;
use support::{
    device_host::{Agent, Machine},
    fake_kubelet::FakeKubelet,
    pod_resources::FakePodResources,
};
use tonic::Code;

const TTY: &str = "acme.dev/tty";

fn with_ttys() -> Machine {
    let machine = Machine::new();
    machine.plug("ttyA");
    machine.plug("ttyB");
    machine.declare("tty.yaml", TTY, "/dev/tty?", 1);
    machine
}

async fn with_devices(machine: &Machine) -> Agent {
    let agent = machine.agent();
    agent
        .until("devices", |status| {
            status
                .devices
                .first()
                .is_some_and(|one| one.devices.len() == 2)
        })
        .await;
    agent
}

fn holders(status: &DevicesStatus) -> Vec<Option<String>> {
    let devices = status.devices[0].devices.iter();
    devices.map(|device| device.holder.clone()).collect()
}

fn client(machine: &Machine) -> PodResources {
    PodResources::new(Root::open(machine.root()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_names_device_holders_on_query_and_after_an_allocation() {
    let machine = with_ttys();
    let message = FakePodResources::default();
    let _serving = message.serve(machine.root());
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = with_devices(&machine).await;
    message.give("reads", TTY, &["ttyB"]);
    message.give("other", "nvidia.com/gpu", &["ttyA"]);
    agent.handle.ask_holders().await;
    let main = Some("lab/reads/main".to_owned());
    let status = agent
        .until("the holder", |status| holders(status)[1].is_some())
        .await;
    assert_eq!(holders(&status), [None, main.clone()]);
    // An answer is never older than the request, and many concurrent requests cause one or two
    // queries.
    message.take("reads");
    message.give("late", TTY, &["ttyB"]);
    let mut together = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let handle = agent.handle.clone();
        together.spawn(async move { handle.ask_holders().await });
    }
    together.join_all().await;
    let late = Some("lab/late/main".to_owned());
    let known = agent.handle.holders().borrow().clone();
    assert_eq!(known.of(TTY, "ttyB").map(ToString::to_string), late);
    assert!((2..=3).contains(&message.asked()), "{}", message.asked());
    let asked = message.asked();
    kubelet
        .until("registered", |books| {
            books.get(TTY).is_some_and(|one| one.streaming)
        })
        .await;
    message.take("late");
    message.give("writes", TTY, &["ttyA"]);
    kubelet.allocate(TTY, &["ttyA"]).await.unwrap();
    kubelet.allocate(TTY, &["ttyA"]).await.unwrap();
    agent
        .until("the new holder", |status| {
            holders(status) == [Some("lab/writes/main".to_owned()), None]
        })
        .await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(
        message.asked(),
        asked + 1,
        "not polled, and once for what comes together"
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_absent_pod_resources_api_is_reported_and_queried_again_later() {
    let machine = with_ttys();
    let agent = with_devices(&machine).await;
    agent.handle.ask_holders().await;
    let unknown = |known: &HolderSnapshot| matches!(known, HolderSnapshot::Unknown(why) if why.contains("no kubelet on"));
    assert!(unknown(&agent.handle.holders().borrow()));
    let message = FakePodResources::default();
    message.give("reads", TTY, &["ttyA"]);
    for _ in 0..3 {
        let serving = message.serve(machine.root());
        agent.handle.holders_now().await.unwrap();
        let status = agent
            .until("the holder", |status| holders(status)[0].is_some())
            .await;
        assert_eq!(holders(&status)[1], None);
        // The kubelet is killed: its socket stays, and nothing answers.
        drop(serving);
        tokio::time::sleep(Duration::from_millis(50)).await;
        let gone = agent.handle.holders_now().await.unwrap_err();
        assert!(matches!(gone, PodResourcesError::Absent), "{gone}");
        assert!(unknown(&agent.handle.holders().borrow()));
        agent
            .until("the holders to be unknown", |status| {
                holders(status)[0].is_none()
            })
            .await;
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_resources_queries_back_off_after_rate_limiting() {
    let machine = with_ttys();
    let message = FakePodResources::default();
    let _serving = message.serve(machine.root());
    let client = client(&machine);
    let begun = std::time::Instant::now();
    for _ in 0..10 {
        client.list().await.unwrap();
    }
    assert!(
        begun.elapsed() >= Duration::from_millis(900),
        "a tenth of its limit"
    );
    message.refuses(Some((Code::ResourceExhausted, "rejected by rate limit")));
    for _ in 0..100 {
        let error = client.list().await.unwrap_err();
        assert!(matches!(error, PodResourcesError::Busy), "{error}");
    }
    assert_eq!(message.asked(), 11, "asked once more and then not");
    message.refuses(None);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    client.list().await.unwrap();
    message.refuses(Some((
        Code::Unimplemented,
        "unknown service v1.PodResourcesLister",
    )));
    let error = client.list().await.unwrap_err();
    assert!(error.to_string().contains("unknown service"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_pod_resources_responses_are_read_and_allocatable_counted() {
    let machine = with_ttys();
    let message = FakePodResources::default();
    let _serving = message.serve(machine.root());
    let many: Vec<String> = (0..100_000).map(|n| format!("GPU-{n:036}::0")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    // Some 4.6 MB: above gRPC's own limit.
    message.give("all", "acme.dev/many", &many);
    message.set_allocatable(TTY, &["ttyA", "ttyB"]);
    let client = client(&machine);
    let all = client.list().await.unwrap();
    assert_eq!(all.iter().count(), many.len());
    let could = client.allocatable().await.unwrap();
    assert_eq!(could[TTY].len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_pod_resources_query_times_out_after_ten_seconds() {
    let machine = with_ttys();
    let message = FakePodResources::default();
    let _serving = message.serve(machine.root());
    message.is_silent();
    let begun = tokio::time::Instant::now();
    let error = client(&machine).list().await.unwrap_err();
    assert!(matches!(error, PodResourcesError::Silent), "{error}");
    assert_eq!(begun.elapsed().as_secs(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_restarted_during_an_update_lists_devices_unhealthy_at_once() {
    let machine = with_ttys();
    let before = with_devices(&machine).await;
    before.stop().await;
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.withholding_agent("an update of this node");
    let books = kubelet
        .until("listed", |books| {
            books.get(TTY).is_some_and(|one| !one.lists.is_empty())
        })
        .await;
    assert_eq!(books[TTY].lists[0], ["ttyA=Unhealthy", "ttyB=Unhealthy"]);
    let refused = kubelet.allocate(TTY, &["ttyA"]).await.unwrap_err();
    assert!(
        refused.message().contains("an update of this node"),
        "{refused:?}"
    );
    agent.handle.enable_allocation().await.unwrap();
    kubelet
        .until("allocatable again", |books| {
            books[TTY].list() == ["ttyA=Healthy", "ttyB=Healthy"]
        })
        .await;
    agent.stop().await;
}
