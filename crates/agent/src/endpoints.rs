//! Serves the agent's status, probes and service manager notifications.

use std::{
    os::unix::net::UnixListener as BlockingListener,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    net::{TcpListener, UnixListener},
    sync::{Notify, mpsc, watch},
};

use super::{AgentError, AgentSetup, ConfigOrigin};
use crate::{
    admin::{self, AppState, ControlHandle, ControlRequest},
    custom_gate_probe,
    host_sampler::{self, HostSignals},
    reported_updates::ReportedUpdates,
    reporter::{self, ReporterInputs, ReporterOutputs},
};
use machinist_base::{abs_path::AbsPath, clock::Clock, shutdown::Tasks};
use machinist_plan::Capabilities;
use machinist_rootfs::{Root, RootError};
use machinist_status::{
    Mode, Status,
    metrics::Metrics,
    readiness::ProbeResults,
    settings::{AdminSettings, AgentRole, Settings},
};
use machinist_systemd::{Notifier, Systemd};

/// A channel of the status, with the initial one.
pub(super) fn status_channel(
    setup: &AgentSetup,
    capabilities: Capabilities,
) -> (watch::Sender<Arc<Status>>, watch::Receiver<Arc<Status>>) {
    watch::channel(Arc::new(initial_status(setup, capabilities)))
}

fn initial_status(setup: &AgentSetup, capabilities: Capabilities) -> Status {
    if !capabilities.chown {
        tracing::info!("file owners are recorded only: this process lacks CAP_CHOWN");
    }
    let mode = match &setup.source {
        ConfigOrigin::Cluster { .. } => Mode::Cluster,
        ConfigOrigin::Directory(_) if capabilities.live => Mode::Machine,
        ConfigOrigin::Directory(_) => Mode::Offline,
    };
    let root = setup.root.display().display().to_string();
    Status {
        source: setup.source.shown(),
        ..Status::starting(root, mode, Clock::system().now())
    }
}

/// Starts measuring the host.
pub(super) fn measure(
    root: &Root,
    settings: &Settings,
    systemd: Option<Systemd>,
    tasks: &Tasks,
) -> watch::Receiver<Arc<HostSignals>> {
    let (to, signals) = watch::channel(Arc::new(HostSignals::default()));
    let disks = settings.readiness.disk_paths.clone();
    let units = Arc::new(Notify::new());
    if let Some(systemd) = systemd.clone() {
        let follow = host_sampler::follow_units(systemd, Arc::clone(&units), tasks.token());
        tasks.spawn("units", follow);
    }
    let measured = host_sampler::measure(root.clone(), systemd, disks, units, to, tasks.token());
    tasks.spawn("signals", measured);
    signals
}

/// Starts the probes of custom gates.
pub(super) fn probe(
    root: &Root,
    settings: watch::Receiver<Arc<Settings>>,
    systemd: Option<Systemd>,
    tasks: &Tasks,
) -> watch::Receiver<ProbeResults> {
    let (to, answers) = watch::channel(ProbeResults::new());
    let asking = custom_gate_probe::run_probes(root.clone(), systemd, settings, to, tasks.token());
    tasks.spawn("custom gates", asking);
    answers
}

/// Queue length for requests; operators ask one at a time.
const REQUEST_QUEUE_LEN: usize = 4;

/// Both ends of the control socket's request queue.
///
/// If `config` is not a role of this agent, no requests are accepted.
pub(super) fn control(
    own_uid: u32,
    settings: &Settings,
) -> (Option<ControlHandle>, mpsc::Receiver<ControlRequest>) {
    let (to, asks) = mpsc::channel(REQUEST_QUEUE_LEN);
    let control = Some(ControlHandle::new(to, own_uid));
    (
        control.filter(|_| settings.has_role(AgentRole::Config)),
        asks,
    )
}

/// The admin port and the two sockets below the root. Clients that connect early wait until they
/// are served.
pub(super) struct Listeners {
    port: Result<TcpListener, AdminSettings>,
    status: UnixListener,
    control: UnixListener,
}

