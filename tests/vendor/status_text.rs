//! How mistakes are reported to a vendor and to the machine's administrator, and how they are
//! fixed.

use machinist_device_plugins::vendor_api::api::v1::{self as api, Reason, from_vendor::Said};
use tonic::Code;

use machinist_testkit::{
    device_host::Machine,
    vendor_program::{ConnectOptions, device, listed, lists, vendor_is},
};

fn machine() -> Machine {
    let machine = Machine::new();
    for node in ["acme0", "acme1"] {
        machine.plug(node);
    }
    machine.vendor("acme", "");
    machine
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_vendor_devices_are_reported_until_accepted() {
    let machine = machine();
    let agent = machine.agent();
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let offered = program.offer("acme.dev/x", 1, vec![device("acme0")]).await;
    offered.unwrap();
    program.close().await;
    let lapsed = "x/acme0=Unhealthy (vendor acme is disconnected: it closed its session)";
    lists(&agent, &[lapsed]).await;
    let broke_off = |one: &machinist_device_plugins::vendor_api::LiveVendorStatus| {
        one.lapsing.as_deref() == Some("vendor acme is disconnected: it closed its session")
    };
    vendor_is(&agent, "acme", broke_off).await;
    let (mut program, _) = machine.hello("acme", "two", &["acme.dev/x"]).await.unwrap();
    let away = vec![device("acme0"), device("acme7")];
    let rejected = program.offer("acme.dev/x", 1, away.clone()).await;
    assert_eq!(rejected.unwrap_err().device, "acme7");
    let why =
        "vendor acme: offer of acme.dev/x rejected: device \"acme7\": /dev/acme7 does not exist";
    lists(&agent, &[&format!("x/acme0=Unhealthy ({why})")]).await;
    let is_rejected = |one: &machinist_device_plugins::vendor_api::LiveVendorStatus| {
        one.vain.get("acme.dev/x").is_some_and(|found| found == why)
    };
    vendor_is(&agent, "acme", is_rejected).await;
    machine.plug("acme7");
    program.offer("acme.dev/x", 1, away).await.unwrap();
    lists(&agent, &["x/acme0=Healthy", "x/acme7=Healthy"]).await;
    let well = |one: &machinist_device_plugins::vendor_api::LiveVendorStatus| {
        one.vain.is_empty() && one.lapsing.is_none()
    };
    vendor_is(&agent, "acme", well).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reallowed_resource_can_be_published_again_by_the_vendor() {
    let machine = machine();
    let agent = machine.agent();
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let offered = program.offer("acme.dev/x", 1, vec![device("acme0")]).await;
    offered.unwrap();
    machine.vendor_of("acme", "[acme.dev/y]", "");
    match program.next().await.unwrap() {
        api::from_agent::Said::Rejected(why) => assert_eq!(why.reason(), Reason::ResourceForbidden),
        other => panic!("expected Rejected, got {other:?}"),
    }
    lists(&agent, &[]).await;
    machine.vendor("acme", "");
    let last = program.wait_for_end().await;
    let report = "vendor acme may offer acme.dev/x again";
    assert_eq!((last.code(), last.message()), (Code::Aborted, report));
    let (mut program, welcome) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    assert_eq!(welcome.kept, []);
    let offered = program.offer("acme.dev/x", 2, vec![device("acme0")]).await;
    offered.unwrap();
    lists(&agent, &["x/acme0=Healthy"]).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_unsupported_by_dra_is_accepted_again_without_serve_dra() {
    let machine = machine();
    let agent = machine.agent();
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let snapshot = |generation| api::Snapshot {
        resource: "acme.dev/x".into(),
        generation,
        devices: vec![device("acme0")],
        asks: Some(api::Asks {
            pre_start: true,
            ..api::Asks::default()
        }),
    };
    program.snapshot(snapshot(1)).await.unwrap();
    machine.vendor("acme", "  serve: dra\n");
    let why = "serve: dra has no PreStart call: asks.pre_start is not supported";
    match program.next().await.unwrap() {
        api::from_agent::Said::Rejected(rejected) => assert_eq!(rejected.message, why),
        other => panic!("expected Rejected, got {other:?}"),
    }
    lists(&agent, &[]).await;
    let is_rejected = |one: &machinist_device_plugins::vendor_api::LiveVendorStatus| {
        one.vain.get("acme.dev/x").is_some_and(|found| found == why)
    };
    vendor_is(&agent, "acme", is_rejected).await;
    machine.vendor("acme", "");
    let last = program.wait_for_end().await;
    let report = "vendor acme may offer acme.dev/x again";
    assert_eq!((last.code(), last.message()), (Code::Aborted, report));
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    program.snapshot(snapshot(2)).await.unwrap();
    lists(&agent, &["x/acme0=Healthy"]).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vendor_file_with_fewer_resources_ends_a_session_that_named_more() {
    let machine = machine();
    let agent = machine.agent();
    let both = ["acme.dev/x", "acme.dev/y"];
    let (mut program, _) = machine.hello("acme", "one", &both).await.unwrap();
    for name in both {
        program.offer(name, 1, vec![device("acme0")]).await.unwrap();
    }
    machine.vendor("acme", "  limits: {resources: 1}\n");
    let report = "2 resources are named; vendor acme may offer 1 to 1";
    assert_eq!(program.wait_for_end().await.message(), report);
    let refused = machine.hello("acme", "one", &both).await.err().unwrap();
    assert_eq!(refused.message(), report);
    agent
        .until("lapsed", |status| {
            listed(status).iter().all(|one| one.contains("Unhealthy"))
        })
        .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_without_a_leading_hello_is_counted_and_reported() {
    let machine = machine();
    let agent = machine.agent();
    let mut program = machine
        .open("acme", ConnectOptions { window: None })
        .await
        .unwrap();
    program
        .send_message(Said::Heartbeat(api::Heartbeat { number: 1 }))
        .await;
    let report = "the first message is not Hello";
    assert_eq!(program.wait_for_end().await.message(), report);
    vendor_is(&agent, "acme", |one| {
        let last = one.last_reason.as_deref().unwrap_or_default();
        one.refused == 1 && last == format!("session rejected: {report}")
    })
    .await;
    // A connection that only probes the socket is not reported as a mistake.
    drop(
        machine
            .open("acme", ConnectOptions { window: None })
            .await
            .unwrap(),
    );
    let (_program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    vendor_is(&agent, "acme", |one| one.sessions == 1 && one.refused == 1).await;
    agent.stop().await;
}
