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

use super::{AgentError, Origin, Setup};
use crate::{
    admin::{self, Control, Question, Served},
    agent::{
        measure::{self, Signals},
        probe,
        report::{self, Outlets, Sources},
    },
    clock::Clock,
    config::{Admin, Job, Settings},
    metrics::Metrics,
    path::AbsPath,
    plan::Capabilities,
    readiness::Answers,
    root::{Root, RootError},
    shutdown::Tasks,
    status::{Mode, Status},
    systemd::{Notifier, Systemd},
};

/// The initial status.
pub(super) fn starting(setup: &Setup, capabilities: Capabilities) -> Status {
    if !capabilities.chown {
        tracing::info!("file owners are recorded only: this process lacks CAP_CHOWN");
    }
    let mode = match &setup.source {
        Origin::Cluster { .. } => Mode::Cluster,
        Origin::Directory(_) if capabilities.live => Mode::Machine,
        Origin::Directory(_) => Mode::Offline,
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
) -> watch::Receiver<Arc<Signals>> {
    let (to, signals) = watch::channel(Arc::new(Signals::default()));
    let disks = settings.readiness.disk_paths.clone();
    let units = Arc::new(Notify::new());
    if let Some(systemd) = systemd.clone() {
        let follow = measure::follow_units(systemd, Arc::clone(&units), tasks.token());
        tasks.spawn("units", follow);
    }
    let measured = measure::measure(root.clone(), systemd, disks, units, to, tasks.token());
    tasks.spawn("signals", measured);
    signals
}

/// Starts the probes for the administrator's own gates.
pub(super) fn probe(
    root: &Root,
    settings: watch::Receiver<Arc<Settings>>,
    systemd: Option<Systemd>,
    tasks: &Tasks,
) -> watch::Receiver<Answers> {
    let (to, answers) = watch::channel(Answers::new());
    let asking = probe::ask(root.clone(), systemd, settings, to, tasks.token());
    tasks.spawn("own gates", asking);
    answers
}

/// Queue length for requests; operators ask one at a time.
const QUESTIONS: usize = 4;

/// Both ends of the control socket's request queue.
///
/// If configs are not this agent's job, no requests are accepted.
pub(super) fn control(
    own_uid: u32,
    settings: &Settings,
) -> (Option<Control>, mpsc::Receiver<Question>) {
    let (to, asks) = mpsc::channel(QUESTIONS);
    let control = Some(Control::new(to, own_uid));
    (control.filter(|_| settings.does(Job::Config)), asks)
}

/// The admin port and the two sockets below the root. Clients that connect early wait until they
/// are served.
pub(super) struct Doors {
    /// The address of the port, bound or to be bound.
    pub(super) address: String,
    port: Result<TcpListener, Admin>,
    status: UnixListener,
    control: UnixListener,
}

/// Binds the port and the sockets, which can fail.
pub(super) fn bind(root: &Root, settings: &Settings) -> Result<Doors, AgentError> {
    let (port, address) = bind_port(settings.admin)?;
    Ok(Doors {
        address,
        port,
        status: bind_status(root)?,
        control: bind_control(root)?,
    })
}

/// If a configured address is in use, binding is retried later: a program that occupies a port must
/// not prevent the machine from being managed.
fn bind_port(chosen: Admin) -> Result<(Result<TcpListener, Admin>, String), AgentError> {
    let port = match admin::bind(chosen) {
        Ok(port) => port,
        Err(error) => {
            let at = error.taken().ok_or(error)?;
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
    let socket = AbsPath::new(admin::SOCKET)?;
    if let Some(dir) = socket.parent() {
        root.make_dirs(&dir, 0o755).map_err(AgentError::Socket)?;
    }
    asynchronous(root.bind_unix(&socket, admin::SOCKET_MODE))
}

fn bind_control(root: &Root) -> Result<UnixListener, AgentError> {
    let socket = AbsPath::new(admin::CONTROL_SOCKET)?;
    asynchronous(root.bind_unix_private(&socket, admin::CONTROL_MODE))
}

fn asynchronous(bound: Result<BlockingListener, RootError>) -> Result<UnixListener, AgentError> {
    let listener = bound.map_err(AgentError::Socket)?;
    let asynchronous = listener
        .set_nonblocking(true)
        .and_then(|()| UnixListener::from_std(listener));
    asynchronous.map_err(|e| AgentError::System("serve a socket", e))
}

impl Doors {
    /// Starts serving. The status must have been published, so that clients never get a
    /// placeholder.
    pub(super) fn open(self, served: Served, control: Option<Control>, tasks: &Tasks) {
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
    from: Sources,
    status: watch::Sender<Arc<Status>>,
    metrics: Metrics,
    notifier: Arc<Notifier>,
    tasks: &Tasks,
) {
    let to = Outlets {
        status,
        metrics,
        clock: Clock::system(),
    };
    report::publish(&from, &to);
    let told = AtomicBool::new(false);
    let tell = move |status: &Status, started: bool| {
        if started && !told.swap(true, Ordering::Relaxed) {
            notifier.ready();
        }
        notifier.status(&status.summary());
    };
    tasks.spawn("report", report::report(from, to, tasks.token(), tell));
}
