use std::{net::SocketAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener},
    sync::watch,
};

use super::*;
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_rootfs::Root;
use machinist_status::{
    Mode, Status,
    metrics::Metrics,
    readiness::{Gate, GateEffect, GateName, Gates},
    settings::AdminSettings,
};

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn gates(closed: Option<GateEffect>) -> Gates {
    let gate = |name: GateName| Gate {
        name: name.into(),
        open: name != GateName::DiskSpace || closed.is_none(),
        effect: closed.unwrap_or(GateEffect::Warn),
        since: now(),
        reason: Reason::DiskSpaceLow,
        message: "about the disk".to_owned(),
    };
    [GateName::DiskSpace, GateName::TimeSync]
        .map(gate)
        .into_iter()
        .collect()
}

fn judged(closed: Option<GateEffect>) -> Arc<Status> {
    let mut status = Status::starting("/", Mode::Machine, now());
    status.gates = gates(closed);
    status.ready = status.gates.ready();
    Arc::new(status)
}

struct Agent {
    address: SocketAddr,
    status: watch::Sender<Arc<Status>>,
    served: AppState,
    _pulse: Heartbeat,
    stop: CancellationToken,
}

/// A real server on its own port.
async fn agent() -> Agent {
    let starting = Arc::new(Status::starting("/", Mode::Machine, now()));
    let (status, receiver) = watch::channel(starting);
    let (_pulse, liveness) = heartbeat(Duration::from_secs(60));
    let metrics = Metrics::new(receiver.clone());
    let served = AppState::new(receiver, liveness, metrics);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(serve(listener, port_routes(served.clone()), stop.clone()));
    Agent {
        address,
        status,
        served,
        _pulse,
        stop,
    }
}

/// The complete answer: the server closes the connection after it.
async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let ask = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, body.to_owned())
}

#[tokio::test]
async fn probes_agree_with_the_status() {
    let agent = agent().await;
    let at = agent.address;
    assert_eq!(get(at, "/readyz").await, (503, "starting\n".to_owned()));
    assert_eq!(
        get(at, "/readyz/agent").await,
        (503, "starting\n".to_owned())
    );
    for path in ["/livez", "/healthz"] {
        assert_eq!(get(at, path).await, (200, "ok\n".to_owned()));
    }
    let held = "not ready: DiskSpace (about the disk)\n";
    let warned = "ready; warnings: DiskSpace (about the disk)\n";
    for (closed, code, body) in [
        (None, 200, "ready\n"),
        (Some(GateEffect::Warn), 200, warned),
        (Some(GateEffect::Hold), 503, held),
    ] {
        agent.status.send_replace(judged(closed));
        assert_eq!(get(at, "/readyz").await, (code, body.to_owned()));
        assert_eq!(get(at, "/readyz/agent").await, (200, "ok\n".to_owned()));
    }
    let (code, body) = get(at, "/readyz?verbose").await;
    let lines: Vec<_> = body.lines().collect();
    assert_eq!(code, 503);
    assert_eq!(lines[0], "[-]DiskSpace DiskSpaceLow: about the disk");
    assert_eq!(lines[1], "[+]TimeSync DiskSpaceLow: about the disk");
    assert_eq!(lines[2], held.trim_end());
    let (code, page) = get(at, "/metrics").await;
    assert_eq!(code, 200);
    assert!(
        page.contains("machinist_gate_open{gate=\"DiskSpace\"} 0"),
        "{page}"
    );
    assert_eq!(get(at, "/status").await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn liveness_check_passes_for_an_idle_loop_and_fails_for_a_stuck_one() {
    let (pulse, liveness) = heartbeat(Duration::from_secs(60));
    assert_eq!(liveness.check().await, Ok(()));
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert!(liveness.check().await.is_err(), "no response");
    let idle = tokio::spawn(async move {
        loop {
            pulse.wait_for_probe().await;
            pulse.record_beat();
        }
    });
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert_eq!(liveness.check().await, Ok(()));
    idle.abort();
    assert!(idle.await.is_err());
    assert!(
        liveness.check().await.is_err(),
        "a loop that has ended is not alive"
    );
}

#[tokio::test]
async fn a_taken_default_port_falls_back_and_a_configured_port_fails() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = taken.local_addr().unwrap();
    let chosen = AdminSettings {
        listen,
        chosen: true,
    };
    assert!(matches!(bind(chosen), Err(BindError::Chosen(at, ..)) if at == listen));
    let default = AdminSettings {
        listen,
        chosen: false,
    };
    let other = bind(default).unwrap().local_addr().unwrap();
    assert!(other.port() > listen.port() && other.ip() == listen.ip());
}

#[tokio::test]
async fn the_status_is_served_on_the_socket_below_the_root() {
    let directory = tempfile::tempdir().unwrap();
    let root = Root::open(directory.path()).unwrap();
    let asking = root.clone();
    let nobody = tokio::task::spawn_blocking(move || fetch_status(&asking))
        .await
        .unwrap();
    assert!(
        matches!(nobody, Err(AgentClientError::NoAgent(_))),
        "{nobody:?}"
    );

    let agent = agent().await;
    agent.status.send_replace(judged(Some(GateEffect::Hold)));
    root.make_dirs(&"/run/machinist".parse().unwrap(), 0o755)
        .unwrap();
    let socket: AbsPath = STATUS_SOCKET.parse().unwrap();
    let listener = root.bind_unix(&socket, STATUS_SOCKET_MODE).unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = UnixListener::from_std(listener).unwrap();
    let routes = status_routes(agent.served.clone());
    tokio::spawn(serve(listener, routes, agent.stop.clone()));
    let asking = root.clone();
    let answer = tokio::task::spawn_blocking(move || fetch_status(&asking))
        .await
        .unwrap();
    let status: Status = serde_json::from_str(&answer.unwrap()).unwrap();
    assert_eq!(&status, &**agent.status.borrow());
}

#[tokio::test]
async fn a_silent_client_does_not_block_shutdown() {
    let agent = agent().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(serve(
        listener,
        port_routes(agent.served.clone()),
        agent.stop.clone(),
    ));
    let _silent = TcpStream::connect(address).await.unwrap();
    let mut held = TcpStream::connect(address).await.unwrap();
    held.write_all(b"GET /livez HTT").await.unwrap();
    assert_eq!(get(address, "/livez").await.0, 200);
    agent.stop.cancel();
    tokio::time::timeout(Duration::from_secs(60), serving)
        .await
        .expect("the server does not end")
        .unwrap();
}
