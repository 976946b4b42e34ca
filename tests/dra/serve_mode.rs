//! When devices are offered through DRA, and when through the device plugin.

use std::time::Duration;

use machinist_device::{dra::traits::PublishedPool, resource_name::ResourceName};
use tokio::sync::watch;

use super::{Stage, TTY, declare, named};
use machinist_testkit::{
    device_host::Machine,
    fake_claims::{FakeClaims, Watcher, until},
    fake_kubelet::FakeKubelet,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resource_is_served_by_device_plugin_or_dra_never_both() {
    let machine = Machine::new();
    machine.plug("ttyA");
    machine.plug("ttyB");
    declare(&machine, "dra");
    let kubelet = FakeKubelet::start(machine.root()).await;
    let stage = Stage::on(machine, FakeClaims::new()).await;
    let tty = || ResourceName::new(TTY).unwrap();
    stage
        .published
        .send_modify(|it| it.resources = Some([tty()].into()));
    assert!(kubelet.books().is_empty(), "never both");
    stage.claims.allocate("c", &[("one", &named("ttyA"))]);
    stage.prepare("c").await.unwrap();
    // The device plugin does not start while the published slices still list the device, nor while
    // a claim is prepared.
    declare(&stage.machine, "devicePlugin");
    stage.wait_for_pool(0).await;
    let waits = |status: &machinist_device::status::DevicesStatus| {
        status.devices[0].reason.as_deref()
            == Some("its devices are allocated to claims, or may be")
    };
    stage.agent.until("it waits", waits).await;
    stage
        .published
        .send_modify(|it| it.resources = Some([].into()));
    stage.agent.until("it still waits", waits).await;
    assert!(kubelet.books().is_empty(), "a claim has it");
    assert_eq!(stage.unprepare("c").await, "");
    kubelet
        .until("a device plugin", |books| {
            books.get(TTY).is_some_and(|one| one.streaming)
        })
        .await;
    // And back: the plugin is removed first, and the driver's sockets are created again.
    until("no driver", async || {
        stage.watcher.found().is_empty().then_some(())
    })
    .await;
    declare(&stage.machine, "dra");
    stage.watcher.register(None).await;
    stage.wait_for_pool(2).await;
    kubelet
        .until("the plugin's end", |books| {
            books.get(TTY).is_none_or(|one| !one.streaming)
        })
        .await;
    stage.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_slices_are_published_before_the_dra_driver_is_registered() {
    let machine = Machine::new();
    machine.plug("ttyA");
    machine.plug("ttyB");
    let watcher = Watcher::start(machine.root());
    let agent = machine.agent();
    let published = watch::Sender::new(PublishedPool::default());
    let wish = agent.claims(FakeClaims::new(), published.subscribe());
    let devices = || wish.borrow().as_ref().map(|pool| pool.devices.len());
    until("nothing to offer", async || {
        devices().filter(|all| *all == 0)
    })
    .await;
    // The first device for DRA is declared later.
    declare(&machine, "dra");
    agent
        .until("declared", |status| status.devices.len() == 1)
        .await;
    until("a socket", async || watcher.found().pop()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(devices(), Some(0), "no pod may come for it yet");
    watcher.register(None).await;
    until("an offer", async || devices().filter(|all| *all == 2)).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_of_an_ended_device_plugin_become_available_to_claims() {
    let machine = Machine::new();
    machine.plug("ttyA");
    machine.plug("ttyB");
    declare(&machine, "devicePlugin");
    let kubelet = FakeKubelet::start(machine.root()).await;
    let watcher = Watcher::start(machine.root());
    let agent = machine.agent();
    kubelet
        .until("a device plugin", |books| {
            books.get(TTY).is_some_and(|one| one.streaming)
        })
        .await;
    drop(kubelet);
    std::fs::remove_dir_all(machine.path("var/lib/kubelet/device-plugins")).unwrap();
    agent
        .until("noticed", |status| !status.kubelet.present)
        .await;
    let published = watch::Sender::new(PublishedPool::default());
    let wish = agent.claims(FakeClaims::new(), published.subscribe());
    declare(&machine, "dra");
    watcher.register(None).await;
    let devices = || wish.borrow().as_ref().map(|pool| pool.devices.len());
    until("an offer", async || devices().filter(|all| *all == 2)).await;
    agent.stop().await;
}
