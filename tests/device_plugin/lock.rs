//! What other users of the kubelet's directory leave or hold at the path of the earlier lock.

use std::{
    fs::{self, File},
    path::Path,
};

use nix::{
    fcntl::{Flock, FlockArg},
    sys::stat::Mode,
};

use super::has;
use machinist_testkit::{device_host::Machine, fake_kubelet::FakeKubelet};

const EARLIER_LOCK: &str = "var/lib/kubelet/device-plugins/m.lock";

/// A machine that declares one device, and its kubelet.
async fn with_a_device() -> (Machine, FakeKubelet) {
    let machine = Machine::new();
    machine.plug("fuse");
    machine.declare("fuse.yaml", "acme.dev/fuse", "/dev/fuse", 1);
    let kubelet = FakeKubelet::start(machine.root()).await;
    (machine, kubelet)
}

fn full_directory(path: &Path) {
    fs::create_dir(path).unwrap();
    fs::write(path.join("file"), "theirs").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_object_at_the_lock_path_does_not_block_registration() {
    for kind in ["fifo", "link", "directory", "full directories", "socket"] {
        let (machine, kubelet) = with_a_device().await;
        let lock = machine.path(EARLIER_LOCK);
        match kind {
            "fifo" => nix::unistd::mkfifo(&lock, Mode::S_IRUSR).unwrap(),
            "link" => std::os::unix::fs::symlink("nowhere", &lock).unwrap(),
            "socket" => drop(std::os::unix::net::UnixListener::bind(&lock).unwrap()),
            "directory" => fs::create_dir(&lock).unwrap(),
            // Earlier versions moved the first to the name of the second.
            _ => ["m.lock", "m.lock.foreign", "m.lock.foreign.1"]
                .iter()
                .for_each(|name| full_directory(&lock.with_file_name(name))),
        }
        let before = fs::symlink_metadata(&lock).unwrap().file_type();
        let agent = machine.agent();
        kubelet
            .until(kind, |books| has(books, "acme.dev/fuse", &["fuse=Healthy"]))
            .await;
        let after = fs::symlink_metadata(&lock).unwrap().file_type();
        assert_eq!(before, after, "{kind}: what is not ours stays");
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_holds_the_earlier_lock_blocks_registration_for_some_seconds_only() {
    let (machine, kubelet) = with_a_device().await;
    let file = File::create(machine.path(EARLIER_LOCK)).unwrap();
    let _held = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
    let agent = machine.agent();
    let waits = |why: &str| why.contains("waiting 3 s for an agent of an earlier version to end");
    agent
        .until("an earlier agent may be running", |status| {
            status.kubelet.reason.as_deref().is_some_and(waits)
        })
        .await;
    agent
        .until("registered nevertheless", |status| {
            status.devices.iter().any(|one| one.registered)
        })
        .await;
    kubelet
        .until("listed", |books| {
            has(books, "acme.dev/fuse", &["fuse=Healthy"])
        })
        .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_the_earlier_lock_does_not_end_registrations() {
    let (machine, kubelet) = with_a_device().await;
    machine.declare("tty.yaml", "acme.dev/tty", "/dev/tty?", 1);
    machine.plug("ttyA");
    let agent = machine.agent();
    kubelet
        .until("listed", |books| {
            has(books, "acme.dev/fuse", &["fuse=Healthy"])
                && has(books, "acme.dev/tty", &["ttyA=Healthy"])
        })
        .await;
    let lock = machine.path(EARLIER_LOCK);
    fs::remove_file(&lock).unwrap();
    // Events of the directory are handled in order, so this one is handled after the removal.
    fs::write(lock.with_file_name("kubelet.sock.other"), "").unwrap();
    machine.plug("ttyB");
    let books = kubelet
        .until("the next device", |books| {
            has(books, "acme.dev/tty", &["ttyA=Healthy", "ttyB=Healthy"])
        })
        .await;
    assert!(
        books.values().all(|known| known.registrations == 1),
        "{books:?}"
    );
    let status = agent.handle.status_now();
    assert!(
        status.devices.iter().all(|one| one.registered),
        "{status:?}"
    );
    agent.stop().await;
}
