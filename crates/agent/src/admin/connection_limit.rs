//! Limits connections in time and in number for each user, so that no client can block the others.

use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    time::Sleep,
};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{
    request_progress::RequestProgress,
    user_connections::{ConnectionPermit, UserConnections},
};

/// How long a connection may last. Every answer is sent from memory.
const MAX_CONNECTION_TIME: Duration = Duration::from_secs(5);

/// Additional time for each `BYTES_PER_EXTRA_TIME` bytes of a request: a config of hundreds of megabytes is read,
/// checked and stored before it is answered.
const EXTRA_CONNECTION_TIME: Duration = Duration::from_secs(1);
const BYTES_PER_EXTRA_TIME: usize = 8 << 20;

/// Connections per user. Tools send one request at a time; a monitoring system and two people make
/// a few at once.
const MAX_CONNECTIONS_PER_USER: usize = 16;

/// Connections of all users together where the kernel does not report the user. A client that sends
/// its request at once is answered long before this many others have connected after it.
const MAX_UNIDENTIFIED_CONNECTIONS: usize = 512;

/// Number of users tracked in addition to those that are connected.
const MAX_TRACKED_USERS: usize = 64;

/// The process at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    /// The user, where the kernel reports it: on Unix sockets.
    pub uid: Option<u32>,
}

/// Returns the peer of an accepted connection.
pub trait PeerPolicy {
    /// The peer, as the kernel knows it.
    fn peer(&self) -> PeerProcess;
}

impl PeerPolicy for UnixStream {
    fn peer(&self) -> PeerProcess {
        let uid = self.peer_cred().ok().map(|cred| cred.uid());
        PeerProcess { uid }
    }
}

impl PeerPolicy for TcpStream {
    fn peer(&self) -> PeerProcess {
        PeerProcess { uid: None }
    }
}

/// A listener whose connections are limited in time and in number for each user. When a user
/// exceeds the number, the oldest connection is closed, so that idle ones do not block a new
/// request. Where the user is unknown, the oldest with an unfinished header is closed first, and one
/// that waits for its answer last.
#[derive(Debug)]
pub struct LimitedListener<L> {
    listener: L,
    open: BTreeMap<Option<u32>, UserConnections>,
}

impl<L> LimitedListener<L> {
    /// Limits the connections of `listener`.
    pub fn new(listener: L) -> Self {
        Self {
            listener,
            open: BTreeMap::new(),
        }
    }

    /// Returns whether there are too many connections and none of them is known to have an unfinished header.
    fn is_full_of_unread(&self, peer: PeerProcess) -> bool {
        let theirs = self.open.get(&peer.uid);
        theirs.is_some_and(|theirs| theirs.alive() >= limit(peer) && !theirs.has_unfinished())
    }

    /// Counts one more connection of `peer`, and ends another one if there are too many.
    fn admit(&mut self, peer: PeerProcess) -> ConnectionPermit {
        if self.open.len() > MAX_TRACKED_USERS {
            self.open.retain(|_, theirs| theirs.alive() > 0);
        }
        let theirs = self.open.entry(peer.uid).or_default();
        theirs.admit(limit(peer), peer.uid.is_none())
    }
}

/// The number of connections that a peer may have.
fn limit(peer: PeerProcess) -> usize {
    let identified = peer.uid.map(|_| MAX_CONNECTIONS_PER_USER);
    identified.unwrap_or(MAX_UNIDENTIFIED_CONNECTIONS)
}

