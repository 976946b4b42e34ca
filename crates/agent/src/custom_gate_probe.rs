//! Runs the probes of custom gates.

use std::{collections::BTreeSet, pin::pin, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_rootfs::Root;
use machinist_status::readiness::{CustomProbe, Endpoint, ProbeResult, ProbeResults};
use machinist_status::settings::Settings;
use machinist_systemd::{LoadState, Systemd};

/// Probe interval, same as a kubelet's default for containers.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// A probe without a result after this time counts as closed. It continues to run, because a probe of an
/// unresponsive file system may block forever, and must not be started again every ten seconds.
const PROBE_RESULT_TIMEOUT: Duration = Duration::from_secs(3);

/// Units and HTTP probes are cancelled after this time and tried again: a server that lost the request never
/// responds to it, but may respond to the next one. A service manager that reloads its units is unresponsive for
/// seconds.
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
    let gates = settings.readiness.policy.custom_gates.iter();
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
mod tests;
