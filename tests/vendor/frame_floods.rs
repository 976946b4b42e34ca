//! HTTP/2 frames without content, as many as a socket takes: the server reads them at a limited rate or
//! closes the connection, and serves others meanwhile.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use machinist_testkit::vendor_program::device;

use super::path_policy::{is_unaffected, with_a_neighbour};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// How long each flood lasts.
const FLOOD_TIME: Duration = Duration::from_secs(1);

/// What came of a flood.
#[derive(Debug)]
struct Outcome {
    /// Frames that the server or its socket took.
    sent: usize,
    answered_bytes: usize,
    /// Whether the server closed the connection.
    closed: bool,
    took: Duration,
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags, 0, 0, 0, stream]);
    frame.extend_from_slice(payload);
    frame
}

/// The headers of a session that is never used.
fn session_headers() -> Vec<u8> {
    let field = |head: &[u8], value: &str| {
        let length = u8::try_from(value.len()).unwrap();
        [head, &[length], value.as_bytes()].concat()
    };
    [
        vec![0x83, 0x86],
        field(&[0x44], "/machinist.vendor.v1.Vendor/Session"),
        field(&[0x41], "localhost"),
        field(&[0x5f], "application/grpc"),
        field(&[0x40, 2, b't', b'e'], "trailers"),
    ]
    .concat()
}

/// Sends `opening` once, and then `repeated` as fast as possible.
fn flood(socket: &Path, opening: &[u8], repeated: &[u8]) -> Outcome {
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut answers = stream.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let (mut bytes, mut buffer) = (0, [0; 4096]);
        while let Ok(count @ 1..) = answers.read(&mut buffer) {
            bytes += count;
        }
        bytes
    });
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let start = [&preface[..], &frame(SETTINGS, 0, 0, &[]), opening].concat();
    stream.write_all(&start).unwrap();
    stream
        .set_write_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let (frames, mut sent, mut closed) = (repeated.repeat(100), 0, false);
    let began = Instant::now();
    while began.elapsed() < FLOOD_TIME && !closed {
        // A partial write continues at its end.
        match stream.write(&frames[sent % frames.len()..]) {
            Ok(count) => sent += count,
            Err(error) => {
                closed = matches!(
                    error.kind(),
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                );
            }
        }
    }
    let took = began.elapsed();
    // It fails if the server has closed the connection.
    let _ = stream.shutdown(std::net::Shutdown::Both);
    Outcome {
        sent: sent / repeated.len(),
        answered_bytes: reader.join().unwrap(),
        closed,
        took,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_http2_frames_without_content_is_read_at_a_limited_rate() {
    let (machine, agent, mut good) = with_a_neighbour().await;
    drop(machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap());
    let session = frame(HEADERS, 4, 1, &session_headers());
    let unfinished = frame(HEADERS, 0, 1, &session_headers());
    let ping = [1, 2, 3, 4, 5, 6, 7, 8];
    // With the length of the answer to one frame.
    let floods = [
        ("pings", vec![], frame(PING, 0, 0, &ping), 17),
        ("settings", vec![], frame(SETTINGS, 0, 0, &[]), 9),
        ("empty data", session.clone(), frame(DATA, 0, 1, &[]), 0),
        ("data of no stream", vec![], frame(DATA, 0, 0, &[]), 0),
        (
            "empty continuations",
            unfinished,
            frame(CONTINUATION, 0, 1, &[]),
            0,
        ),
        (
            "priorities",
            vec![],
            frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 1]),
            0,
        ),
        (
            "window updates",
            session,
            frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]),
            0,
        ),
    ];
    for (name, opening, repeated, answer) in floods {
        let socket = machine.vendor_socket("acme");
        let length = repeated.len();
        let flooding = tokio::task::spawn_blocking(move || flood(&socket, &opening, &repeated));
        // Others are served meanwhile.
        good.offer("acme.dev/good", 1, vec![device("acme0")])
            .await
            .unwrap();
        let outcome = flooding.await.unwrap();
        // 1000 at once, 500 per second, and what fits into one read.
        let most = 1500 + 500 * usize::try_from(outcome.took.as_secs() + 1).unwrap();
        if let Some(answers) = outcome.answered_bytes.checked_div(answer) {
            assert!((100..most).contains(&answers), "{name}: {outcome:?}");
        }
        // The rest waits in the socket, whose buffer has some 200 KiB.
        let most = most + 512 * 1024 / length;
        assert!(outcome.closed || outcome.sent < most, "{name}: {outcome:?}");
        let is_refused = matches!(name, "data of no stream" | "empty continuations");
        assert!(outcome.closed || !is_refused, "{name}: {outcome:?}");
    }
    is_unaffected(&machine, &agent, good).await;
    agent.stop().await;
}