impl<L> Listener for LimitedListener<L>
where
    L: Listener<Io: PeerPolicy>,
{
    type Io = TimedConnection<L::Io>;
    type Addr = PeerProcess;

    async fn accept(&mut self) -> (Self::Io, PeerProcess) {
        let (stream, _) = self.listener.accept().await;
        let peer = stream.peer();
        // The accepted connections are read before further ones take their places.
        if self.is_full_of_unread(peer) {
            tokio::task::yield_now().await;
        }
        let place = self.admit(peer);
        let connection = TimedConnection {
            stream,
            overdue: Box::pin(tokio::time::sleep(MAX_CONNECTION_TIME)),
            read: 0,
            evicted: Box::pin(place.connection.token.clone().cancelled_owned()),
            progress: RequestProgress::default(),
            place,
        };
        (connection, peer)
    }

    fn local_addr(&self) -> io::Result<PeerProcess> {
        Ok(PeerProcess { uid: None })
    }
}

impl Connected<IncomingStream<'_, LimitedListener<UnixListener>>> for PeerProcess {
    fn connect_info(stream: IncomingStream<'_, LimitedListener<UnixListener>>) -> Self {
        *stream.remote_addr()
    }
}

impl Connected<IncomingStream<'_, LimitedListener<TcpListener>>> for PeerProcess {
    fn connect_info(stream: IncomingStream<'_, LimitedListener<TcpListener>>) -> Self {
        *stream.remote_addr()
    }
}

/// A connection that ends when its time is over or its place is needed.
#[derive(Debug)]
pub struct TimedConnection<S> {
    stream: S,
    overdue: Pin<Box<Sleep>>,
    /// Bytes read since its time was last extended.
    read: usize,
    evicted: Pin<Box<WaitForCancellationFutureOwned>>,
    progress: RequestProgress,
    place: ConnectionPermit,
}

impl<S> TimedConnection<S> {
    /// `Pending` while the connection may last; otherwise the error that ends it.
    fn over(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if self.evicted.as_mut().poll(context).is_ready() {
            return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
        }
        ready!(self.overdue.as_mut().poll(context));
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(over) = self.over(context) {
            return Poll::Ready(Err(over));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let bytes = &buffer.filled()[before..];
        self.read += bytes.len();
        self.progress.read(bytes);
        self.place.note(&self.progress);
        if self.progress.has_long_header() {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        if self.read >= BYTES_PER_EXTRA_TIME {
            self.read -= BYTES_PER_EXTRA_TIME;
            let later = self.overdue.deadline() + EXTRA_CONNECTION_TIME;
            self.overdue.as_mut().reset(later);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedConnection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(over) = self.over(context) {
            return Poll::Ready(Err(over));
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if matches!(written, Poll::Ready(Ok(_))) {
            self.progress.answered();
            self.place.note(&self.progress);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn above_the_limit_the_same_users_oldest_connection_is_closed() {
        let mut guarded = LimitedListener::new(());
        let peer = |uid| PeerProcess { uid: Some(uid) };
        let other = guarded.admit(peer(1));
        let mut mine: Vec<_> = (0..MAX_CONNECTIONS_PER_USER)
            .map(|_| guarded.admit(peer(0)))
            .collect();
        assert!(mine.iter().all(|one| !one.connection.token.is_cancelled()));
        // An ended connection is not counted.
        mine.pop();
        mine.push(guarded.admit(peer(0)));
        assert!(mine.iter().all(|one| !one.connection.token.is_cancelled()));
        mine.push(guarded.admit(peer(0)));
        let ended: Vec<_> = mine
            .iter()
            .map(|one| one.connection.token.is_cancelled())
            .collect();
        assert!(
            ended[0] && ended[1..].iter().all(|ended| !ended),
            "{ended:?}"
        );
        assert!(!other.connection.token.is_cancelled());

        // Ended connections leave no entries behind.
        for _ in 0..100 * MAX_CONNECTIONS_PER_USER {
            drop(guarded.admit(peer(2)));
        }
        assert!(guarded.open[&Some(2)].connections.len() <= 4 * MAX_CONNECTIONS_PER_USER + 1);
        for user in 0..10_000 {
            drop(guarded.admit(peer(user)));
        }
        assert!(guarded.open.len() <= MAX_TRACKED_USERS + 1);
    }
}
