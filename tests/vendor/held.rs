//! Connections that are held open for nothing.

use std::time::Duration;

use machinist::vendor::api::v1::{self as api, from_vendor::Said};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};
use tonic::Code;

use crate::trust::{unharmed, with_a_neighbour};

/// What a client of HTTP/2 says up to the first bytes of a message that never comes.
fn half_a_message() -> Vec<u8> {
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
        (":authority", "agent"),
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
    // A message of 1000 bytes, of which three come.
    said.extend(frame(0, 0, 1, &[0, 0, 0, 3, 0xe8, 0x0a, 0x05, 0x0a]));
    said
}

#[tokio::test]
async fn half_a_message_and_no_message_hold_a_connection_for_ten_seconds() {
    let (machine, agent, good) = with_a_neighbour().await;
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
    // A fourth one still gets in.
    let (last, _) = machine
        .hello("acme", "late", &["acme.dev/x"])
        .await
        .unwrap();
    drop(last);
    let began = tokio::time::Instant::now();
    for mut stream in held {
        let mut rest = Vec::new();
        let ended =
            tokio::time::timeout(Duration::from_secs(15), stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "the connection is still held");
    }
    assert!(began.elapsed() > Duration::from_secs(5));
    unharmed(&machine, &agent, good).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_program_that_says_nothing_for_three_heartbeats_loses_its_session() {
    let (machine, agent, mut good) = with_a_neighbour().await;
    let (mut program, welcome) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    assert_eq!(welcome.heartbeat_ms, 10_000);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(20)).await;
    for number in [7, 8] {
        good.say(Said::Heartbeat(api::Heartbeat { number })).await;
    }
    for _ in 0..2 {
        good.next().await.unwrap();
    }
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    let last = program.last_word().await;
    assert_eq!(last.code(), Code::DeadlineExceeded);
    assert_eq!(last.message(), "it said nothing for 30 s");
    unharmed(&machine, &agent, good).await;
    agent.stop().await;
}
