//! What the agent shows of itself: the status, the probes, the word to the service manager.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::{
    net::UnixListener,
    sync::{Notify, watch},
};

use super::{AgentError, Setup};
use crate::{
    admin::{self, Served},
    clock::Clock,
    config::Settings,
    path::AbsPath,
    plan::Capabilities,
    readiness::measure::{self, Signals},
    readiness::report::{self, Outlets, Sources},
    root::Root,
    shutdown::Tasks,
    status::{Mode, Status},
    systemd::{Notifier, Systemd},
};

/// The status before anything was looked at.
pub(super) fn starting(setup: &Setup, capabilities: Capabilities) -> Status {
    if !capabilities.chown {
        tracing::info!("owners are recorded, not set: this process may not change them");
    }
    let mode = if capabilities.live {
        Mode::Machine
    } else {
        Mode::Offline
    };
    let root = setup.root.display().display().to_string();
    Status {
        source: format!("dir:{}", setup.source.shown),
        ..Status::starting(root, mode, Clock::system().now())
    }
}

/// Starts to measure the host.
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

/// Opens the port and the socket below the root. Returns the port's address as it is reached.
pub(super) async fn serve(
    root: &Root,
    settings: &Settings,
    tasks: &Tasks,
    served: Served,
) -> Result<String, AgentError> {
    let port = admin::bind(settings.admin).await?;
    let address = port
        .local_addr()
        .map_err(|e| AgentError::System("read the port's address", e))?;
    tracing::info!("probes and metrics at http://{address}");
    let socket = AbsPath::new(admin::SOCKET)?;
    if let Some(dir) = socket.parent() {
        root.make_dirs(&dir, 0o755).map_err(AgentError::Socket)?;
    }
    let listener = root
        .bind_unix(&socket, admin::SOCKET_MODE)
        .map_err(AgentError::Socket)?;
    let asynchronous = listener
        .set_nonblocking(true)
        .and_then(|()| UnixListener::from_std(listener));
    let listener = asynchronous.map_err(|e| AgentError::System("serve the status socket", e))?;
    tasks.spawn(
        "port",
        admin::serve(port, admin::port_routes(served.clone()), tasks.token()),
    );
    tasks.spawn(
        "socket",
        admin::serve(listener, admin::socket_routes(served), tasks.token()),
    );
    Ok(address.to_string())
}

/// Publishes the status, and tells systemd: ready once the source was read, and one sentence always.
pub(super) fn publish(from: Sources, to: Outlets, notifier: Arc<Notifier>, tasks: &Tasks) {
    let told = AtomicBool::new(false);
    let tell = move |status: &Status, started: bool| {
        if started && !told.swap(true, Ordering::Relaxed) {
            notifier.ready();
        }
        notifier.status(&status.summary());
    };
    tasks.spawn("report", report::report(from, to, tasks.token(), tell));
}
