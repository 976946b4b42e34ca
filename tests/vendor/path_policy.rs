//! A vendor is not trusted: invalid messages are refused with an explanation, and no other vendor
//! is affected.

use std::{os::unix::net::UnixStream, time::Duration};

use machinist_device_plugins::vendor_api::api::v1::{self as api, Reason, from_vendor::Said};
use tonic::Code;

use machinist_testkit::{
    device_host::{Agent, Machine},
    vendor_program::{ConnectOptions, Program, device, lists, node, vendor_is},
};

/// A machine on which a well-behaved vendor has one device.
pub(crate) async fn with_a_neighbour() -> (Machine, Agent, Program) {
    let machine = Machine::new();
    machine.plug("acme0");
    machine.vendor("acme", "");
    machine.vendor("good", "");
    let agent = machine.agent();
    let (mut good, _) = machine
        .hello("good", "one", &["acme.dev/good"])
        .await
        .unwrap();
    good.offer("acme.dev/good", 1, vec![device("acme0")])
        .await
        .unwrap();
    (machine, agent, good)
}

/// The neighbour is unaffected, and the vendor itself may reconnect.
pub(crate) async fn is_unaffected(machine: &Machine, agent: &Agent, mut good: Program) {
    good.offer("acme.dev/good", 1, vec![device("acme0")])
        .await
        .unwrap();
    let status = agent.handle.status_now();
    assert_eq!(
        machinist_testkit::vendor_program::listed(&status)[0],
        "good/acme0=Healthy"
    );
    vendor_is(agent, "acme", |one| one.instance.is_none()).await;
    machine
        .hello("acme", "later", &["acme.dev/x"])
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_not_listed_in_the_vendor_file_is_rejected_by_name() {
    let (machine, agent, good) = with_a_neighbour().await;
    machine.vendor("strict", "  users: [4242]\n");
    let refused = machine
        .hello("strict", "one", &["acme.dev/x"])
        .await
        .err()
        .unwrap();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let expected = format!(
        "user {} may not connect as vendor strict",
        nix::unistd::geteuid()
    );
    assert_eq!(refused.message(), expected);
    is_unaffected(&machine, &agent, good).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vendor_sockets_and_directories_are_private() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let (machine, agent, _good) = with_a_neighbour().await;
    machine.vendor("grouped", "  group: 4242\n");
    machine
        .hello("grouped", "one", &["acme.dev/y"])
        .await
        .unwrap();
    for (name, group) in [("acme", 0), ("grouped", 4242)] {
        let socket = machine.vendor_socket(name);
        for (path, mode) in [(socket.as_path(), 0o660), (socket.parent().unwrap(), 0o750)] {
            let found = std::fs::symlink_metadata(path).unwrap();
            assert_eq!(found.permissions().mode() & 0o7777, mode, "{path:?}");
            if nix::unistd::geteuid().is_root() {
                assert_eq!((found.uid(), found.gid()), (0, group), "{path:?}");
            }
        }
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_vendor_hello_is_rejected_with_a_message() {
    let (machine, agent, good) = with_a_neighbour().await;
    let many: Vec<String> = (0..9).map(|n| format!("acme.dev/{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let long = "x".repeat(129);
    for (vendor, instance, resources, expected) in [
        (
            "good",
            "one",
            &["acme.dev/x"][..],
            "this is the socket of vendor acme",
        ),
        ("acme", "", &["acme.dev/x"], "the instance name is not"),
        ("acme", &long, &["acme.dev/x"], "the instance name is not"),
        (
            "acme",
            "one",
            &["other.dev/x"],
            "vendor acme may not offer other.dev/x",
        ),
        ("acme", "one", &["../x"], "is not a valid resource name"),
        ("acme", "one", &[], "0 resources are named"),
        (
            "acme",
            "one",
            &many,
            "9 resources are named; vendor acme may offer 1 to 8",
        ),
    ] {
        let mut program = machine
            .open("acme", ConnectOptions { window: None })
            .await
            .unwrap();
        let refused = program
            .hello(vendor, instance, resources)
            .await
            .unwrap_err();
        assert!(refused.message().contains(expected), "{refused}");
    }
    let mut program = machine
        .open("acme", ConnectOptions { window: None })
        .await
        .unwrap();
    program
        .send_message(Said::Heartbeat(api::Heartbeat { number: 1 }))
        .await;
    assert_eq!(
        program.wait_for_end().await.message(),
        "the first message is not Hello"
    );
    is_unaffected(&machine, &agent, good).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_large_messages_end_the_session_undecoded() {
    let (machine, agent, good) = with_a_neighbour().await;
    let mut huge = device("acme0");
    huge.attributes = [("a".to_owned(), "x".repeat(10 << 20))].into();
    let ten_thousand = (0..10_000).map(|n| device(&format!("acme{n}"))).collect();
    let many_parts = vec![api::Device::default(); 10_000];
    for (devices, expected) in [
        (vec![huge], "a message is larger than 524288 bytes"),
        (
            ten_thousand,
            "the message has 20000 parts; at most 8192 are read",
        ),
        (
            many_parts,
            "the message has 10000 parts; at most 8192 are read",
        ),
    ] {
        let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
        program
            .send_message(Said::Snapshot(api::Snapshot {
                resource: "acme.dev/x".into(),
                generation: 1,
                devices,
                asks: None,
            }))
            .await;
        let last = program.wait_for_end().await;
        assert_eq!(
            (last.code(), last.message()),
            (Code::ResourceExhausted, expected)
        );
    }
    is_unaffected(&machine, &agent, good).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_snapshots_are_rejected_and_the_session_continues() {
    let (machine, agent, _good) = with_a_neighbour().await;
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    program
        .offer("acme.dev/x", 1, vec![device("acme0")])
        .await
        .unwrap();
    let other = program
        .offer("acme.dev/other", 1, Vec::new())
        .await
        .unwrap_err();
    assert_eq!(other.reason(), Reason::ResourceUnknown);
    let many = (0..1001).map(|n| device(&format!("acme{n}"))).collect();
    let many = program.offer("acme.dev/x", 2, many).await.unwrap_err();
    assert_eq!(many.reason(), Reason::Limit);
    for (path, expected) in [
        ("/dev/acme0/../../etc/shadow", "it holds . or .."),
        (
            "/etc/shadow",
            "not among the nodes that vendor acme may hand out",
        ),
        ("/dev/acme9", "/dev/acme9 does not exist"),
    ] {
        let mut wrong = device("bad");
        wrong.recipe = Some(node(path));
        let wrong = program
            .offer("acme.dev/x", 2, vec![wrong])
            .await
            .unwrap_err();
        assert_eq!(
            (wrong.reason(), wrong.device.as_str()),
            (Reason::PathForbidden, "bad")
        );
        assert!(wrong.message.contains(expected), "{}", wrong.message);
    }
    program
        .offer("acme.dev/x", 2, vec![device("acme0")])
        .await
        .unwrap();
    lists(&agent, &["good/acme0=Healthy", "x/acme0=Healthy"]).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_queued_while_unread_are_not_treated_as_a_flood() {
    let (machine, agent, good) = with_a_neighbour().await;
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    // Four for each second of half a minute, and all of them at once.
    for number in 0..120 {
        program
            .send_message(Said::Heartbeat(api::Heartbeat { number }))
            .await;
    }
    for number in 0..120 {
        let echo = program.next().await.unwrap();
        assert_eq!(
            echo,
            api::from_agent::Said::Heartbeat(api::Heartbeat { number })
        );
    }
    drop(program);
    is_unaffected(&machine, &agent, good).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vendor_above_the_message_rate_is_disconnected_with_the_reason() {
    let (machine, agent, good) = with_a_neighbour().await;
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let began = tokio::time::Instant::now();
    for number in 0..400 {
        program
            .send_message(Said::Heartbeat(api::Heartbeat { number }))
            .await;
    }
    let last = loop {
        match program.next().await {
            Ok(_) => {}
            Err(last) => break last,
        }
    };
    assert_eq!(last.code(), Code::ResourceExhausted);
    assert_eq!(last.message(), "more than 20 messages in a second");
    assert!(began.elapsed().as_secs() >= 4, "{:?}", began.elapsed());
    is_unaffected(&machine, &agent, good).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_connections_block_no_other_connection() {
    let (machine, agent, good) = with_a_neighbour().await;
    let socket = machine.vendor_socket("acme");
    for _ in 0..150 {
        drop(UnixStream::connect(&socket).unwrap());
    }
    let start = std::time::Instant::now();
    machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let took = start.elapsed();
    // If they blocked it, it would wait for the end of their idle timeout of 30 s.
    assert!(took < Duration::from_secs(25), "{took:?}");
    is_unaffected(&machine, &agent, good).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vendor_that_never_reads_loses_its_session() {
    let (machine, agent, good) = with_a_neighbour().await;
    let manner = ConnectOptions { window: Some(1) };
    let program = machine.open("acme", manner).await;
    // Even the Welcome is blocked, so it is not waited for.
    let program = program.unwrap();
    program
        .send_message(Said::Hello(api::Hello {
            api_versions: vec!["v1".into()],
            vendor: "acme".into(),
            instance: "one".into(),
            resources: vec!["acme.dev/x".into()],
        }))
        .await;
    vendor_is(&agent, "acme", |one| one.instance.is_some()).await;
    for number in 0..200 {
        program
            .send_message(Said::Heartbeat(api::Heartbeat { number }))
            .await;
        tokio::time::sleep(Duration::from_millis(if number < 30 { 1 } else { 52 })).await;
        let status = agent.handle.vendors().status();
        let acme = status.iter().find(|one| one.vendor == "acme").unwrap();
        if let Some(why) = &acme.lapsing {
            assert_eq!(why, "it does not read its messages");
            break;
        }
        assert!(number < 199, "it still has its session");
    }
    drop(program);
    is_unaffected(&machine, &agent, good).await;
    agent.stop().await;
}
