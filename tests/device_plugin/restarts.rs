//! Kubelets that are not running, restart, refuse, forget or are slow, and sockets that are
//! removed.

use std::time::Duration;

use super::has;
use machinist_testkit::{
    device_host::Machine,
    fake_kubelet::{FakeKubelet, Knobs, ResourceAccounts},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_resources_register_again_after_a_kubelet_restart() {
    const RESOURCES: usize = 50;
    let machine = Machine::new();
    for at in 0..RESOURCES {
        machine.plug(&format!("d{at}"));
        machine.declare(
            &format!("{at}.yaml"),
            &format!("acme.dev/r{at}"),
            &format!("/dev/d{at}"),
            2,
        );
    }
    let all = |books: &ResourceAccounts| {
        books.len() == RESOURCES
            && books
                .values()
                .all(|one| one.streaming && one.list().len() == 2)
    };
    let mut kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    kubelet.until("all", all).await;
    for round in 0..3 {
        drop(kubelet);
        let knobs = Knobs {
            listen_late: Duration::from_millis(round * 4),
            ..Knobs::default()
        };
        kubelet = FakeKubelet::start_with(machine.root(), knobs).await;
        let books = kubelet.until("all again", all).await;
        assert!(books.values().all(|one| one.lists.len() == 1));
    }
    agent
        .until("status", |status| {
            status.devices.iter().all(|one| one.registered)
        })
        .await;
    assert_eq!(kubelet.sockets().len(), RESOURCES);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_kubelet_is_reported_and_registration_follows_its_start() {
    let machine = Machine::new();
    machine.plug("fuse");
    machine.declare("fuse.yaml", "machinist.dev/fuse", "/dev/fuse", 1);
    let agent = machine.agent();
    let status = agent
        .until("no kubelet", |status| {
            !status.devices.is_empty()
                && status
                    .kubelet
                    .reason
                    .as_deref()
                    .is_some_and(|why| why.starts_with("kubelet not found"))
        })
        .await;
    assert!(!status.kubelet.present);
    let kubelet = FakeKubelet::start(machine.root()).await;
    kubelet
        .until("listed", |books| {
            has(books, "machinist.dev/fuse", &["fuse=Healthy"])
        })
        .await;
    agent
        .until("present", |status| {
            status.kubelet.present && status.devices.first().is_some_and(|it| it.registered)
        })
        .await;
    drop(kubelet);
    agent
        .until("gone", |status| {
            !status.kubelet.present && status.devices.first().is_some_and(|it| !it.registered)
        })
        .await;
    std::fs::remove_dir_all(machine.path("var/lib/kubelet")).unwrap();
    let kubelet = FakeKubelet::start(machine.root()).await;
    kubelet
        .until("listed again", |books| {
            has(books, "machinist.dev/fuse", &["fuse=Healthy"])
        })
        .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registration_is_retried_after_a_refusal_or_loss() {
    let machine = Machine::new();
    machine.plug("fuse");
    machine.declare("fuse.yaml", "machinist.dev/fuse", "/dev/fuse", 1);
    let knobs = Knobs {
        refuse: 2,
        forget_streams: 1,
        ..Knobs::default()
    };
    let kubelet = FakeKubelet::start_with(machine.root(), knobs).await;
    let agent = machine.agent();
    let books = kubelet
        .until("listed", |books| {
            has(books, "machinist.dev/fuse", &["fuse=Healthy"])
        })
        .await;
    assert_eq!(books["machinist.dev/fuse"].registrations, 2);
    agent
        .until("registered", |status| {
            status.devices.first().is_some_and(|it| it.registered)
        })
        .await;
    assert_eq!(kubelet.sockets().len(), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_that_opens_list_and_watch_late_is_waited_for() {
    let machine = Machine::new();
    machine.plug("fuse");
    machine.declare("fuse.yaml", "machinist.dev/fuse", "/dev/fuse", 1);
    let knobs = Knobs {
        stream_late: Duration::from_millis(300),
        ..Knobs::default()
    };
    let kubelet = FakeKubelet::start_with(machine.root(), knobs).await;
    let agent = machine.agent();
    let books = kubelet
        .until("listed", |books| {
            has(books, "machinist.dev/fuse", &["fuse=Healthy"])
        })
        .await;
    assert_eq!(books["machinist.dev/fuse"].registrations, 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_device_plugin_socket_is_recreated() {
    let machine = Machine::new();
    machine.plug("fuse");
    machine.declare("fuse.yaml", "machinist.dev/fuse", "/dev/fuse", 1);
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    let books = kubelet
        .until("listed", |books| {
            has(books, "machinist.dev/fuse", &["fuse=Healthy"])
        })
        .await;
    let endpoint = books["machinist.dev/fuse"].endpoint.clone();
    std::fs::remove_file(
        machine
            .path("var/lib/kubelet/device-plugins")
            .join(&endpoint),
    )
    .unwrap();
    let books = kubelet
        .until("registered again", |books| {
            // With a kubelet that calls ListAndWatch late, the agent registers once more.
            books["machinist.dev/fuse"].endpoint != endpoint
                && has(books, "machinist.dev/fuse", &["fuse=Healthy"])
        })
        .await;
    assert_eq!(
        kubelet.sockets(),
        [books["machinist.dev/fuse"].endpoint.clone()]
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registration_is_repeated_after_the_kubelet_removes_the_lock() {
    let machine = Machine::new();
    machine.plug("fuse");
    machine.declare("fuse.yaml", "machinist.dev/fuse", "/dev/fuse", 1);
    let knobs = Knobs {
        removes_files: true,
        ..Knobs::default()
    };
    let agent = machine.agent();
    let registered = |status: &machinist_device::status::DevicesStatus| {
        status.devices.first().is_some_and(|one| one.registered)
    };
    for life in 0..3 {
        let kubelet = FakeKubelet::start_with(machine.root(), knobs).await;
        kubelet
            .until("listed", |books| {
                has(books, "machinist.dev/fuse", &["fuse=Healthy"])
            })
            .await;
        assert_eq!(kubelet.sockets().len(), 1, "life {life}");
        // While this kubelet runs: its end also ends the registration.
        agent.until("it is reported", registered).await;
    }
    agent.stop().await;
}
