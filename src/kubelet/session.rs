//! One server on its socket, from `bind` to the removal of its name.

use std::{io, sync::Arc};

use tokio::{net::UnixListener, sync::watch};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use super::{
    api::relay::device_plugin_server::DevicePluginServer,
    names::socket_path,
    plugin::Shared,
    server::{LARGEST_REQUEST, Plugin, Streams},
};
use crate::{
    device::ResourceName,
    path::{AbsPath, BadPath},
    root::{Root, RootError},
};

/// Why a resource is not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    /// Its socket has no valid path.
    #[error(transparent)]
    Name(#[from] BadPath),
    /// Its socket cannot be made.
    #[error(transparent)]
    Bind(#[from] RootError),
    /// The runtime does not take the socket.
    #[error("cannot wait for connections")]
    Listen(#[from] io::Error),
}

/// One server on its socket.
pub(super) struct Session {
    pub(super) socket: AbsPath,
    pub(super) streams: watch::Receiver<Streams>,
    stop: CancellationToken,
    root: Root,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Err(error) = self.root.remove_file(&self.socket) {
            tracing::debug!(%error, "an old socket stays until the next start");
        }
    }
}

impl Session {
    /// Binds the socket and answers on it from now on.
    pub(super) fn serve(
        name: &ResourceName,
        number: u64,
        shared: &Shared,
        stop: &CancellationToken,
    ) -> Result<Self, ServeError> {
        let socket = socket_path(name, number)?;
        // Only the kubelet, which is root, has business here.
        let listener = shared.root.bind_unix(&socket, 0o600)?;
        let stop = stop.child_token();
        let (streams, watched) = watch::channel(Streams::default());
        let plugin = Plugin {
            resource: name.clone(),
            inventory: shared.inventory.clone(),
            answerers: shared.answerers.clone(),
            streams: Arc::new(streams),
            stop: stop.clone(),
            tasks: shared.tasks.clone(),
            board: shared.board.clone(),
        };
        // From here on the name is removed with the session, whatever happens.
        let root = shared.root.clone();
        let session = Self {
            socket,
            streams: watched,
            stop,
            root,
        };
        listener.set_nonblocking(true)?;
        let incoming = UnixListenerStream::new(UnixListener::from_std(listener)?);
        let service = DevicePluginServer::new(plugin).max_decoding_message_size(LARGEST_REQUEST);
        let server = Server::builder().add_service(service);
        let (until, name) = (session.stop.clone().cancelled_owned(), name.clone());
        shared.tasks.spawn("device plugin", async move {
            if let Err(error) = server.serve_with_incoming_shutdown(incoming, until).await {
                tracing::warn!(resource = %name, "the server of {name} broke off: {error}");
            }
        });
        Ok(session)
    }
}
