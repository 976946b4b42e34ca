//! The port of `machinist controller`, with the real binary.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use super::{harness::Lab, objects::POOLS};

/// A process that is killed when this is dropped.
struct Process {
    child: Child,
    address: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(lab: &Lab, listen: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_machinist"));
    command.args(["controller", "--listen", listen]).env_clear();
    command.env("KUBECONFIG", lab.server.kubeconfig());
    command
}

/// Starts the controller on a free port, and waits until it listens.
async fn start(lab: &Lab) -> Process {
    let mut command = command(lab, "127.0.0.1:0");
    let begun = tokio::task::spawn_blocking(move || {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address =
            lines.find_map(|line| Some(line.unwrap().split_once("http://")?.1.to_owned()));
        // The pipe is read to its end, so that the process can write.
        std::thread::spawn(move || lines.for_each(drop));
        let address = address.unwrap();
        Process { child, address }
    });
    begun.await.unwrap()
}

/// The status code and the text of a response.
async fn get(process: &Process, path: &str) -> (u16, String) {
    let (address, path) = (process.address.clone(), path.to_owned());
    let fetched = tokio::task::spawn_blocking(move || {
        let mut connection = TcpStream::connect(address).unwrap();
        write!(connection, "GET {path} HTTP/1.1\r\nHost: it\r\n\r\n").unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).unwrap();
        let code = response.split(' ').nth(1).unwrap().parse().unwrap();
        (code, response)
    });
    fetched.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_port_serves_probes_and_metrics() {
    let lab = Lab::with_nodes(&["a"]).await;
    // Without pools the leader does not know what it may do.
    let missing = format!("GET {POOLS}");
    for _ in 0..100 {
        let failure = crate::cluster::server::InjectedFailure::Code(503, "ServiceUnavailable");
        lab.server.trouble(&missing, failure);
    }
    let process = start(&lab).await;
    lab.server
        .until("the leadership", |server| {
            !server.requests_starting(&missing).is_empty()
        })
        .await;
    let (code, text) = get(&process, "/readyz").await;
    assert_eq!(code, 503, "{text}");
    for path in ["/healthz", "/livez"] {
        let (code, text) = get(&process, path).await;
        assert!(code == 200 && text.ends_with("\r\n\r\nok\n"), "{text}");
    }
    lab.server.stop_failing();
    lab.server
        .until("a grant", |_| !lab.granted_nodes().is_empty())
        .await;
    let (code, text) = get(&process, "/readyz").await;
    assert!(code == 200 && text.ends_with("leader\n"), "{text}");
    let (code, text) = get(&process, "/metrics").await;
    assert_eq!(code, 200);
    assert!(text.contains("application/openmetrics-text"), "{text}");
    assert!(
        text.contains("\nmachinist_controller_is_leader 1\n"),
        "{text}"
    );
    assert_eq!(get(&process, "/status").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_in_use_ends_the_process_with_the_flag_and_the_address() {
    let lab = Lab::with_nodes(&[]).await;
    let first = start(&lab).await;
    let mut command = command(&lab, &first.address);
    let ended = tokio::task::spawn_blocking(move || command.output().unwrap());
    let ended = ended.await.unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let text = String::from_utf8(ended.stderr).unwrap();
    let place = format!("cannot listen on {} (--listen)", first.address);
    assert!(text.contains(&place), "{text}");
}