/// Binds the port and the sockets, which can fail, and publishes the port's address.
pub(super) fn bind(
    root: &Root,
    settings: &Settings,
    status: &watch::Sender<Arc<Status>>,
) -> Result<Listeners, AgentError> {
    let (port, address) = bind_port(settings.admin)?;
    status.send_modify(|status| Arc::make_mut(status).admin.clone_from(&address));
    Ok(Listeners {
        port,
        status: bind_status(root)?,
        control: bind_control(root)?,
    })
}

/// If a configured address is in use, binding is retried later: a program that occupies a port must
/// not prevent the machine from being managed.
fn bind_port(
    chosen: AdminSettings,
) -> Result<(Result<TcpListener, AdminSettings>, String), AgentError> {
    let port = match admin::bind(chosen) {
        Ok(port) => port,
        Err(error) => {
            let at = error.occupied_address().ok_or(error)?;
            tracing::warn!(
                "cannot serve probes and metrics: another program is listening on {at}; retrying"
            );
            return Ok((Err(chosen), at.to_string()));
        }
    };
    let at = port
        .local_addr()
        .map_err(|e| AgentError::System("read the port's address", e))?;
    tracing::info!("serving probes and metrics at http://{at}");
    Ok((Ok(port), at.to_string()))
}

fn bind_status(root: &Root) -> Result<UnixListener, AgentError> {
    let socket = AbsPath::new(admin::STATUS_SOCKET)?;
    if let Some(dir) = socket.parent() {
        root.make_dirs(&dir, 0o755).map_err(AgentError::Socket)?;
    }
    asynchronous(root.bind_unix(&socket, admin::STATUS_SOCKET_MODE))
}

fn bind_control(root: &Root) -> Result<UnixListener, AgentError> {
    let socket = AbsPath::new(admin::CONTROL_SOCKET)?;
    asynchronous(root.bind_unix_private(&socket, admin::CONTROL_SOCKET_MODE))
}

fn asynchronous(bound: Result<BlockingListener, RootError>) -> Result<UnixListener, AgentError> {
    let listener = bound.map_err(AgentError::Socket)?;
    let asynchronous = listener
        .set_nonblocking(true)
        .and_then(|()| UnixListener::from_std(listener));
    asynchronous.map_err(|e| AgentError::System("serve a socket", e))
}

impl Listeners {
    /// Starts serving. The status must have been published, so that clients never get a
    /// placeholder.
    pub(super) fn open(self, served: AppState, control: Option<ControlHandle>, tasks: &Tasks) {
        let (port, routes, stop) = (self.port, admin::port_routes(served.clone()), tasks.token());
        tasks.spawn("port", async move {
            let port = match port {
                Ok(port) => port,
                Err(chosen) => tokio::select! {
                    () = stop.cancelled() => return,
                    // Cancel-safe: connections that were not accepted are closed with the listener.
                    port = admin::wait(chosen) => port,
                },
            };
            admin::serve(port, routes, stop).await;
        });
        tasks.spawn(
            "status socket",
            admin::serve(
                self.status,
                admin::status_routes(served.clone()),
                tasks.token(),
            ),
        );
        tasks.spawn(
            "control socket",
            admin::serve(
                self.control,
                admin::control_routes(served, control),
                tasks.token(),
            ),
        );
    }
}

/// Publishes the status, for the first time before this returns, and notifies systemd: a status
/// line on every change, and readiness once the source was read.
pub(super) fn publish(
    from: ReporterInputs,
    status: watch::Sender<Arc<Status>>,
    metrics: Metrics,
    reported: ReportedUpdates,
    notifier: Arc<Notifier>,
    tasks: &Tasks,
) {
    let to = ReporterOutputs {
        status,
        metrics,
        clock: Clock::system(),
    };
    reporter::publish(&from, &to);
    let told = AtomicBool::new(false);
    let tell = move |status: &Status, started: bool| {
        if started && !told.swap(true, Ordering::Relaxed) {
            notifier.ready();
        }
        notifier.status(&status.summary());
    };
    let reporting = reporter::report(from, to, reported, tasks.token(), tell);
    tasks.spawn("report", reporting);
}
