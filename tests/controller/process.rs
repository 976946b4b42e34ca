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
    start_command(command(lab, "127.0.0.1:0")).await
}

async fn start_command(mut command: Command) -> Process {
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

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_is_reached_without_the_proxy_of_the_environment() {
    let lab = Lab::with_nodes(&["a"]).await;
    for value in ["http://127.0.0.1:1", "not a proxy"] {
        let mut command = command(&lab, "127.0.0.1:0");
        for name in [
            "HTTPS_PROXY",
            "https_proxy",
            "HTTP_PROXY",
            "http_proxy",
            "ALL_PROXY",
        ] {
            command.env(name, value);
        }
        let before = lab.server.requests().len();
        let _process = start_command(command).await;
        lab.server
            .until("requests", |server| server.requests().len() > before)
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_url_of_notifications_is_checked_at_the_start_and_never_logged() {
    let lab = Lab::with_nodes(&["a"]).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let missing = format!("{path}.missing");
    let ended = async |arguments: &[&str], environment: &[(&str, &str)]| {
        let mut command = command(&lab, "127.0.0.1:0");
        command.args(arguments).arg("-vv");
        command.envs(environment.iter().copied());
        let ended = tokio::task::spawn_blocking(move || command.output().unwrap());
        let ended = ended.await.unwrap();
        let text = String::from_utf8(ended.stderr).unwrap();
        assert!(
            !ended.status.success() && !text.contains("hidden"),
            "{text}"
        );
        text
    };
    let text = ended(&["--notify-url", "slack://hidden@a/b"], &[]).await;
    assert!(
        text.contains("--notify-url") && text.contains("expected https or http"),
        "{text}"
    );
    let text = ended(&[], &[("MACHINIST_NOTIFY_URL", "hidden")]).await;
    assert!(text.contains("expected https://HOST/PATH"), "{text}");
    std::fs::write(&path, "ftp://hidden/\n").unwrap();
    let text = ended(&["--notify-url-file", &path], &[]).await;
    assert!(
        text.contains(&path) && text.contains("expected https or http"),
        "{text}"
    );
    let text = ended(&["--notify-url-file", &missing], &[]).await;
    assert!(text.contains(&missing), "{text}");
    let both = ["--notify-url-file", &path, "--notify-url", "https://hidden"];
    assert!(ended(&both, &[]).await.contains("cannot be used with"));
    let authorities = [
        "--notify-url",
        "https://a/hidden",
        "--notify-ca-file",
        &path,
    ];
    assert!(ended(&authorities, &[]).await.contains("no certificate"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_away_is_logged_without_its_url() {
    let lab = Lab::with_nodes(&["a"]).await;
    let mut command = command(&lab, "127.0.0.1:0");
    let url = "http://127.0.0.1:1/very-secret";
    command.env("MACHINIST_NOTIFY_URL", url).arg("-vv");
    let text = tokio::task::spawn_blocking(move || {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut text = String::new();
        for line in lines {
            text += &line.unwrap();
            text.push('\n');
            if text.contains("notification RolloutStarted is sent again") {
                break;
            }
        }
        let _ = child.kill();
        let _ = child.wait();
        text
    });
    let text = text.await.unwrap();
    assert!(text.contains("cannot connect to the webhook"), "{text}");
    assert!(!text.contains("very-secret"), "{text}");
}
