//! The socket of one vendor, and who is let in.

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
    connection::{Connection, Peer},
    heard::FromVendor,
    limits::{CONNECTIONS, CONNECTIONS_PER_SECOND, MESSAGE_BYTES, REFUSED_CONNECTIONS, UNREAD},
    messages::Event,
    session::Session,
};
use crate::{
    device::vendor::Vendor,
    path::{AbsPath, BadPath},
    places::Places,
    rate::{Complaints, Rate},
    root::{Identity, Meta, Root, RootError},
    shutdown::Tasks,
    telemetry::chain,
};

/// Where the directories of vendors are.
pub const DIRECTORY: &str = "/run/machinist/vendors";
/// A vendor's socket in its own.
pub const SOCKET: &str = "agent.sock";

/// What may arrive before it is asked for; the kernel and HTTP/2 hold no more for a vendor.
const WINDOW: u32 = 64 * 1024;
/// One session, and one that is being refused.
const STREAMS: u32 = 2;
/// A frame of HTTP/2 that is as large as its default.
const HEADERS: u32 = 16 * 1024;

/// Why a vendor has no socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    /// Its path is none.
    #[error(transparent)]
    Name(#[from] BadPath),
    /// The directory or the socket cannot be made.
    #[error(transparent)]
    Make(#[from] RootError),
    /// The runtime does not take the socket.
    #[error("cannot wait for connections")]
    Listen(#[from] io::Error),
}

/// The socket on its path, until it is dropped.
#[derive(Debug)]
pub(super) struct Socket {
    root: Root,
    path: AbsPath,
    stop: CancellationToken,
    /// Which object it was when it was made.
    ours: Option<Identity>,
    /// Connections are taken no more, although nobody ended that.
    broken: CancellationToken,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.stop.cancel();
        if self.is_ours()
            && let Err(error) = self.root.remove_file(&self.path)
        {
            tracing::debug!(%error, "a vendor's old socket stays until the next start");
        }
    }
}

impl Socket {
    /// Makes the vendor's directory and its socket, and answers on it from now on.
    ///
    /// The directory is what keeps others out: only root and the vendor's group come in, and a pod that
    /// gets it as a mount is thereby the vendor. It stays when the socket goes: pods have it mounted.
    pub(super) fn serve(
        root: &Root,
        vendor: &watch::Receiver<Arc<Vendor>>,
        events: &mpsc::Sender<Event>,
        tasks: &Tasks,
        broke: &Arc<Notify>,
    ) -> Result<Self, ServeError> {
        let (name, group) = {
            let vendor = vendor.borrow();
            (vendor.name.clone(), vendor.group)
        };
        let dir = AbsPath::new(format!("{DIRECTORY}/{name}"))?;
        let above = AbsPath::new(DIRECTORY)?;
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
        Self::at((root, dir.join(SOCKET)?), vendor, events, tasks, broke)
    }

    /// Answers on `path` from now on; `broke` is told when that ends by itself.
    pub(super) fn at(
        (root, path): (&Root, AbsPath),
        vendor: &watch::Receiver<Arc<Vendor>>,
        events: &mpsc::Sender<Event>,
        tasks: &Tasks,
        broke: &Arc<Notify>,
    ) -> Result<Self, ServeError> {
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
        let door = Door {
            vendor: vendor.clone(),
            events: events.clone(),
            tasks: tasks.clone(),
            stop: socket.stop.clone(),
        };
        let listener = UnixListener::from_std(listener)?;
        let incoming = incoming(vendor.clone(), listener, socket.stop.clone(), tasks);
        let service =
            vendor_server::VendorServer::new(door).max_decoding_message_size(MESSAGE_BYTES);
        let server = Server::builder()
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_concurrent_streams(STREAMS)
            .http2_max_header_list_size(HEADERS)
            .add_service(service)
            .serve_with_incoming(incoming);
        let (stop, broken) = (socket.stop.clone(), socket.broken.clone());
        let broke = Arc::clone(broke);
        tasks.spawn("vendor socket", async move {
            tokio::select! {
                // What waits for connections may end first, by the same token.
                biased;
                // Safe to drop: connections end by the same token.
                () = stop.cancelled() => {}
                served = server => if !stop.is_cancelled() {
                    let why = served.map_or_else(|error| chain(&error), |()| "it ended".to_owned());
                    tracing::warn!(vendor = %name, "the socket of vendor {name} broke off: {why}");
                    broken.cancel();
                    broke.notify_one();
                }
            }
        });
        Ok(socket)
    }

    /// Its directory.
    pub(super) fn directory(&self) -> Option<AbsPath> {
        self.path.parent()
    }

    /// Whether it is of use: it has its name, and connections are taken.
    pub(super) fn is_open(&self) -> bool {
        self.is_ours() && !self.broken.is_cancelled()
    }

    /// What cannot be looked at is where it was.
    fn is_ours(&self) -> bool {
        let stat = self.root.stat(&self.path);
        stat.map_or(true, |stat| {
            stat.is_some_and(|stat| Some(stat.identity) == self.ours)
        })
    }
}

/// Connections as they are let in: few at a time, few in a second. The others wait in the kernel's queue,
/// which has an end of its own.
fn incoming(
    vendor: watch::Receiver<Arc<Vendor>>,
    listener: UnixListener,
    stop: CancellationToken,
    tasks: &Tasks,
) -> impl Stream<Item = io::Result<Connection>> + use<> {
    let (let_in, connections) = mpsc::channel(1);
    tasks.spawn("vendor connections", async move {
        tokio::select! {
            // Safe to drop: a connection that is not let in is closed.
            () = stop.cancelled() => {}
            () = accept(&vendor, &listener, &let_in, &stop) => {}
        }
    });
    ReceiverStream::new(connections)
}

async fn accept(
    vendor: &watch::Receiver<Arc<Vendor>>,
    listener: &UnixListener,
    let_in: &mpsc::Sender<io::Result<Connection>>,
    stop: &CancellationToken,
) {
    let places = Places::new(CONNECTIONS, REFUSED_CONNECTIONS);
    let mut rate = Rate::new(CONNECTIONS_PER_SECOND);
    let mut complaints = Complaints::default();
    loop {
        rate.wait().await;
        let connection = async {
            let (stream, _) = listener.accept().await?;
            let user = stream.peer_cred()?.uid();
            let may_connect = vendor.borrow().may_connect(user);
            let place = places.take(may_connect).await;
            let connection = place.map(|place| Connection::new(stream, place, stop.clone()));
            connection.transpose()
        };
        let connection = match connection.await {
            // One of that kind is being refused in words already.
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
            // One that stays, such as too many open files, comes again at once.
            Err(error) => {
                if complaints.take(&error.to_string()).is_some() {
                    let vendor = vendor.borrow().name.clone();
                    tracing::warn!(vendor = %vendor, %error, "a connection of vendor {vendor} is lost");
                }
            }
        }
    }
}

/// Lets sessions begin. Whether one is granted is the keeper's matter.
#[derive(Clone, Debug)]
struct Door {
    vendor: watch::Receiver<Arc<Vendor>>,
    events: mpsc::Sender<Event>,
    tasks: Tasks,
    stop: CancellationToken,
}

#[tonic::async_trait]
impl vendor_server::Vendor for Door {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<FromAgent, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<FromVendor>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let Some(peer) = request.extensions().get::<Peer>().cloned() else {
            return Err(Status::internal("nobody knows who is there"));
        };
        let vendor = self.vendor.borrow().clone();
        if !vendor.may_connect(peer.user) {
            let (name, user) = (&vendor.name, peer.user);
            let message = format!("user {user} may not speak for vendor {name}");
            tracing::debug!(vendor = %name, process = peer.process, "a connection is refused: {message}");
            // A keeper that is busy has enough to tell of.
            let told = format!("a connection is refused: {message}");
            let _ = self.events.try_send(Event::Refused(told));
            peer.stage.over.cancel();
            return Err(Status::permission_denied(message));
        }
        if !peer.stage.claim() {
            return Err(Status::resource_exhausted("a connection has one session"));
        }
        let (to, from) = mpsc::channel(UNREAD);
        let session = Session {
            peer,
            said: request.into_inner(),
            to,
            events: self.events.clone(),
            stop: self.stop.clone(),
        };
        self.tasks.spawn("vendor session", session.run());
        Ok(Response::new(Box::pin(ReceiverStream::new(from))))
    }
}
