//! Runs the probes of the administrator's own gates.

use std::{collections::BTreeSet, pin::pin, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::readiness::{CustomProbe, Endpoint, ProbeResult, ProbeResults};
use crate::{
    abs_path::AbsPath,
    error_chain::chain,
    rootfs::Root,
    settings::Settings,
    systemd::{LoadState, Systemd},
};

/// Probe interval, same as a kubelet's default for containers.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// A probe without a result after this time counts as closed. It continues to run, because a probe
/// of an unresponsive file system may block forever, and must not be started again every ten
/// seconds.
const PROBE_RESULT_TIMEOUT: Duration = Duration::from_secs(3);

/// Units and HTTP probes are cancelled after this time and tried again: a server that lost the
/// request never responds to it, but may respond to the next one. A service manager that reloads
/// its units is unresponsive for seconds.
const PROBE_CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum length of the HTTP status line in bytes.
const MAX_STATUS_LINE_BYTES: usize = 128;

/// Runs the probes that the settings declare, until `stop`.
pub async fn run_probes(
    root: Root,
    systemd: Option<Systemd>,
    mut settings: watch::Receiver<Arc<Settings>>,
    to: watch::Sender<ProbeResults>,
    stop: CancellationToken,
) {
    loop {
        let probes = wanted(&settings.borrow_and_update());
        to.send_if_modified(|known| {
            let before = known.len();
            known.retain(|probe, _| probes.contains(probe));
            known.len() != before
        });
        // Cancelled with the round: probes are read-only.
        let mut asking = JoinSet::new();
        for probe in probes.clone() {
            asking.spawn(follow(probe, root.clone(), systemd.clone(), to.clone()));
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                // Cancel-safe: a change stays marked as unseen.
                changed = settings.changed() => if changed.is_err() { return },
            }
            if wanted(&settings.borrow_and_update()) != probes {
                break;
            }
        }
    }
}

fn wanted(settings: &Settings) -> BTreeSet<CustomProbe> {
    let gates = settings.readiness.policy.own.iter();
    let probes = gates.map(|gate| gate.probe.clone());
    probes.filter(CustomProbe::is_asked).collect()
}

async fn follow(
    probe: CustomProbe,
    root: Root,
    systemd: Option<Systemd>,
    to: watch::Sender<ProbeResults>,
) {
    let tell = |answer: ProbeResult| {
        to.send_if_modified(|known| {
            let differs = known.get(&probe) != Some(&answer);
            if differs {
                known.insert(probe.clone(), answer);
            }
            differs
        });
    };
    loop {
        let mut answer = pin!(answer(&probe, &root, systemd.as_ref()));
        match timeout(PROBE_RESULT_TIMEOUT, answer.as_mut()).await {
            Ok(answer) => tell(answer),
            Err(_) => {
                tell(silent());
                tell(answer.await);
            }
        }
        sleep(PROBE_INTERVAL).await;
    }
}

async fn answer(probe: &CustomProbe, root: &Root, systemd: Option<&Systemd>) -> ProbeResult {
    match probe {
        CustomProbe::Unit(name) => limited(unit(name, systemd)).await,
        CustomProbe::Http(endpoint) => limited(get(endpoint)).await,
        CustomProbe::File(path) => file(path.clone(), root.clone()).await,
        CustomProbe::TaintAbsent(_) => unknown("taken from the observed Node"),
    }
}

/// Cancel-safe: probes are read-only.
async fn limited(asked: impl Future<Output = ProbeResult>) -> ProbeResult {
    timeout(PROBE_CANCEL_TIMEOUT, asked)
        .await
        .unwrap_or_else(|_| silent())
}

/// The message is the same however long it takes, since the state does not change.
fn silent() -> ProbeResult {
    closed(format!(
        "no response within {} s",
        PROBE_RESULT_TIMEOUT.as_secs()
    ))
}

fn open(message: impl Into<String>) -> ProbeResult {
    ProbeResult {
        open: Some(true),
        message: message.into(),
    }
}

fn closed(message: impl Into<String>) -> ProbeResult {
    ProbeResult {
        open: Some(false),
        message: message.into(),
    }
}

fn unknown(message: impl Into<String>) -> ProbeResult {
    ProbeResult {
        open: None,
        message: message.into(),
    }
}

