//! The device service against a kubelet, over a root in a temporary directory.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the outside world that makes files and devices"
)]

mod lock;
mod restarts;

use machinist_testkit::{device_host, fake_kubelet};

use device_host::Machine;
use fake_kubelet::{FakeKubelet, ResourceAccounts};
use machinist_device_plugins::kubelet::api::v1beta1 as api;

fn has(books: &ResourceAccounts, resource: &str, list: &[&str]) -> bool {
    books
        .get(resource)
        .is_some_and(|known| known.streaming && known.list() == list)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_resource_registers_once_and_lists_its_devices() {
    let machine = Machine::new();
    for name in ["fuse", "ttyA", "ttyB"] {
        machine.plug(name);
    }
    machine.declare("fuse.yaml", "machinist.dev/fuse", "/dev/fuse", 2);
    machine.declare("tty.yaml", "acme.dev/tty", "/dev/tty?", 1);
    machine.declare("none.yaml", "acme.dev/none", "/dev/none", 1);
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    let books = kubelet
        .until("both are listed", |books| {
            has(
                books,
                "machinist.dev/fuse",
                &["fuse::0=Healthy", "fuse::1=Healthy"],
            ) && has(books, "acme.dev/tty", &["ttyA=Healthy", "ttyB=Healthy"])
        })
        .await;
    assert_eq!(
        books.len(),
        2,
        "a resource without a device is not registered"
    );
    assert!(
        books
            .values()
            .all(|known| known.registrations == 1 && known.lists.len() == 1)
    );
    assert!(
        books.values().all(|known| known.dialled == 1),
        "it serves before it registers"
    );
    let status = agent
        .until("both are registered", |status| {
            status.devices.iter().filter(|one| one.registered).count() == 2
        })
        .await;
    let none = &status.devices[0];
    assert_eq!(none.devices[0].health, "Missing");
    assert_eq!(none.reason.as_deref(), Some("it has no device yet"));
    assert_eq!(kubelet.sockets().len(), 2);
    agent.stop().await;
    assert!(
        kubelet.sockets().is_empty(),
        "an agent that stops leaves no sockets"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_device_is_unhealthy_on_the_same_stream_until_it_returns() {
    let machine = Machine::new();
    machine.plug("ttyA");
    machine.plug("ttyB");
    machine.declare("tty.yaml", "acme.dev/tty", "/dev/tty?", 1);
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    let both = ["ttyA=Healthy", "ttyB=Healthy"];
    kubelet
        .until("both", |books| has(books, "acme.dev/tty", &both))
        .await;
    machine.unplug("ttyB");
    kubelet
        .until("one", |books| {
            has(books, "acme.dev/tty", &["ttyA=Healthy", "ttyB=Unhealthy"])
        })
        .await;
    let refused = kubelet
        .allocate("acme.dev/tty", &["ttyB"])
        .await
        .unwrap_err();
    assert!(refused.message().contains("\"ttyB\""), "{refused:?}");
    assert!(
        refused.message().contains("/dev/ttyB is gone"),
        "{refused:?}"
    );
    let message = agent
        .until("the change to be reported", |status| {
            status.devices[0].devices[1].health == "Unhealthy"
        })
        .await;
    assert_eq!(
        message.devices[0].devices[1].reason.as_deref(),
        Some("/dev/ttyB is gone")
    );
    machine.plug("ttyB");
    let books = kubelet
        .until("both again", |books| has(books, "acme.dev/tty", &both))
        .await;
    assert_eq!(books["acme.dev/tty"].registrations, 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allocate_returns_the_node_and_rejects_unknown_devices_by_name() {
    let machine = Machine::new();
    machine.plug("fuse");
    machine.declare("fuse.yaml", "machinist.dev/fuse", "/dev/fuse", 2);
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    let resource = "machinist.dev/fuse";
    kubelet
        .until("listed", |books| {
            books.get(resource).is_some_and(|one| one.streaming)
        })
        .await;
    let got = kubelet.allocate(resource, &["fuse::1"]).await.unwrap();
    let node = api::DeviceSpec {
        container_path: "/dev/fuse".into(),
        host_path: "/dev/fuse".into(),
        permissions: "rw".into(),
    };
    assert_eq!(got.devices, [node]);
    for unknown in ["fuse::2", "fuse", "other"] {
        let refused = kubelet.allocate(resource, &[unknown]).await.unwrap_err();
        assert!(
            refused.message().contains(&format!("{unknown:?}")),
            "{refused:?}"
        );
    }
    let available = vec!["fuse::0".to_owned(), "fuse::1".to_owned()];
    let one = api::ContainerPreferredAllocationRequest {
        available_device_i_ds: available,
        must_include_device_i_ds: vec!["fuse::1".to_owned()],
        allocation_size: 1,
    };
    let request = api::PreferredAllocationRequest {
        container_requests: vec![one],
    };
    let answer = kubelet
        .plugin(resource)
        .get_preferred_allocation(request)
        .await
        .unwrap();
    assert_eq!(
        answer.into_inner().container_responses[0].device_i_ds,
        ["fuse::1"]
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_that_now_resolves_elsewhere_is_not_allocated() {
    let machine = Machine::new();
    machine.plug("fuse");
    let resource = "acme.dev/fuse";
    machine.write(
        "fuse.yaml",
        "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {name: x}\nspec:\n  \
         resource: acme.dev/fuse\n  match: [{path: /dev/fuse}]\n  \
         container: {mounts: [{from: /opt/acme, to: /acme}]}\n",
    );
    let opt = machine.path("opt/acme");
    std::fs::create_dir_all(&opt).unwrap();
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    kubelet
        .until("listed", |books| {
            books.get(resource).is_some_and(|one| one.streaming)
        })
        .await;
    let got = kubelet.allocate(resource, &["fuse"]).await.unwrap();
    assert_eq!(got.mounts[0].host_path, "/opt/acme");
    std::fs::remove_dir(&opt).unwrap();
    let gone = kubelet.allocate(resource, &["fuse"]).await.unwrap_err();
    assert!(
        gone.message().ends_with("/opt/acme does not exist"),
        "{gone:?}"
    );
    std::os::unix::fs::symlink("/etc", &opt).unwrap();
    let leads = kubelet.allocate(resource, &["fuse"]).await.unwrap_err();
    let why = "/opt/acme leads to /etc, which a declaration must not mount into containers";
    assert!(leads.message().ends_with(why), "{leads:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disabled_devices_are_unhealthy_and_not_allocated_until_reenabled() {
    let machine = Machine::new();
    machine.plug("fuse");
    machine.declare("fuse.yaml", "machinist.dev/fuse", "/dev/fuse", 1);
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    let resource = "machinist.dev/fuse";
    kubelet
        .until("healthy", |books| has(books, resource, &["fuse=Healthy"]))
        .await;
    agent
        .handle
        .disable_allocation("the node is being updated")
        .await
        .unwrap();
    // The kubelet may have admitted a pod a moment ago, and that pod would fail permanently.
    kubelet.allocate(resource, &["fuse"]).await.unwrap();
    agent
        .handle
        .quiesce("the node is being updated")
        .await
        .unwrap();
    let refused = kubelet.allocate(resource, &["fuse"]).await.unwrap_err();
    assert!(
        refused
            .message()
            .ends_with("allocation disabled: the node is being updated"),
        "{refused:?}"
    );
    kubelet
        .until("disabled allocation", |books| {
            has(books, resource, &["fuse=Unhealthy"])
        })
        .await;
    agent.handle.enable_allocation().await.unwrap();
    kubelet
        .until("released", |books| has(books, resource, &["fuse=Healthy"]))
        .await;
    kubelet.allocate(resource, &["fuse"]).await.unwrap();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_agent_does_not_register_while_the_first_one_serves() {
    let machine = Machine::new();
    machine.plug("fuse");
    machine.declare("fuse.yaml", "machinist.dev/fuse", "/dev/fuse", 1);
    let kubelet = FakeKubelet::start(machine.root()).await;
    let first = machine.agent();
    kubelet
        .until("listed", |books| {
            has(books, "machinist.dev/fuse", &["fuse=Healthy"])
        })
        .await;
    let second = machine.agent();
    let status = second
        .until("refused", |status| {
            status
                .kubelet
                .reason
                .as_deref()
                .is_some_and(|why| why.contains("another agent"))
        })
        .await;
    assert!(status.devices.iter().all(|one| !one.registered));
    assert_eq!(kubelet.books()["machinist.dev/fuse"].registrations, 1);
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_declaration_is_reported_and_does_not_affect_others() {
    let machine = Machine::new();
    machine.plug("fuse");
    machine.plug("ttyA");
    machine.declare("fuse.yaml", "machinist.dev/fuse", "/dev/fuse", 1);
    machine.write(
        "broken.yaml",
        "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nspek: {}\n",
    );
    std::os::unix::fs::symlink(
        "fuse.yaml",
        machine.path("etc/machinist/devices.d/link.yaml"),
    )
    .unwrap();
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    kubelet
        .until("listed", |books| {
            has(books, "machinist.dev/fuse", &["fuse=Healthy"])
        })
        .await;
    let status = agent
        .until("the change to be reported", |status| {
            status.problems.len() == 2
        })
        .await;
    let message: Vec<_> = status.problems.iter().map(ToString::to_string).collect();
    assert!(
        message[0].starts_with("/etc/machinist/devices.d/broken.yaml:3:1: spek: "),
        "{message:?}"
    );
    assert!(
        message[1].contains("link.yaml: it is a symbolic link"),
        "{message:?}"
    );
    machine.declare("broken.yaml", "acme.dev/tty", "/dev/ttyA", 1);
    kubelet
        .until("repaired", |books| {
            has(books, "acme.dev/tty", &["ttyA=Healthy"])
        })
        .await;
    machine.write("broken.yaml", "apiVersion: [");
    agent
        .until("broken again", |status| status.problems.len() == 2)
        .await;
    kubelet.allocate("acme.dev/tty", &["ttyA"]).await.unwrap();
    std::fs::remove_file(machine.path("etc/machinist/devices.d/broken.yaml")).unwrap();
    let books = kubelet
        .until("withdrawn", |books| !books["acme.dev/tty"].streaming)
        .await;
    assert_eq!(
        books["acme.dev/tty"].list(),
        [""; 0],
        "the last list is empty"
    );
    assert!(has(&books, "machinist.dev/fuse", &["fuse=Healthy"]));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_agent_does_not_empty_its_device_list() {
    let machine = Machine::new();
    machine.plug("fuse");
    machine.declare("fuse.yaml", "machinist.dev/fuse", "/dev/fuse", 1);
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    kubelet
        .until("listed", |books| {
            has(books, "machinist.dev/fuse", &["fuse=Healthy"])
        })
        .await;
    agent.stop().await;
    let books = kubelet
        .until("ended", |books| !books["machinist.dev/fuse"].streaming)
        .await;
    assert_eq!(books["machinist.dev/fuse"].lists, [["fuse=Healthy"]]);
    let agent = machine.agent();
    let books = kubelet
        .until("back", |books| {
            has(books, "machinist.dev/fuse", &["fuse=Healthy"])
        })
        .await;
    assert_eq!(books["machinist.dev/fuse"].registrations, 2);
    agent.stop().await;
}
