use tokio::net::TcpListener;

use super::*;

/// Starts a server that sends `answer` to every client; returns its endpoint.
async fn serve_response(answer: &'static [u8]) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut question = [0; 256];
            let count = stream.read(&mut question).await.unwrap();
            assert!(question[..count].starts_with(b"GET /healthz?full HTTP/1.0\r\n"));
            let _ = stream.write_all(answer).await;
        }
    });
    Endpoint {
        address: "127.0.0.1".to_owned(),
        port,
        path: "/healthz?full".to_owned(),
    }
}

#[tokio::test]
async fn http_gate_opens_only_on_200_and_reports_any_other_response() {
    let good = serve_response(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    assert_eq!(get(&good).await.open, Some(true));
    let ill = serve_response(b"HTTP/1.0 503 Service Unavailable\r\n\r\n").await;
    let answer = get(&ill).await;
    assert_eq!(answer.open, Some(false));
    assert!(answer.message.ends_with("returned 503"), "{answer:?}");
    for other in [&b"SSH-2.0-OpenSSH 200\r\n"[..], b""] {
        assert_eq!(get(&serve_response(other).await).await.open, Some(false));
    }
    assert!(answer.message.contains("/healthz "), "{answer:?}");
    assert!(!answer.message.contains("full"), "it may be a token");
    let mut nobody = good.clone();
    // Port 1 (tcpmux), on which no process listens.
    nobody.port = 1;
    assert_eq!(get(&nobody).await.open, Some(false));
}

#[tokio::test(start_paused = true)]
async fn http_gate_probe_retries_after_a_lost_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let lost = listener.accept().await.unwrap();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        }
        drop(lost);
    });
    let probe = CustomProbe::Http(Endpoint {
        address: "127.0.0.1".to_owned(),
        port,
        path: "/".to_owned(),
    });
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path()).unwrap();
    let (to, mut answers) = watch::channel(ProbeResults::new());
    tokio::spawn(follow(probe.clone(), root, None, to));
    let open = |known: &ProbeResults| known.get(&probe).and_then(|answer| answer.open);
    let closed = answers.wait_for(|known| open(known) == Some(false)).await;
    assert_eq!(closed.unwrap()[&probe].message, "no response within 3 s");
    let opened = answers.wait_for(|known| open(known) == Some(true));
    // The clock is paused, so that probes take no time on it.
    timeout(Duration::from_secs(600), opened)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn file_gate_is_probed_below_the_root_and_unit_gate_only_with_systemd() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path()).unwrap();
    let path = AbsPath::new("/licence").unwrap();
    let probe = || file(path.clone(), root.clone());
    assert_eq!(probe().await.open, Some(false));
    root.replace(&path, b"", 0o600).unwrap();
    assert_eq!(probe().await.open, Some(true));
    assert_eq!(unit("a.service", None).await.open, None);
    root.build_link(&AbsPath::new("/round").unwrap(), "round")
        .unwrap();
    let round = file(AbsPath::new("/round/key").unwrap(), root.clone()).await;
    assert!(round.message.contains("symbolic links"), "{round:?}");
}
