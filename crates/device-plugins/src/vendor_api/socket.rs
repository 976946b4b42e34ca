//! The gRPC socket of one vendor and its access control.

use std::{io, pin::Pin, sync::Arc};

use tokio::{
    net::UnixListener,
    sync::{Notify, mpsc, watch},
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, transport::Server};

use super::{
    api::v1::{FromAgent, agent::vendor_server},
    connection::{VendorConnection, VendorPeer},
    lazy_messages::LazyFromVendor,
    limits::{
        CONNECTIONS_PER_SECOND, MAX_CONNECTIONS, MAX_VENDOR_MESSAGE_BYTES, REFUSED_CONNECTIONS,
        SEND_QUEUE_MESSAGES,
    },
    session::VendorSession,
    task_messages::VendorEvent,
};
use crate::places::Places;
use machinist_base::{
    abs_path::{AbsPath, BadPath},
    error_chain::chain,
    rate_limit::{LogOnce, RateLimiter},
    shutdown::Tasks,
};
use machinist_device::vendor_declaration::Vendor;
use machinist_rootfs::{Meta, ObjectIdentity, Root, RootError};

/// The parent of the vendors' directories.
pub const VENDORS_DIR: &str = "/run/machinist/vendors";
/// The name of a vendor's socket in its directory.
pub const SOCKET_NAME: &str = "agent.sock";

/// Bytes that may arrive before they are read; the kernel and HTTP/2 buffer no more for a vendor.
const CONNECTION_WINDOW_BYTES: u32 = 64 * 1024;
/// One session, and one stream that is being refused.
const MAX_CONCURRENT_STREAMS: u32 = 2;
/// HTTP/2's default frame size, in bytes.
const MAX_HEADER_BYTES: u32 = 16 * 1024;

