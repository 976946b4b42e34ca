//! Serves two sockets: the registrar's, through which the kubelet finds the driver, and the driver's own.
//!
//! The driver's socket is served first: the kubelet dials it as soon as it has the registrar's answer. A starting
//! kubelet also dials sockets that already exist, so a kubelet restart needs no handling here.

use std::{io, time::Duration};

use tokio::{
    net::UnixListener,
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Server;

use super::{
    api::{health::dra_resource_health_server::DraResourceHealthServer, v1, v1beta1},
    grpc::DraService,
    status::DriverStatusWriter,
};
use crate::kubelet::{
    api::registration::PluginInfo,
    limited_incoming::incoming_limited,
    plugin_watcher_info::{PLUGINS_REGISTRY_DIR, registrar},
};
use machinist_base::{
    abs_path::{AbsPath, BadPath},
    backoff::{Backoff, jitter},
    error_chain::chain,
    shutdown::Tasks,
};
use machinist_device::{
    dra::DRIVER_NAME,
    registry::{DirWatch, WatchDepth, changed_or_timeout, watch_for},
};
use machinist_rootfs::{FileKind, Root, RootError};

/// The parent directory; each driver has a directory in it for its own socket.
const PLUGINS_DIR: &str = "/var/lib/kubelet/plugins";
const SOCKET_NAME: &str = "dra.sock";
/// The supported versions; the kubelet picks the newest that it knows.
const SUPPORTED_VERSIONS: [&str; 3] = [
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1alpha1.DRAResourceHealth",
];
/// Retry of a socket that could not be created.
const SOCKET_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(60));
/// A running kubelet registers the driver within a second or two after the socket exists.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(30);
/// How often directories are checked that cannot be watched.
const DIR_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Why the driver is not served.
#[derive(Debug, thiserror::Error)]
enum DriverServeError {
    #[error(transparent)]
    Name(#[from] BadPath),
    #[error(transparent)]
    Bind(#[from] RootError),
    #[error("failed to accept connections")]
    Listen(#[from] io::Error),
}

/// The task that owns the sockets.
pub(super) struct DriverSockets {
    root: Root,
    service: DraService,
    status: DriverStatusWriter,
    needed: watch::Receiver<bool>,
}

/// One socket with its server; closed and removed when dropped.
struct DriverSocket {
    root: Root,
    path: AbsPath,
    _stop: DropGuard,
}

impl Drop for DriverSocket {
    fn drop(&mut self) {
        if let Err(error) = self.root.remove_file(&self.path) {
            tracing::debug!(%error, "failed to remove an old socket; it stays until the next start");
        }
    }
}

impl DriverSockets {
    pub(super) const fn new(
        root: Root,
        service: DraService,
        status: DriverStatusWriter,
        needed: watch::Receiver<bool>,
    ) -> Self {
        Self {
            root,
            service,
            status,
            needed,
        }
    }

    pub(super) async fn run(mut self, tasks: Tasks) {
        let mut failures = 0;
        loop {
            self.status
                .registration(Some("no resource uses serve: dra"));
            if self.needed.wait_for(|needed| *needed).await.is_err() {
                return;
            }
            while *self.needed.borrow() {
                match self.serve(&tasks) {
                    Ok(sockets) => {
                        failures = 0;
                        self.wait_for_change(&sockets).await;
                    }
                    Err(error) => {
                        let why = chain(&error);
                        if self.status.registration(Some(&why)) {
                            tracing::warn!("failed to serve the DRA driver: {why}");
                        }
                        sleep(SOCKET_BACKOFF.wait(failures, jitter())).await;
                        failures = failures.saturating_add(1);
                    }
                }
            }
        }
    }

    /// Serves both sockets, the registrar's last; `None` while the kubelet has not created its plugin directory.
    fn serve(&self, tasks: &Tasks) -> Result<Option<[DriverSocket; 2]>, DriverServeError> {
        if !self.root.is_dir(&registry()?)? {
            let why = format!("kubelet not found: missing {PLUGINS_REGISTRY_DIR}");
            if self.status.registration(Some(&why)) {
                tracing::debug!("{why}");
            }
            return Ok(None);
        }
        let dir = directory()?;
        self.root.make_dirs(&dir, 0o750)?;
        let driver = dir.join(SOCKET_NAME)?;
        let router = Server::builder()
            .add_service(v1::dra_plugin_server::DraPluginServer::new(
                self.service.clone(),
            ))
            .add_service(v1beta1::dra_plugin_server::DraPluginServer::new(
                self.service.clone(),
            ))
            .add_service(DraResourceHealthServer::new(self.service.clone()));
        let asked = self.listen(&driver, router, tasks)?;
        self.status
            .registration(Some("waiting for the kubelet to register the driver"));
        let info = PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: DRIVER_NAME.to_owned(),
            endpoint: driver.to_string(),
            supported_versions: SUPPORTED_VERSIONS.map(str::to_owned).into(),
        };
        let status = self.status.clone();
        let registrar = registrar(info, move |result| {
            record_registration_result(&status, result)
        });
        let router = Server::builder().add_service(registrar);
        let found = self.listen(&registrar_socket()?, router, tasks)?;
        // In the order in which they are closed.
        Ok(Some([found, asked]))
    }

    fn listen(
        &self,
        path: &AbsPath,
        router: tonic::transport::server::Router,
        tasks: &Tasks,
    ) -> Result<DriverSocket, DriverServeError> {
        // Only the kubelet, which runs as root, needs access.
        let listener = self.root.bind_unix(path, 0o600)?;
        let stop = CancellationToken::new();
        let socket = DriverSocket {
            root: self.root.clone(),
            path: path.clone(),
            _stop: stop.clone().drop_guard(),
        };
        listener.set_nonblocking(true)?;
        let incoming = incoming_limited(
            UnixListener::from_std(listener)?,
            tasks,
            stop.clone(),
            |_| true,
        );
        tasks.spawn("driver socket", async move {
            let serving = router.serve_with_incoming_shutdown(incoming, stop.cancelled_owned());
            if let Err(error) = serving.await {
                tracing::warn!("a socket of the DRA driver failed: {error}");
            }
        });
        Ok(socket)
    }

    /// Waits until the sockets have to be closed or created: one was removed, the kubelet created its directory, or
    /// the driver is no longer needed.
    async fn wait_for_change(&mut self, sockets: &Option<[DriverSocket; 2]>) {
        let mut watch = None;
        let registered_by = Instant::now() + REGISTRATION_TIMEOUT;
        let mut state = self.status.subscribe();
        loop {
            let (Ok(registry), Ok(directory)) = (registry(), directory()) else {
                return;
            };
            let mut dirs = std::collections::BTreeMap::new();
            for dir in [&registry, &directory] {
                let (nearest, _) = watch_for(&self.root, dir);
                dirs.insert(nearest, WatchDepth::Names);
            }
            if watch.is_none() {
                watch = DirWatch::new(&self.root).ok();
            }
            let added = watch.as_mut().is_some_and(|watch| watch.set(&dirs));
            let is_unchanged = match sockets {
                Some(all) => all.iter().all(|one| self.is_there(&one.path)),
                None => !self.root.is_dir(&registry).unwrap_or(true),
            };
            if !is_unchanged {
                return;
            }
            if added {
                continue;
            }
            let late = sockets.is_some() && !state.borrow().registered;
            tokio::select! {
                // Safe to drop, all of them: the events stay pending.
                () = until_not_needed(&mut self.needed) => return,
                () = changed(&mut watch) => {}
                Ok(()) = state.changed() => {}
                () = sleep_until(registered_by), if late && Instant::now() < registered_by => {
                    tracing::warn!("the kubelet did not register the DRA driver {DRIVER_NAME} within {} s: it must be 1.32 or newer, with DynamicResourceAllocation", REGISTRATION_TIMEOUT.as_secs());
                }
            }
        }
    }

    fn is_there(&self, path: &AbsPath) -> bool {
        let stat = self.root.stat(path);
        stat.is_ok_and(|stat| stat.is_some_and(|stat| stat.kind == FileKind::Socket))
    }
}

/// Waits until a directory may have changed; without a watch it polls.
async fn changed(watch: &mut Option<DirWatch>) {
    if changed_or_timeout(watch, DIR_POLL_INTERVAL).await.is_err() {
        sleep(DIR_POLL_INTERVAL).await;
    }
}

/// Resolves when the driver is no longer needed; never, once the sender is dropped because the agent ends.
async fn until_not_needed(needed: &mut watch::Receiver<bool>) {
    if needed.wait_for(|needed| !*needed).await.is_err() {
        std::future::pending().await
    }
}

fn registry() -> Result<AbsPath, BadPath> {
    AbsPath::new(PLUGINS_REGISTRY_DIR)
}

fn directory() -> Result<AbsPath, BadPath> {
    AbsPath::new(format!("{PLUGINS_DIR}/{DRIVER_NAME}"))
}

fn registrar_socket() -> Result<AbsPath, BadPath> {
    AbsPath::new(format!("{PLUGINS_REGISTRY_DIR}/{DRIVER_NAME}-reg.sock"))
}

/// Records and logs the kubelet's answer to the registration.
fn record_registration_result(status: &DriverStatusWriter, result: Result<(), &str>) {
    match result {
        Ok(()) => {
            if status.registration(None) {
                tracing::info!("DRA driver {DRIVER_NAME} is registered");
            }
        }
        Err(error) => {
            let why = format!("the kubelet rejected the DRA driver {DRIVER_NAME}: {error}");
            // The kubelet retries by itself; an unchanged error is not logged again.
            if status.registration(Some(&why)) {
                tracing::warn!("{why}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dra_socket_paths_fit_into_a_unix_address() {
        for path in [
            registrar_socket().unwrap(),
            directory().unwrap().join(SOCKET_NAME).unwrap(),
        ] {
            assert!(path.as_str().len() <= 107, "{path}");
        }
    }
}
