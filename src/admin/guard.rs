//! Connections that cannot be in anybody's way: each ends by itself, and nobody has more than a few.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    pin::Pin,
    sync::{Arc, Weak},
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
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// How long a connection may last. Every answer is written from memory.
const LONGEST: Duration = Duration::from_secs(5);

/// How much longer for so many bytes that were asked with: a config of hundreds of megabytes is read, checked
/// and kept before it is answered.
const LONGER: Duration = Duration::from_secs(1);
const LARGE: usize = 8 << 20;

/// How many connections one user may have. Tools ask one question at a time; a few at once are a
/// monitoring system and two people.
const MOST: usize = 16;

/// How many connections all users together may have where the kernel does not say whose they are. One that asks
/// at once is answered long before as many others have come after it.
const MOST_UNKNOWN: usize = 512;

/// How many users are known beside those who are connected.
const MOST_USERS: usize = 64;

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user, where the kernel tells: on the socket below the root.
    pub uid: Option<u32>,
}

/// Who may be connected with, by an accepted connection.
pub trait Known {
    /// The peer, as the kernel knows it.
    fn peer(&self) -> Peer;
}

impl Known for UnixStream {
    fn peer(&self) -> Peer {
        let uid = self.peer_cred().ok().map(|cred| cred.uid());
        Peer { uid }
    }
}

impl Known for TcpStream {
    fn peer(&self) -> Peer {
        Peer { uid: None }
    }
}

/// A listener whose connections are limited in time and in number for each user. When one more
/// comes, the user's oldest makes way: an idle one must not keep a question out.
#[derive(Debug)]
pub struct Guarded<L> {
    listener: L,
    open: BTreeMap<Option<u32>, Open>,
}

/// The connections of one user, the oldest first.
#[derive(Debug, Default)]
struct Open {
    /// Those that have ended are taken out later.
    tokens: VecDeque<Weak<CancellationToken>>,
    /// How many have not ended.
    alive: Arc<()>,
}

impl Open {
    fn alive(&self) -> usize {
        Arc::strong_count(&self.alive) - 1
    }

    fn admit(&mut self, most: usize) -> Place {
        while self.alive() >= most
            && let Some(oldest) = self.tokens.pop_front()
        {
            if let Some(oldest) = oldest.upgrade() {
                oldest.cancel();
                break;
            }
        }
        // Now and then: each time would be work for all of them, for each connection of a flood.
        if self.tokens.len() > 4 * most {
            self.tokens.retain(|one| one.strong_count() > 0);
        }
        let token = Arc::new(CancellationToken::new());
        self.tokens.push_back(Arc::downgrade(&token));
        Place {
            token,
            _alive: Arc::clone(&self.alive),
        }
    }
}

/// The place of a connection in the count, given back when this is dropped.
#[derive(Debug)]
struct Place {
    token: Arc<CancellationToken>,
    _alive: Arc<()>,
}

impl<L> Guarded<L> {
    /// Guards the connections of `listener`.
    pub fn new(listener: L) -> Self {
        Self {
            listener,
            open: BTreeMap::new(),
        }
    }

    /// Counts one more connection of `peer`, and ends the oldest when there are too many.
    fn admit(&mut self, peer: Peer) -> Place {
        if self.open.len() > MOST_USERS {
            self.open.retain(|_, theirs| theirs.alive() > 0);
        }
        let most = peer.uid.map_or(MOST_UNKNOWN, |_| MOST);
        self.open.entry(peer.uid).or_default().admit(most)
    }
}

impl<L> Listener for Guarded<L>
where
    L: Listener<Io: Known>,
{
    type Io = Connection<L::Io>;
    type Addr = Peer;

    async fn accept(&mut self) -> (Self::Io, Peer) {
        let (stream, _) = self.listener.accept().await;
        let peer = stream.peer();
        let place = self.admit(peer);
        let connection = Connection {
            stream,
            overdue: Box::pin(tokio::time::sleep(LONGEST)),
            read: 0,
            evicted: Box::pin(CancellationToken::clone(&place.token).cancelled_owned()),
            _place: place,
        };
        (connection, peer)
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer { uid: None })
    }
}

impl Connected<IncomingStream<'_, Guarded<UnixListener>>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Guarded<UnixListener>>) -> Self {
        *stream.remote_addr()
    }
}

impl Connected<IncomingStream<'_, Guarded<TcpListener>>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Guarded<TcpListener>>) -> Self {
        *stream.remote_addr()
    }
}

/// A connection that ends when its time is over or its place is needed.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    overdue: Pin<Box<Sleep>>,
    /// Bytes since it was last given more time.
    read: usize,
    evicted: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: Place,
}

impl<S> Connection<S> {
    /// Nothing while the connection may last; the error that ends it otherwise.
    fn over(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if self.evicted.as_mut().poll(context).is_ready() {
            return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
        }
        ready!(self.overdue.as_mut().poll(context));
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
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
        self.read += buffer.filled().len() - before;
        if self.read >= LARGE {
            self.read -= LARGE;
            let later = self.overdue.deadline() + LONGER;
            self.overdue.as_mut().reset(later);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(over) = self.over(context) {
            return Poll::Ready(Err(over));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
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
    fn the_oldest_connection_of_the_same_user_makes_way() {
        let mut guarded = Guarded::new(());
        let peer = |uid| Peer { uid: Some(uid) };
        let other = guarded.admit(peer(1));
        let mut mine: Vec<_> = (0..MOST).map(|_| guarded.admit(peer(0))).collect();
        assert!(mine.iter().all(|one| !one.token.is_cancelled()));
        // One that has ended is not counted.
        mine.pop();
        mine.push(guarded.admit(peer(0)));
        assert!(mine.iter().all(|one| !one.token.is_cancelled()));
        mine.push(guarded.admit(peer(0)));
        let ended: Vec<_> = mine.iter().map(|one| one.token.is_cancelled()).collect();
        assert!(
            ended[0] && ended[1..].iter().all(|ended| !ended),
            "{ended:?}"
        );
        assert!(!other.token.is_cancelled());

        // Who has come and gone leaves nothing behind.
        for _ in 0..100 * MOST {
            drop(guarded.admit(peer(2)));
        }
        assert!(guarded.open[&Some(2)].tokens.len() <= 4 * MOST + 1);
        for user in 0..10_000 {
            drop(guarded.admit(peer(user)));
        }
        assert!(guarded.open.len() <= MOST_USERS + 1);
    }
}
