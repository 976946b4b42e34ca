//! One connection of a vendor's: who is there, and for how long without a session.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    sync::OwnedSemaphorePermit,
    time::{Instant, Sleep, sleep},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use super::limits::HELLO_WAIT;
use crate::authority::Unaddressed;

/// How long the last words of a session may take to reach the vendor.
const FAREWELL: Duration = Duration::from_secs(1);

/// Who is at the other end.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    /// The user that connected, as the kernel saw it.
    pub(super) user: u32,
    /// Its process, for the log only: 0 from another pid namespace, and used again by others.
    pub(super) process: i32,
    /// How far its session is.
    pub(super) stage: Arc<Stage>,
}

/// How far the one session of a connection is.
#[derive(Debug, Default)]
pub(super) struct Stage {
    /// It was granted.
    pub(super) open: CancellationToken,
    /// It is over.
    pub(super) over: CancellationToken,
    claimed: AtomicBool,
}

impl Stage {
    /// Whether this is the first to want the connection's one session.
    pub(super) fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::Relaxed)
    }
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Nobody granted it a session yet.
    Door,
    /// It has the session.
    Session,
    /// Its session is over.
    Farewell,
}

/// The connection. It reads as ended when it has had no session for too long, and soon after its
/// session is over, so that nobody keeps one of the few for nothing.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Unaddressed,
    peer: Peer,
    at: At,
    open: Pin<Box<WaitForCancellationFutureOwned>>,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The agent stops.
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    left: Pin<Box<Sleep>>,
    _one_of_few: OwnedSemaphorePermit,
}

impl Connection {
    /// Takes the connection over. Fails when the kernel does not say who is there.
    pub(super) fn new(
        stream: UnixStream,
        one_of_few: OwnedSemaphorePermit,
        stop: CancellationToken,
    ) -> io::Result<Self> {
        let who = stream.peer_cred()?;
        let stage = Arc::new(Stage::default());
        Ok(Self {
            stream: Unaddressed::new(stream),
            at: At::Door,
            open: Box::pin(stage.open.clone().cancelled_owned()),
            over: Box::pin(stage.over.clone().cancelled_owned()),
            stop: Box::pin(stop.cancelled_owned()),
            left: Box::pin(sleep(HELLO_WAIT)),
            peer: Peer {
                user: who.uid(),
                process: who.pid().unwrap_or_default(),
                stage,
            },
            _one_of_few: one_of_few,
        })
    }

    /// Whether its time is up. Called with each read, so that every change of the stage wakes the reader.
    fn is_up(&mut self, cx: &mut Context<'_>) -> bool {
        if self.at == At::Door && self.open.as_mut().poll(cx).is_ready() {
            self.at = At::Session;
        }
        let is_over = self.at != At::Farewell
            && (self.over.as_mut().poll(cx).is_ready() || self.stop.as_mut().poll(cx).is_ready());
        if is_over {
            self.at = At::Farewell;
            self.left.as_mut().reset(Instant::now() + FAREWELL);
        }
        self.at != At::Session && self.left.as_mut().poll(cx).is_ready()
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_up(cx) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, from)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