/// Why a vendor has no socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum VendorServeError {
    /// Its path is invalid.
    #[error(transparent)]
    Name(#[from] BadPath),
    /// The directory or the socket cannot be created.
    #[error(transparent)]
    Make(#[from] RootError),
    /// The runtime cannot use the socket.
    #[error("failed to accept connections")]
    Listen(#[from] io::Error),
}

/// A socket that exists at its path until it is dropped.
#[derive(Debug)]
pub(super) struct VendorSocket {
    root: Root,
    path: AbsPath,
    stop: CancellationToken,
    /// The identity of the file that was created.
    ours: Option<ObjectIdentity>,
    /// Cancelled when accepting connections has ended unexpectedly.
    broken: CancellationToken,
}

impl Drop for VendorSocket {
    fn drop(&mut self) {
        self.stop.cancel();
        if self.is_ours()
            && let Err(error) = self.root.remove_file(&self.path)
        {
            tracing::debug!(%error, "failed to remove a vendor's old socket; it stays until the next start");
        }
    }
}

impl VendorSocket {
    /// Creates the vendor's directory and socket, and serves on it.
    ///
    /// Access control is the directory's mode: only root and the vendor's group can enter it, and a pod that mounts
    /// it thereby acts as the vendor. The directory stays when the socket is removed, since pods have it mounted.
    pub(super) fn serve(
        root: &Root,
        vendor: &watch::Receiver<Arc<Vendor>>,
        events: &mpsc::Sender<VendorEvent>,
        tasks: &Tasks,
        broke: &Arc<Notify>,
    ) -> Result<Self, VendorServeError> {
        let (name, group) = {
            let vendor = vendor.borrow();
            (vendor.name.clone(), vendor.group)
        };
        let dir = AbsPath::new(format!("{VENDORS_DIR}/{name}"))?;
        let above = AbsPath::new(VENDORS_DIR)?;
        root.make_dirs(&above, 0o755)?;
        root.make_dirs(&dir, 0o750)?;
        root.set_meta(
            &dir,
            &Meta {
                mode: 0o750,
                uid: 0,
                gid: group,
                chown: root.can_chown(),
            },
        )?;
        Self::at((root, dir.join(SOCKET_NAME)?), vendor, events, tasks, broke)
    }

    /// Serves on `path`; `broke` is notified when serving ends unexpectedly.
    pub(super) fn at(
        (root, path): (&Root, AbsPath),
        vendor: &watch::Receiver<Arc<Vendor>>,
        events: &mpsc::Sender<VendorEvent>,
        tasks: &Tasks,
        broke: &Arc<Notify>,
    ) -> Result<Self, VendorServeError> {
        let (name, group) = {
            let vendor = vendor.borrow();
            (vendor.name.clone(), vendor.group)
        };
        let listener = root.bind_unix_for(&path, 0o660, Some(group))?;
        let socket = Self {
            ours: root.stat(&path)?.map(|stat| stat.identity),
            root: root.clone(),
            path,
            stop: tasks.token(),
            broken: CancellationToken::new(),
        };
        listener.set_nonblocking(true)?;
        let door = VendorApiService {
            vendor: vendor.clone(),
            events: events.clone(),
            tasks: tasks.clone(),
            stop: socket.stop.clone(),
        };
        let listener = UnixListener::from_std(listener)?;
        let incoming = incoming(vendor.clone(), listener, socket.stop.clone(), tasks);
        let service = vendor_server::VendorServer::new(door)
            .max_decoding_message_size(MAX_VENDOR_MESSAGE_BYTES);
        let server = Server::builder()
            .initial_stream_window_size(CONNECTION_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .add_service(service)
            .serve_with_incoming(incoming);
        let (stop, broken) = (socket.stop.clone(), socket.broken.clone());
        let broke = Arc::clone(broke);
        tasks.spawn("vendor socket", async move {
            tokio::select! {
                // The accept loop may end first, by the same token.
                biased;
                // Safe to drop: connections end by the same token.
                () = stop.cancelled() => {}
                served = server => if !stop.is_cancelled() {
                    let why = served.map_or_else(|error| chain(&error), |()| "it ended".to_owned());
                    tracing::warn!(vendor = %name, "the socket of vendor {name} failed: {why}");
                    broken.cancel();
                    broke.notify_one();
                }
            }
        });
        Ok(socket)
    }

    /// The socket's directory.
    pub(super) fn directory(&self) -> Option<AbsPath> {
        self.path.parent()
    }

    /// Whether clients can connect: it still exists at its path, and connections are accepted.
    pub(super) fn is_open(&self) -> bool {
        self.is_ours() && !self.broken.is_cancelled()
    }

    /// If the path cannot be examined, it counts as unchanged.
    fn is_ours(&self) -> bool {
        let stat = self.root.stat(&self.path);
        stat.map_or(true, |stat| {
            stat.is_some_and(|stat| Some(stat.identity) == self.ours)
        })
    }
}

/// The accepted connections, limited in number and in rate. The others wait in the kernel's queue, which is bounded
/// itself.
fn incoming(
    vendor: watch::Receiver<Arc<Vendor>>,
    listener: UnixListener,
    stop: CancellationToken,
    tasks: &Tasks,
) -> impl Stream<Item = io::Result<VendorConnection>> + use<> {
    let (let_in, connections) = mpsc::channel(1);
    tasks.spawn("vendor connections", async move {
        tokio::select! {
            // Safe to drop: a connection that was not accepted is closed.
            () = stop.cancelled() => {}
            () = accept(&vendor, &listener, &let_in, &stop) => {}
        }
    });
    ReceiverStream::new(connections)
}

async fn accept(
    vendor: &watch::Receiver<Arc<Vendor>>,
    listener: &UnixListener,
    let_in: &mpsc::Sender<io::Result<VendorConnection>>,
    stop: &CancellationToken,
) {
    let places = Places::new(MAX_CONNECTIONS, REFUSED_CONNECTIONS);
    let mut rate = RateLimiter::new(CONNECTIONS_PER_SECOND);
    let mut complaints = LogOnce::default();
    loop {
        rate.wait().await;
        let connection = async {
            let (stream, _) = listener.accept().await?;
            let user = stream.peer_cred()?.uid();
            let may_connect = vendor.borrow().may_connect(user);
            let place = places.take(may_connect).await;
            let connection = place.map(|place| VendorConnection::new(stream, place, stop.clone()));
            connection.transpose()
        };
        let connection = match connection.await {
            // Another refused connection is being answered.
            Ok(None) => continue,
            Ok(Some(connection)) => Ok(connection),
            Err(error) => Err(error),
        };
        match connection {
            Ok(connection) => {
                complaints.forget();
                if let_in.send(Ok(connection)).await.is_err() {
                    return;
                }
            }
            // A persistent error such as too many open files would return at once.
            Err(error) => {
                if complaints.take(&error.to_string()).is_some() {
                    let vendor = vendor.borrow().name.clone();
                    tracing::warn!(vendor = %vendor, %error, "a connection of vendor {vendor} is lost");
                }
            }
        }
    }
}

/// The gRPC service. Whether a session is granted is decided by the vendor's task.
#[derive(Clone, Debug)]
struct VendorApiService {
    vendor: watch::Receiver<Arc<Vendor>>,
    events: mpsc::Sender<VendorEvent>,
    tasks: Tasks,
    stop: CancellationToken,
}

#[tonic::async_trait]
impl vendor_server::Vendor for VendorApiService {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<FromAgent, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<LazyFromVendor>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let Some(peer) = request.extensions().get::<VendorPeer>().cloned() else {
            return Err(Status::internal("peer credentials are not available"));
        };
        let vendor = self.vendor.borrow().clone();
        if !vendor.may_connect(peer.user) {
            let (name, user) = (&vendor.name, peer.user);
            let message = format!("user {user} may not connect as vendor {name}");
            tracing::debug!(vendor = %name, process = peer.process, "connection rejected: {message}");
            // If the task's queue is full, this refusal need not be reported.
            let told = format!("connection rejected: {message}");
            let _ = self.events.try_send(VendorEvent::Refused(told));
            peer.session_state.ended.cancel();
            return Err(Status::permission_denied(message));
        }
        if !peer.session_state.claim() {
            return Err(Status::resource_exhausted(
                "only one session is allowed per connection",
            ));
        }
        let (to, from) = mpsc::channel(SEND_QUEUE_MESSAGES);
        let session = VendorSession {
            peer,
            messages: request.into_inner(),
            to_vendor: to,
            events: self.events.clone(),
            stop: self.stop.clone(),
        };
        self.tasks.spawn("vendor session", session.run());
        Ok(Response::new(Box::pin(ReceiverStream::new(from))))
    }
}
