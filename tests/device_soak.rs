//! Repeated restarts of the kubelet leave nothing behind. It is alone in its process, because it
//! counts file descriptors.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the outside world that makes files and devices"
)]

use machinist_testkit as support;

use std::time::Duration;

use support::{
    WAIT_TIMEOUT,
    device_host::Machine,
    fake_kubelet::{FakeKubelet, ResourceAccounts},
};

const TTY: &str = "acme.dev/tty";

fn healthy(books: &ResourceAccounts) -> usize {
    let list = books.get(TTY).map_or(&[][..], |known| known.list());
    list.iter().filter(|one| one.ends_with("=Healthy")).count()
}

/// File descriptors of this process, sockets in the kubelet's directory, tasks of this runtime.
fn held(kubelet: &FakeKubelet) -> (usize, usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let tasks = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    (descriptors, kubelet.sockets().len(), tasks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_kubelet_restarts_leak_no_task_descriptor_or_socket() {
    let _alone = crate::ALONE.lock().await;
    let machine = Machine::new();
    for name in ["ttyA", "ttyB"] {
        machine.plug(name);
    }
    machine.declare("tty.yaml", TTY, "/dev/tty?", 1);
    let agent = machine.agent();
    let both = |books: &ResourceAccounts| healthy(books) == 2;
    let mut before: Option<(usize, usize, usize)> = None;
    for life in 0..=10 {
        let kubelet = FakeKubelet::start(machine.root()).await;
        kubelet.until("both devices", both).await;
        let Some(known) = before else {
            // Resources that the first restart allocates once are no leak.
            before = (life == 1).then(|| held(&kubelet));
            continue;
        };
        // Resources of the previous kubelet are released a moment after the registration.
        let more = || {
            let now = held(&kubelet);
            now.0 > known.0 || now.1 > known.1 || now.2 > known.2
        };
        let settled = async {
            while more() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(WAIT_TIMEOUT, settled).await;
        assert!(waited.is_ok(), "{life}: {:?}, {known:?}", held(&kubelet));
    }
    agent.stop().await;
}
