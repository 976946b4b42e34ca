//! Registrations that are refused, each with an explanation.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    time::Duration,
};

use prost::Message as _;

use super::{
    GPU, api,
    harness::{Stage, has, until},
    plugin::{Does, Plugin, Script, device, register},
};
use machinist_testkit::{WAIT_TIMEOUT, fake_kubelet::FakeKubelet};

fn request(resource: &str, endpoint: &str) -> api::RegisterRequest {
    api::RegisterRequest {
        version: "v1beta1".into(),
        endpoint: endpoint.into(),
        resource_name: resource.into(),
        options: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_registrations_are_rejected_as_by_the_kubelet() {
    let stage = Stage::new("");
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let old = api::RegisterRequest {
        version: "v1alpha1".into(),
        ..request(GPU, "a.sock")
    };
    let refused = register(&directory, old).await.unwrap_err();
    assert_eq!(
        refused.message(),
        "requested API version \"v1alpha1\" is not supported by kubelet. Supported version is [\"v1beta1\"]"
    );
    for bad in ["gpu", "kubernetes.io/gpu", "requests.acme.dev/gpu", ""] {
        let refused = register(&directory, request(bad, "a.sock")).await;
        let report = format!("the ResourceName {bad:?} is invalid");
        assert_eq!(refused.unwrap_err().message(), report);
    }
    let foreign = request("nvidia.com/gpu", "a.sock");
    let refused = register(&directory, foreign).await.unwrap_err();
    assert_eq!(
        refused.message(),
        "vendor acme may not claim nvidia.com/gpu; expected one of spec.resources: acme.dev/*"
    );
    let report = "a plugin of acme may not register \"nvidia.com/gpu\": ";
    until(
        "it is reported",
        || matches!(agent.problems().as_slice(), [one] if one.starts_with(report)),
    )
    .await;
    // After an accepted registration the earlier problems are cleared.
    let _plugin = Plugin::start(&directory, GPU, "a.sock", &["a"], None).await;
    until("it is over", || agent.problems().is_empty()).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_endpoint_must_be_a_socket_in_the_vendors_directory() {
    let stage = Stage::new("");
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let outside = stage.machine.path("run");
    std::fs::create_dir_all(&outside).unwrap();
    let _outside = UnixListener::bind(outside.join("x.sock")).unwrap();
    std::fs::write(directory.join("file.sock"), "").unwrap();
    std::os::unix::fs::symlink(outside.join("x.sock"), directory.join("link.sock")).unwrap();
    for (endpoint, report) in [
        ("../../../../../run/x.sock", "not a plain file name"),
        ("/run/x.sock", "not a plain file name"),
        ("", "not a plain file name"),
        ("kubelet.sock", "not a plain file name"),
        ("file.sock", "is a regular file, not a socket"),
        ("link.sock", "is a symbolic link, not a socket"),
    ] {
        let refused = register(&directory, request(GPU, endpoint)).await;
        let refused = refused.unwrap_err();
        assert!(
            refused.message().contains(report),
            "{endpoint}: {refused:?}"
        );
    }
    if nix::unistd::geteuid().is_root() {
        let path = directory.join("foreign.sock");
        let _foreign = UnixListener::bind(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
        let refused = register(&directory, request(GPU, "foreign.sock")).await;
        let refused = refused.unwrap_err();
        let report = "belongs to user 1234; expected one of spec.users: 0";
        assert!(refused.message().contains(report), "{refused:?}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_vendors_users_may_connect() {
    let stage = Stage::new("  users: [4321]\n");
    let agent = stage.ready().await;
    let refused = register(&stage.directory("acme"), request(GPU, "a.sock")).await;
    let report = refused.unwrap_err().message().to_owned();
    assert!(
        report.contains("may not register plugins of acme; expected one of spec.users: 4321"),
        "{report}"
    );
    agent.stop().await;
}

/// A plugin that does not answer what its options are.
fn silent() -> Script {
    Script {
        asked_options: Does::Hangs,
        ..Script::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_plugin_times_out() {
    let stage = Stage::new("  deadline: 1s\n");
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let slow = Plugin::start_with(
        &directory,
        "acme.dev/slow",
        "s.sock",
        &["s"],
        None,
        silent(),
    );
    let slow = tokio::time::timeout(WAIT_TIMEOUT, slow).await.unwrap();
    assert_eq!(
        slow.seen().refused,
        ["failed to get device plugin options: no answer in time"]
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_registers_while_another_one_hangs() {
    let stage = Stage::new("  deadline: 60s\n");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let slow = Plugin::start_with(
        &directory,
        "acme.dev/slow",
        "s.sock",
        &["s"],
        None,
        silent(),
    );
    tokio::pin!(slow);
    let other = async {
        let plugin = Plugin::start(&directory, GPU, "a.sock", &["a"], None).await;
        kubelet
            .until("the other", |books| has(books, GPU, &["a=Healthy"]))
            .await;
        plugin
    };
    let _other = tokio::select! {
        biased;
        _ = &mut slow => panic!("the hanging plugin was not waited for"),
        other = other => other,
    };
    agent.stop().await;
    slow.await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_above_the_limit_return_when_another_resource_shrinks() {
    let stage = Stage::new("  limits: {devices: 3}\n");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let gpu = Plugin::start(&directory, GPU, "1.sock", &["a", "b"], None).await;
    kubelet
        .until("the first", |books| {
            has(books, GPU, &["a=Healthy", "b=Healthy"])
        })
        .await;
    let nic = "acme.dev/nic";
    let _nic = Plugin::start(&directory, nic, "2.sock", &["x", "y"], None).await;
    kubelet
        .until("what fits", |books| has(books, nic, &["x=Healthy"]))
        .await;
    let report = "1 devices of acme.dev/nic are beyond spec.limits.devices (3)";
    until(
        "it is reported",
        || matches!(agent.problems().as_slice(), [one] if one.contains(report)),
    )
    .await;
    // Its plugin has sent no list.
    gpu.list(vec![device("a", true)]);
    kubelet
        .until("the rest", |books| {
            has(books, nic, &["x=Healthy", "y=Healthy"])
        })
        .await;
    until("it is over", || agent.problems().is_empty()).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resource_above_the_limit_is_rejected_until_another_is_removed() {
    let stage = Stage::new("  limits: {resources: 1}\n  grace: 1s\n");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let first = Plugin::start(&directory, GPU, "1.sock", &["a"], None).await;
    let second = Plugin::start(&directory, "acme.dev/nic", "2.sock", &["b"], None).await;
    assert_eq!(
        second.seen().refused,
        ["vendor acme offers 1 resources already; expected no more than spec.limits.resources"]
    );
    kubelet
        .until("the first", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    drop(first);
    kubelet
        .until("given up", |books| has(books, GPU, &["a=Unhealthy"]))
        .await;
    register(&directory, request("acme.dev/nic", "2.sock"))
        .await
        .unwrap();
    kubelet
        .until("the second", |books| {
            has(books, "acme.dev/nic", &["b=Healthy"]) && !books[GPU].streaming
        })
        .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_are_limited_and_block_nothing() {
    let stage = Stage::new("");
    stage.declare(&[("acme", ""), ("other", "")]);
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    stage.until_open("other").await;
    let socket = stage.directory("acme").join("kubelet.sock");
    let open = || UnixStream::connect(&socket).unwrap();
    let silent: Vec<_> = (0..100).map(|_| open()).collect();
    let nic = "other.dev/nic";
    let _other = Plugin::start(&stage.directory("other"), nic, "a.sock", &["b"], None).await;
    kubelet
        .until("the other", |books| has(books, nic, &["b=Healthy"]))
        .await;
    drop(silent);
    let _plugin = Plugin::start(&stage.directory("acme"), GPU, "a.sock", &["a"], None).await;
    kubelet
        .until("the vendor itself", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    let _silent = open();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registration_of_a_megabyte_is_rejected_unread() {
    let stage = Stage::new("");
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let large = request(&"x".repeat(1024 * 1024), "a.sock");
    let refused = register(&directory, large).await.unwrap_err();
    assert!(refused.message().contains("too large"), "{refused:?}");
    let long = request(GPU, &"x".repeat(32 * 1024));
    let refused = register(&directory, long).await.unwrap_err();
    assert!(
        refused.message().contains("not a plain file name"),
        "{refused:?}"
    );
    agent.stop().await;
}

/// The types of the HTTP/2 frames that answer a registration with this authority, up to the
/// decisive one.
fn answered(socket: &std::path::Path, authority: &str) -> Vec<u8> {
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap();
        let mut frame = length.to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, stream]);
        frame.extend_from_slice(payload);
        frame
    };
    let field = |head: &[u8], value: &str| {
        let length = u8::try_from(value.len()).unwrap();
        [head, &[length], value.as_bytes()].concat()
    };
    let headers = [
        vec![0x83, 0x86],
        field(&[0x44], "/v1beta1.Registration/Register"),
        field(&[0x41], authority),
        field(&[0x5f], "application/grpc"),
        field(&[0x40, 2, b't', b'e'], "trailers"),
    ];
    let message = request("gpu", "a.sock").encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let message = [&[0], &length[..], &message].concat();
    let sent = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &headers.concat()),
        frame(0, 1, 1, &message),
    ];
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    stream.write_all(&sent.concat()).unwrap();
    let mut kinds = Vec::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).unwrap();
        kinds.push(head[3]);
        // HEADERS answers the request; RST_STREAM and GOAWAY do not.
        if matches!(head[3], 1 | 3 | 7) {
            return kinds;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_the_socket_path_as_authority_is_served() {
    let stage = Stage::new("");
    let agent = stage.ready().await;
    let socket = stage.directory("acme").join("kubelet.sock");
    for authority in [
        "localhost",
        "/var/lib/kubelet/device-plugins/kubelet.sock",
        "%2Fvar%2Flib%2Fkubelet%2Fdevice-plugins%2Fkubelet.sock",
    ] {
        let kinds = answered(&socket, authority);
        assert_eq!(kinds.last(), Some(&1), "{authority}: {kinds:?}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_registration_socket_is_recreated() {
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let other = directory.join("other");
    drop(std::os::unix::net::UnixListener::bind(&other).unwrap());
    std::fs::rename(&other, directory.join("kubelet.sock")).unwrap();
    assert!(UnixStream::connect(directory.join("kubelet.sock")).is_err());
    stage.until_open("acme").await;
    // A link: a server cannot bind over it.
    std::os::unix::fs::symlink("other", &other).unwrap();
    std::fs::rename(&other, directory.join("kubelet.sock")).unwrap();
    stage.until_open("acme").await;
    let _plugin = Plugin::start(&directory, GPU, "a.sock", &["a"], None).await;
    kubelet
        .until("listed", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_registrations_is_rate_limited_and_other_vendors_register() {
    let stage = Stage::new("");
    stage.declare(&[("acme", ""), ("other", "")]);
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    stage.until_open("other").await;
    let began = std::time::Instant::now();
    let mut flood = tokio::task::JoinSet::new();
    for _ in 0..90 {
        let directory = stage.directory("acme");
        flood.spawn(async move { register(&directory, request("gpu", "a.sock")).await });
    }
    let nic = "other.dev/nic";
    let _other = Plugin::start(&stage.directory("other"), nic, "a.sock", &["b"], None).await;
    kubelet
        .until("the other", |books| has(books, nic, &["b=Healthy"]))
        .await;
    for refused in flood.join_all().await {
        refused.unwrap_err();
    }
    // A burst of forty, then twenty per second.
    assert!(
        began.elapsed() >= Duration::from_millis(2400),
        "{:?}",
        began.elapsed()
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vendor_directory_is_scanned_up_to_a_thousand_names() {
    let stage = Stage::new("");
    let directory = stage.directory("acme");
    std::fs::create_dir_all(&directory).unwrap();
    for number in 0..2500 {
        let socket = directory.join(format!("s{number}"));
        drop(std::os::unix::net::UnixListener::bind(socket).unwrap());
    }
    let agent = stage.ready().await;
    let left = std::fs::read_dir(&directory).unwrap().count();
    assert!((1500..=1600).contains(&left), "{left}");
    let refused = register(&directory, request("gpu", "a.sock")).await;
    let refused = refused.unwrap_err();
    assert!(refused.message().contains("is invalid"), "{refused:?}");
    agent.stop().await;
}
