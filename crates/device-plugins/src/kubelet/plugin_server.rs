//! One plugin server on its socket, from `bind` to the removal of the socket.

use std::{io, sync::Arc};

use tokio::{net::UnixListener, sync::watch};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use super::{
    api::{
        registration::PluginInfo, relay::device_plugin_server::DevicePluginServer, v1beta1 as api,
    },
    device_plugin::{DevicePluginService, MAX_REQUEST_BYTES, Streams, options},
    limited_incoming::{connections, incoming_limited},
    plugin_deps::PluginDeps,
    plugin_watcher_info::{PLUGINS_REGISTRY_DIR, registrar},
    socket_names::{found_path, socket_path},
};
use machinist_base::abs_path::{AbsPath, BadPath};
use machinist_device::ResourceName;
use machinist_rootfs::{Root, RootError};

/// Why a resource is not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum PluginServeError {
    /// Its socket has no valid path.
    #[error(transparent)]
    Name(#[from] BadPath),
    /// Its socket cannot be created.
    #[error(transparent)]
    Bind(#[from] RootError),
    /// The runtime cannot use the socket.
    #[error("failed to accept connections")]
    Listen(#[from] io::Error),
}

/// One server on its socket.
pub(super) struct PluginServer {
    pub(super) socket: AbsPath,
    pub(super) streams: watch::Receiver<Streams>,
    /// The options given to the kubelet, which reads them once.
    pub(super) options: api::DevicePluginOptions,
    stop: CancellationToken,
    root: Root,
}

impl Drop for PluginServer {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Err(error) = self.root.remove_file(&self.socket) {
            tracing::debug!(%error, "failed to remove an old socket; it stays until the next start");
        }
    }
}

impl PluginServer {
    /// Binds a socket for a Register call and serves on it.
    pub(super) fn serve(
        name: &ResourceName,
        number: u64,
        deps: &PluginDeps,
        stop: &CancellationToken,
    ) -> Result<Self, PluginServeError> {
        let (server, listener, plugin) = Self::bind(socket_path(name, number)?, name, deps, stop)?;
        let incoming = connections(listener);
        let router = Server::builder().add_service(plugin);
        let until = server.stop.clone().cancelled_owned();
        let serving = router.serve_with_incoming_shutdown(incoming, until);
        spawn(name, deps, serving);
        Ok(server)
    }

    /// Binds a socket for the plugin watcher and serves on it. Also returns a watch of the
    /// registration's result: the kubelet's text if it was refused.
    pub(super) fn serve_for_watcher(
        name: &ResourceName,
        deps: &PluginDeps,
        stop: &CancellationToken,
    ) -> Result<(Self, watch::Receiver<Option<String>>), PluginServeError> {
        // The kubelet creates it too, shortly after the sockets by which it is noticed.
        deps.root
            .make_dirs(&AbsPath::new(PLUGINS_REGISTRY_DIR)?, 0o750)?;
        let (server, listener, plugin) = Self::bind(found_path(name)?, name, deps, stop)?;
        let (refused, result) = watch::channel(None);
        let info = PluginInfo {
            r#type: "DevicePlugin".to_owned(),
            name: name.to_string(),
            // Empty means this socket.
            endpoint: String::new(),
            supported_versions: vec![api::VERSION.to_owned()],
        };
        let registrar = registrar(info, move |result| {
            refused.send_replace(result.err().map(str::to_owned));
        });
        // The watcher sends the socket's path where HTTP/2 has a host.
        let incoming = incoming_limited(listener, &deps.tasks, server.stop.clone(), |_| true);
        let router = Server::builder().add_service(plugin).add_service(registrar);
        let until = server.stop.clone().cancelled_owned();
        let serving = router.serve_with_incoming_shutdown(incoming, until);
        spawn(name, deps, serving);
        Ok((server, result))
    }

    fn bind(
        socket: AbsPath,
        name: &ResourceName,
        deps: &PluginDeps,
        stop: &CancellationToken,
    ) -> Result<(Self, UnixListener, DevicePluginServer<DevicePluginService>), PluginServeError>
    {
        // Only the kubelet, which runs as root, needs access.
        let listener = deps.root.bind_unix(&socket, 0o600)?;
        let stop = stop.child_token();
        let (streams, watched) = watch::channel(Streams::default());
        let plugin = DevicePluginService {
            resource: name.clone(),
            inventory: deps.inventory.clone(),
            allocators: deps.allocators.clone(),
            streams: Arc::new(streams),
            stop: stop.clone(),
            tasks: deps.tasks.clone(),
            status_writer: deps.status_writer.clone(),
        };
        // From here on dropping the session removes the socket, also after an error.
        let root = deps.root.clone();
        let server = Self {
            socket,
            streams: watched,
            options: options(&deps.inventory.borrow(), name),
            stop,
            root,
        };
        listener.set_nonblocking(true)?;
        let service = DevicePluginServer::new(plugin).max_decoding_message_size(MAX_REQUEST_BYTES);
        Ok((server, UnixListener::from_std(listener)?, service))
    }
}

fn spawn(
    name: &ResourceName,
    deps: &PluginDeps,
    serving: impl Future<Output = Result<(), tonic::transport::Error>> + Send + 'static,
) {
    let name = name.clone();
    deps.tasks.spawn("device plugin", async move {
        if let Err(error) = serving.await {
            tracing::warn!(resource = %name, "the device plugin server of {name} failed: {error}");
        }
    });
}