async fn unit(name: &str, systemd: Option<&Systemd>) -> ProbeResult {
    let Some(systemd) = systemd else {
        return unknown("no service manager");
    };
    match systemd.unit(name).await {
        Err(error) => unknown(format!(
            "failed to query the service manager: {}",
            chain(&error)
        )),
        Ok(unit) if unit.load == LoadState::NotFound => closed(format!("unit {name} not found")),
        Ok(unit) if unit.active.is_up() => open(format!("{name} is active")),
        Ok(unit) => closed(format!("{name} is {}", unit.active.as_str())),
    }
}

async fn file(path: AbsPath, root: Root) -> ProbeResult {
    let shown = path.clone();
    // stat on an unresponsive network file system may block for a long time or forever.
    let looked = tokio::task::spawn_blocking(move || root.stat(&path)).await;
    match looked {
        Ok(Ok(Some(_))) => open(format!("{shown} exists")),
        Ok(Ok(None)) => closed(format!("{shown} not found")),
        Ok(Err(error)) => closed(chain(&error)),
        Err(_) => unknown(format!("{shown} was not checked")),
    }
}

async fn get(endpoint: &Endpoint) -> ProbeResult {
    let shown = endpoint.without_query();
    match first_line(endpoint).await {
        Err(error) => closed(format!("{shown}: {error}")),
        Ok(line) => match line.split(' ').nth(1) {
            Some("200") if line.starts_with("HTTP/1.") => open(format!("{shown} returned 200")),
            Some(code) if line.starts_with("HTTP/1.") => closed(format!("{shown} returned {code}")),
            _ => closed(format!("{shown} did not return an HTTP/1 response")),
        },
    }
}

/// HTTP/1.0. The connection is closed after the status line, because the rest is not used.
async fn first_line(endpoint: &Endpoint) -> std::io::Result<String> {
    let Endpoint {
        address,
        port,
        path,
    } = endpoint;
    let mut stream = TcpStream::connect((address.as_str(), *port)).await?;
    let question = format!(
        "GET {path} HTTP/1.0\r\nHost: {}\r\nUser-Agent: machinist\r\nConnection: close\r\n\r\n",
        match address.contains(':') {
            true => format!("[{address}]:{port}"),
            false => format!("{address}:{port}"),
        }
    );
    stream.write_all(question.as_bytes()).await?;
    let mut line = Vec::with_capacity(MAX_STATUS_LINE_BYTES);
    let mut limited = stream.take(MAX_STATUS_LINE_BYTES as u64);
    while !line.contains(&b'\n') && limited.read_buf(&mut line).await? > 0 {}
    let text = String::from_utf8_lossy(&line).into_owned();
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Starts a server that sends `answer` to every client; returns its endpoint.
    async fn says(answer: &'static [u8]) -> Endpoint {
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
    async fn only_a_200_opens_and_what_else_is_answered_is_named() {
        let good = says(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        assert_eq!(get(&good).await.open, Some(true));
        let ill = says(b"HTTP/1.0 503 Service Unavailable\r\n\r\n").await;
        let answer = get(&ill).await;
        assert_eq!(answer.open, Some(false));
        assert!(answer.message.ends_with("returned 503"), "{answer:?}");
        for other in [&b"SSH-2.0-OpenSSH 200\r\n"[..], b""] {
            assert_eq!(get(&says(other).await).await.open, Some(false));
        }
        assert!(answer.message.contains("/healthz "), "{answer:?}");
        assert!(!answer.message.contains("full"), "it may be a token");
        let mut nobody = good.clone();
        // Port 1 (tcpmux), on which no process listens.
        nobody.port = 1;
        assert_eq!(get(&nobody).await.open, Some(false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_loses_a_question_is_asked_anew() {
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
    async fn a_file_is_looked_for_below_the_root_and_a_unit_only_where_there_are_units() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        let path = AbsPath::new("/licence").unwrap();
        let look = || file(path.clone(), root.clone());
        assert_eq!(look().await.open, Some(false));
        root.replace(&path, b"", 0o600).unwrap();
        assert_eq!(look().await.open, Some(true));
        assert_eq!(unit("a.service", None).await.open, None);
        root.build_link(&AbsPath::new("/round").unwrap(), "round")
            .unwrap();
        let round = file(AbsPath::new("/round/key").unwrap(), root.clone()).await;
        assert!(round.message.contains("symbolic links"), "{round:?}");
    }
}
