//! Resources that the kubelet finds through its plugin watcher (`devices.registration: watcher`).

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the outside world that makes files and devices"
)]

use machinist_testkit as support;

use std::os::unix::{fs::MetadataExt as _, net::UnixListener};

use support::{
    device_host::Machine,
    fake_kubelet::{FakeKubelet, Knobs, ResourceAccounts},
};

const TTY: &str = "acme.dev/tty";
const REGISTRY: &str = "var/lib/kubelet/plugins_registry";
const WATCHES: Knobs = Knobs {
    watches: true,
    forget_streams: 0,
    refuse: 0,
    answer_late: std::time::Duration::ZERO,
    stream_late: std::time::Duration::ZERO,
    listen_late: std::time::Duration::ZERO,
    removes_files: false,
    dial_timeout: None,
};

fn machine() -> Machine {
    let machine = Machine::new();
    machine.plug("ttyA");
    machine.plug("ttyB");
    machine.declare("tty.yaml", TTY, "/dev/tty?", 1);
    machine
}

fn both(books: &ResourceAccounts) -> bool {
    let known = books.get(TTY);
    known.is_some_and(|known| known.streaming && known.list() == ["ttyA=Healthy", "ttyB=Healthy"])
}

/// The sockets that a watcher would find, each with the identity of its file.
fn shown(machine: &Machine) -> Vec<(String, u64, i64, i64)> {
    let Ok(entries) = std::fs::read_dir(machine.path(REGISTRY)) else {
        return Vec::new();
    };
    let entries = entries.map(|entry| {
        let entry = entry.unwrap();
        let (name, stat) = (entry.file_name(), entry.metadata().unwrap());
        let name = name.into_string().unwrap();
        (name, stat.ino(), stat.ctime(), stat.ctime_nsec())
    });
    entries.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resource_is_registered_by_the_plugin_watcher_also_after_a_restart() {
    let machine = machine();
    let kubelet = FakeKubelet::start_with(machine.root(), WATCHES).await;
    let agent = machine.agent_that_is_found();
    kubelet.until("both are listed", both).await;
    agent
        .until("it is registered", |status| {
            status.devices.first().is_some_and(|it| it.registered)
        })
        .await;
    let given = kubelet.allocate(TTY, &["ttyB"]).await.unwrap();
    assert_eq!(given.devices[0].host_path, "/dev/ttyB");
    // No registration on the kubelet's own socket, where the two ways would cut each other off.
    assert_eq!((kubelet.asked(), kubelet.sockets().len()), (0, 0));
    let before = shown(&machine);
    assert_eq!(before.len(), 1);
    drop(kubelet);
    agent
        .until("unregistered", |status| {
            status.devices.first().is_some_and(|it| !it.registered)
        })
        .await;
    let kubelet = FakeKubelet::start_with(machine.root(), WATCHES).await;
    let books = kubelet.until("both are listed again", both).await;
    assert_eq!(books[TTY].registrations, 1);
    agent
        .until("it is registered", |status| {
            status.devices.first().is_some_and(|it| it.registered)
        })
        .await;
    assert_eq!(shown(&machine), before, "the socket is the same");
    agent.stop().await;
    assert_eq!(shown(&machine), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resource_dropped_by_the_kubelet_is_offered_with_a_new_socket() {
    let machine = machine();
    let kubelet = FakeKubelet::start_with(machine.root(), WATCHES).await;
    let agent = machine.agent_that_is_found();
    kubelet.until("both are listed", both).await;
    let before = shown(&machine);
    kubelet.disconnect_plugin(TTY);
    kubelet
        .until("both are listed again", |books| {
            both(books) && books[TTY].registrations == 2
        })
        .await;
    assert_ne!(shown(&machine), before);
    // A socket that another process removed is created again.
    let before = shown(&machine);
    std::fs::remove_file(machine.path(REGISTRY).join(&before[0].0)).unwrap();
    kubelet
        .until("both are listed once more", |books| {
            both(books) && books[TTY].registrations == 3
        })
        .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_watcher_refusal_is_reported_and_cleared_by_the_kubelets_retry() {
    let machine = machine();
    let knobs = Knobs {
        refuse: 3,
        ..WATCHES
    };
    let kubelet = FakeKubelet::start_with(machine.root(), knobs).await;
    let agent = machine.agent_that_is_found();
    let why = "the kubelet rejected acme.dev/tty: RegisterPlugin error -- plugin registration \
               failed with err: failed to get device plugin options: ";
    agent
        .until("the refusal", |status| {
            let reason = status.devices.first().and_then(|one| one.reason.as_deref());
            reason.is_some_and(|reason| reason.starts_with(why))
        })
        .await;
    let before = shown(&machine);
    kubelet.until("both are listed", both).await;
    assert_eq!(shown(&machine), before, "the socket is the same");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdrawn_resource_is_emptied_and_stale_sockets_are_removed() {
    let machine = machine();
    let kubelet = FakeKubelet::start_with(machine.root(), WATCHES).await;
    // A socket of an agent that was killed, and one of another plugin.
    let left = machine.path(REGISTRY).join("m-0123456789abcdef.sock");
    let other = machine.path(REGISTRY).join("other.sock");
    // The kubelet creates the directory a moment after its sockets.
    std::fs::create_dir_all(machine.path(REGISTRY)).unwrap();
    for path in [&left, &other] {
        drop(UnixListener::bind(path).unwrap());
    }
    let agent = machine.agent_that_is_found();
    kubelet.until("both are listed", both).await;
    assert!(!left.exists() && other.exists());
    std::fs::remove_file(machine.path("etc/machinist/devices.d/tty.yaml")).unwrap();
    kubelet
        .until("an empty list, and its end", |books| {
            books[TTY].list().is_empty() && !books[TTY].streaming
        })
        .await;
    assert_eq!(kubelet.counts(TTY), Some((0, 0)));
    assert_eq!(shown(&machine).len(), 1, "the other one's");
    agent.stop().await;
}
