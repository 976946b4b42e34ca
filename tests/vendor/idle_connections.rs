//! Connections that are held open without use.

use std::time::Duration;

use machinist_device_plugins::vendor_api::{
    LiveVendorStatus,
    api::v1::{self as api, FromVendor, from_vendor::Said},
};
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};
use tonic::Code;

use crate::vendor::path_policy::{is_unaffected, with_a_neighbour};
use machinist_testkit::{WAIT_TIMEOUT, vendor_program::vendor_is};

/// The bytes of an HTTP/2 client that opens a stream for this authority and sends `sent` in it.
fn stream(authority: &str, sent: &[u8]) -> Vec<u8> {
    let frame = |kind: u8, flags: u8, stream: u8, body: &[u8]| {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, stream]);
        frame.extend(body);
        frame
    };
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/machinist.vendor.v1.Vendor/Session"),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        headers.push(0);
        for text in [name, value] {
            headers.push(u8::try_from(text.len()).unwrap());
            headers.extend(text.as_bytes());
        }
    }
    let mut said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    said.extend(frame(4, 0, 0, &[]));
    said.extend(frame(1, 4, 1, &headers));
    said.extend(frame(0, 0, 1, sent));
    said
}

/// Three bytes of a message of 1000 bytes.
fn half_a_message() -> Vec<u8> {
    stream("agent", &[0, 0, 0, 3, 0xe8, 0x0a, 0x05, 0x0a])
}

#[tokio::test]
async fn a_vendor_that_sends_the_socket_path_as_authority_is_accepted() {
    let (machine, agent, good) = with_a_neighbour().await;
    for (instance, authority) in [
        ("plain", "/run/machinist/vendors/acme/agent.sock"),
        (
            "encoded",
            "%2Frun%2Fmachinist%2Fvendors%2Facme%2Fagent.sock",
        ),
    ] {
        let hello = FromVendor {
            said: Some(Said::Hello(api::Hello {
                api_versions: vec!["v1".into()],
                vendor: "acme".into(),
                instance: instance.into(),
                resources: vec!["acme.dev/x".into()],
            })),
        }
        .encode_to_vec();
        let mut message = vec![0, 0, 0, 0, u8::try_from(hello.len()).unwrap()];
        message.extend(hello);
        let socket = machine.vendor_socket("acme");
        let mut connection = UnixStream::connect(socket).await.unwrap();
        let said = stream(authority, &message);
        connection.write_all(&said).await.unwrap();
        let is = |one: &LiveVendorStatus| one.instance.as_deref() == Some(instance);
        vendor_is(&agent, "acme", is).await;
        drop(connection);
        vendor_is(&agent, "acme", |one| one.instance.is_none()).await;
    }
    is_unaffected(&machine, &agent, good).await;
    agent.stop().await;
}

/// Whether the other end has not closed it; reads what it has sent so far.
fn is_open(stream: &UnixStream) -> bool {
    loop {
        match stream.try_read(&mut [0; 4096]) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

#[tokio::test]
async fn a_connection_without_a_complete_message_is_closed_after_ten_seconds() {
    let (machine, agent, mut good) = with_a_neighbour().await;
    machine
        .hello("acme", "early", &["acme.dev/x"])
        .await
        .unwrap();
    let mut held = Vec::new();
    for said in [half_a_message(), Vec::new(), b"PRI * HTTP".to_vec()] {
        let mut stream = UnixStream::connect(machine.vendor_socket("acme"))
            .await
            .unwrap();
        stream.write_all(&said).await.unwrap();
        held.push(stream);
    }
    // A fourth connection is still accepted.
    let (last, _) = machine
        .hello("acme", "late", &["acme.dev/x"])
        .await
        .unwrap();
    drop(last);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(8)).await;
    // An answer shows that the agent has run since.
    good.send_message(Said::Heartbeat(api::Heartbeat { number: 7 }))
        .await;
    good.next().await.unwrap();
    for stream in &held {
        assert!(is_open(stream), "closed after eight seconds");
    }
    tokio::time::advance(Duration::from_secs(3)).await;
    tokio::time::resume();
    for mut stream in held {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(WAIT_TIMEOUT, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "the connection is still held");
    }
    is_unaffected(&machine, &agent, good).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_vendor_session_ends_after_three_missed_heartbeats() {
    let (machine, agent, mut good) = with_a_neighbour().await;
    let (mut program, welcome) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    assert_eq!(welcome.heartbeat_ms, 10_000);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(20)).await;
    for number in [7, 8] {
        good.send_message(Said::Heartbeat(api::Heartbeat { number }))
            .await;
    }
    for _ in 0..2 {
        good.next().await.unwrap();
    }
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    let last = program.wait_for_end().await;
    assert_eq!(last.code(), Code::DeadlineExceeded);
    assert_eq!(last.message(), "no message received for 30 s");
    is_unaffected(&machine, &agent, good).await;
    agent.stop().await;
}
