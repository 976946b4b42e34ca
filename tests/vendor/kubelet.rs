//! The kubelet's view of a vendor's devices.

use std::time::Duration;

use machinist_device_plugins::{
    kubelet::api::v1beta1,
    vendor_api::api::v1::{self as api, answer, question},
};

use machinist_testkit::{
    device_host::Machine,
    fake_kubelet::{FakeKubelet, Knobs, ResourceAccounts},
    vendor_program::{device, node, vendor_is},
};

fn lists(books: &ResourceAccounts, expected: &[&str]) -> bool {
    let known = books.get("acme.dev/x");
    known.is_some_and(|known| known.streaming && known.list() == expected)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vendor_restart_is_invisible_to_the_kubelet() {
    let machine = Machine::new();
    machine.plug("acme0");
    machine.vendor("acme", "  grace: 30s\n");
    let text = std::fs::read_to_string(machine.path("etc/machinist/vendors.d/acme.yaml")).unwrap();
    let text = text.replace("  grace: 1s\n", "");
    std::fs::write(machine.path("etc/machinist/vendors.d/acme.yaml"), text).unwrap();
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    for instance in 0..20 {
        let (mut program, _) = machine
            .hello("acme", &format!("run-{instance}"), &["acme.dev/x"])
            .await
            .unwrap();
        program
            .offer("acme.dev/x", 1, vec![device("acme0")])
            .await
            .unwrap();
        kubelet
            .until("listed", |books| lists(books, &["acme0=Healthy"]))
            .await;
        drop(program);
        vendor_is(&agent, "acme", |one| one.instance.is_none()).await;
    }
    let books = kubelet.books();
    let known = &books["acme.dev/x"];
    assert_eq!((known.registrations, known.lists.len()), (1, 1));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_get_edits_of_the_recipe_or_the_vendors_response() {
    let machine = Machine::new();
    machine.plug("acme0");
    machine.plug("acme1");
    machine.vendor("acme", "");
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let mut snapshot = api::Snapshot {
        resource: "acme.dev/x".into(),
        generation: 1,
        devices: vec![device("acme0")],
        asks: None,
    };
    program.snapshot(snapshot.clone()).await.unwrap();
    kubelet
        .until("listed", |books| lists(books, &["acme0=Healthy"]))
        .await;
    let given = kubelet.allocate("acme.dev/x", &["acme0"]).await.unwrap();
    assert_eq!(given.devices[0].host_path, "/dev/acme0");
    snapshot.generation = 2;
    snapshot.asks = Some(api::Asks {
        allocate: true,
        ..api::Asks::default()
    });
    program.snapshot(snapshot).await.unwrap();
    let answers = async {
        let question = program.question().await;
        assert!(matches!(question.asked, Some(question::Asked::Allocate(_))));
        let recipe = answer::Answer::Recipe(node("/dev/acme1"));
        program.answer(question.id, recipe).await;
        let question = program.question().await;
        let error = answer::Answer::Error("it is too hot".into());
        program.answer(question.id, error).await;
    };
    let asking = async {
        let given = kubelet.allocate("acme.dev/x", &["acme0"]).await.unwrap();
        assert_eq!(given.devices[0].host_path, "/dev/acme1");
        kubelet
            .allocate("acme.dev/x", &["acme0"])
            .await
            .unwrap_err()
    };
    let ((), refused) = tokio::join!(answers, asking);
    assert_eq!(
        refused.message(),
        "allocation from vendor acme rejected: it is too hot"
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pre_start_is_sent_only_to_vendors_that_request_it_and_retried() {
    let machine = Machine::new();
    machine.plug("acme0");
    machine.vendor("acme", "  deadline: 1s\n");
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    let resources = ["acme.dev/x", "acme.dev/y"];
    let (mut program, _) = machine.hello("acme", "one", &resources).await.unwrap();
    for (resource, pre_start) in [("acme.dev/x", true), ("acme.dev/y", false)] {
        let asks = api::Asks {
            pre_start,
            ..api::Asks::default()
        };
        let snapshot = api::Snapshot {
            resource: resource.into(),
            generation: 1,
            devices: vec![device("acme0")],
            asks: Some(asks),
        };
        program.snapshot(snapshot).await.unwrap();
    }
    let listed = |books: &ResourceAccounts| {
        resources
            .iter()
            .all(|one| books.get(*one).is_some_and(|one| one.streaming))
    };
    kubelet.until("both", listed).await;
    let start = async |resource: &str| {
        let devices_ids = vec!["acme0".to_owned()];
        let request = v1beta1::PreStartContainerRequest { devices_ids };
        kubelet.plugin(resource).pre_start_container(request).await
    };
    for (resource, wanted) in [("acme.dev/x", true), ("acme.dev/y", false)] {
        let mut plugin = kubelet.plugin(resource);
        let options = plugin.get_device_plugin_options(v1beta1::Empty {}).await;
        let options = options.unwrap().into_inner();
        assert_eq!(options.pre_start_required, wanted, "{resource}");
    }
    // The vendor is not asked.
    start("acme.dev/y").await.unwrap();
    let answers = async {
        let first = program.question().await;
        assert!(matches!(first.asked, Some(question::Asked::PreStart(_))));
        let second = program.question().await;
        // The late answers are dropped.
        for id in [first.id, second.id] {
            program.answer(id, answer::Answer::Done(api::Done {})).await;
        }
    };
    let starts = async {
        let late = start("acme.dev/x").await.unwrap_err();
        assert_eq!(late.message(), "vendor acme did not respond within 1 s");
        start("acme.dev/x").await.unwrap();
    };
    tokio::join!(answers, starts);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vendor_options_changed_during_registration_reach_the_kubelet() {
    let machine = Machine::new();
    machine.plug("acme0");
    machine.vendor("acme", "");
    let knobs = Knobs {
        stream_late: Duration::from_millis(500),
        ..Knobs::default()
    };
    let kubelet = FakeKubelet::start_with(machine.root(), knobs).await;
    let agent = machine.agent();
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let device = || vec![device("acme0")];
    program.offer("acme.dev/x", 1, device()).await.unwrap();
    kubelet
        .until("taken", |books| books.contains_key("acme.dev/x"))
        .await;
    // Its options are known by now, and it has not called ListAndWatch.
    let snapshot = api::Snapshot {
        resource: "acme.dev/x".into(),
        generation: 2,
        devices: device(),
        asks: Some(api::Asks {
            pre_start: true,
            ..api::Asks::default()
        }),
    };
    program.snapshot(snapshot).await.unwrap();
    kubelet
        .until("the change to be reported", |books| {
            let known = &books["acme.dev/x"];
            known.streaming && known.options.pre_start_required
        })
        .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_container_starts_with_devices_of_a_quiesced_vendor() {
    let machine = Machine::new();
    machine.plug("acme0");
    machine.vendor("acme", "");
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.withholding_agent("a reboot");
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let question = program.question().await;
    assert!(matches!(question.asked, Some(question::Asked::Quiesce(_))));
    let snapshot = api::Snapshot {
        resource: "acme.dev/x".into(),
        generation: 1,
        devices: vec![device("acme0")],
        asks: Some(api::Asks {
            pre_start: true,
            ..api::Asks::default()
        }),
    };
    program.snapshot(snapshot).await.unwrap();
    kubelet
        .until("listed", |books| {
            books.get("acme.dev/x").is_some_and(|one| one.streaming)
        })
        .await;
    let request = v1beta1::PreStartContainerRequest {
        devices_ids: vec!["acme0".to_owned()],
    };
    let mut plugin = kubelet.plugin("acme.dev/x");
    let refused = plugin.pre_start_container(request).await.unwrap_err();
    assert_eq!(
        refused.message(),
        "allocation of acme.dev/x disabled: a reboot"
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_in_a_recipe_counts_as_its_target_node() {
    let machine = Machine::new();
    machine.plug("acme0");
    machine.plug("sda");
    machine.vendor("acme", "");
    for (to, link) in [("sda", "dev/acme-disk"), ("acme0", "dev/acme-first")] {
        std::os::unix::fs::symlink(to, machine.path(link)).unwrap();
    }
    let agent = machine.agent();
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let refused = program
        .offer("acme.dev/x", 1, vec![device("acme-disk")])
        .await;
    assert_eq!(
        refused.unwrap_err().message,
        "device \"acme-disk\": /dev/acme-disk is a link to /dev/sda, which is not among the nodes that vendor acme \
         may hand out"
    );
    let taken = program
        .offer("acme.dev/x", 1, vec![device("acme-first")])
        .await;
    taken.unwrap();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_changed_after_the_snapshot_is_detected_at_allocation() {
    let machine = Machine::new();
    machine.plug("acme0");
    machine.vendor("acme", "");
    for dir in ["run/acme.dev/data", "etc/secret"] {
        std::fs::create_dir_all(machine.path(dir)).unwrap();
    }
    let link = machine.path("run/acme.dev/link");
    std::os::unix::fs::symlink("/run/acme.dev/data", &link).unwrap();
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let mut one = device("acme0");
    one.recipe.as_mut().unwrap().mounts = vec![api::Mount {
        from: "/run/acme.dev/link".into(),
        to: "/data".into(),
        writable: false,
    }];
    program.offer("acme.dev/x", 1, vec![one]).await.unwrap();
    kubelet
        .until("listed", |books| lists(books, &["acme0=Healthy"]))
        .await;
    let given = kubelet.allocate("acme.dev/x", &["acme0"]).await.unwrap();
    // The validated path is handed over, not the link: the link may be changed before the runtime
    // resolves it.
    assert_eq!(given.mounts[0].host_path, "/run/acme.dev/data");
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("/etc/secret", &link).unwrap();
    let refused = kubelet
        .allocate("acme.dev/x", &["acme0"])
        .await
        .unwrap_err();
    assert_eq!(
        refused.message(),
        "allocation from vendor acme rejected: its recipe was rejected: /run/acme.dev/link leads to /etc/secret, \
         which vendor acme must not mount into containers"
    );
    // The same while the vendor is unreachable.
    drop(program);
    let refused = kubelet
        .allocate("acme.dev/x", &["acme0"])
        .await
        .unwrap_err();
    assert!(
        refused.message().contains("leads to /etc/secret"),
        "{refused}"
    );
    agent.stop().await;
}

/// One node through a link that any user can change, and one through a link that only root can
/// change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_behind_a_user_writable_link_is_allocated_as_the_node() {
    use std::os::unix::fs::PermissionsExt as _;
    let machine = Machine::new();
    machine.plug("acme0");
    machine.vendor("acme", "");
    let file = machine.path("etc/machinist/vendors.d/acme.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        file,
        text.replace("'/dev/acme*'", "'/dev/acme*', '/dev/shm/*'"),
    )
    .unwrap();
    std::fs::create_dir_all(machine.path("dev/shm")).unwrap();
    let users = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(machine.path("dev/shm"), users).unwrap();
    for link in ["dev/shm/acme-link", "dev/acme-link"] {
        std::os::unix::fs::symlink("/dev/acme0", machine.path(link)).unwrap();
    }
    machine.declare("x.yaml", "lab.example/x", "/dev/shm/acme-link", 1);
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = machine.agent();
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let by = |id: &str, path: &str| api::Device {
        recipe: Some(node(path)),
        ..device(id)
    };
    let both = vec![
        by("users", "/dev/shm/acme-link"),
        by("roots", "/dev/acme-link"),
    ];
    program.offer("acme.dev/x", 1, both).await.unwrap();
    for (resource, expected) in [
        ("acme.dev/x", &["/dev/acme-link", "/dev/acme0"][..]),
        ("lab.example/x", &["/dev/acme0"]),
    ] {
        let is_listed = |books: &ResourceAccounts| {
            let known = books.get(resource);
            known.is_some_and(|known| known.list().len() == expected.len())
        };
        let books = kubelet.until("listed", is_listed).await;
        let mut given = Vec::new();
        for id in books.get(resource).unwrap().list() {
            let id = id.trim_end_matches("=Healthy");
            let mut answer = kubelet.allocate(resource, &[id]).await.unwrap();
            given.push(answer.devices.remove(0).host_path);
        }
        given.sort();
        assert_eq!(given, expected, "{resource}");
    }
    agent.stop().await;
}
