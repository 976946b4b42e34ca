//! One connection of a vendor: who the peer is, and how long it may stay without a session.

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

use super::limits::HELLO_TIMEOUT;
use crate::authority_rewrite::AuthorityRewrite;

/// How long the final status of a session may take to be written.
const FINAL_STATUS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the vendor may take to close a connection whose final status was written. To close it
/// earlier would make the vendor's next write fail, and many gRPC libraries then drop the status
/// unread.
const PEER_CLOSE_TIMEOUT: Duration = Duration::from_secs(4);

/// The process at the other end.
#[derive(Clone, Debug)]
pub(super) struct VendorPeer {
    /// The connecting user, from the socket's peer credentials.
    pub(super) user: u32,
    /// Its process id, for the log only: it is 0 in another pid namespace, and ids are reused.
    pub(super) process: i32,
    /// The state of its session.
    pub(super) session_state: Arc<SessionTracker>,
}

/// The state of a connection's one session.
#[derive(Debug, Default)]
pub(super) struct SessionTracker {
    /// The session was granted.
    pub(super) accepted: CancellationToken,
    /// The session has ended.
    pub(super) ended: CancellationToken,
    claimed: AtomicBool,
}

impl SessionTracker {
    /// Claims the connection's one session; true for the first caller.
    pub(super) fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::Relaxed)
    }
}

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionPhase {
    /// No session has been granted yet.
    AwaitingHello,
    /// The session is open.
    Session,
    /// The session has ended, and its final status is being written.
    Closing,
    /// The writing side is shut down. Further data of the vendor is read and discarded.
    HalfClosed,
}

/// A connection that limits its own lifetime. It reads as closed when it has had no session for too
/// long, and some seconds after its session has ended, so that idle peers do not occupy the few
/// connections.
#[derive(Debug)]
pub(super) struct VendorConnection {
    stream: AuthorityRewrite,
    peer: VendorPeer,
    phase: ConnectionPhase,
    accepted: Pin<Box<WaitForCancellationFutureOwned>>,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Resolves when the agent stops.
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    left: Pin<Box<Sleep>>,
    _one_of_few: OwnedSemaphorePermit,
}

impl VendorConnection {
    /// Wraps an accepted connection. Fails when the kernel does not give the peer's credentials.
    pub(super) fn new(
        stream: UnixStream,
        one_of_few: OwnedSemaphorePermit,
        stop: CancellationToken,
    ) -> io::Result<Self> {
        let who = stream.peer_cred()?;
        let session_state = Arc::new(SessionTracker::default());
        Ok(Self {
            stream: AuthorityRewrite::new(stream),
            phase: ConnectionPhase::AwaitingHello,
            accepted: Box::pin(session_state.accepted.clone().cancelled_owned()),
            ended: Box::pin(session_state.ended.clone().cancelled_owned()),
            stop: Box::pin(stop.cancelled_owned()),
            left: Box::pin(sleep(HELLO_TIMEOUT)),
            peer: VendorPeer {
                user: who.uid(),
                process: who.pid().unwrap_or_default(),
                session_state,
            },
            _one_of_few: one_of_few,
        })
    }

    /// Whether the connection has to read as closed. Called with each read, so that every change of
    /// phase wakes the reader.
    fn is_expired(&mut self, cx: &mut Context<'_>) -> bool {
        if self.phase == ConnectionPhase::AwaitingHello
            && self.accepted.as_mut().poll(cx).is_ready()
        {
            self.phase = ConnectionPhase::Session;
        }
        let is_open = matches!(
            self.phase,
            ConnectionPhase::AwaitingHello | ConnectionPhase::Session
        );
        if is_open
            && (self.ended.as_mut().poll(cx).is_ready() || self.stop.as_mut().poll(cx).is_ready())
        {
            self.begin(ConnectionPhase::Closing, FINAL_STATUS_TIMEOUT);
        }
        if self.phase == ConnectionPhase::Closing && self.left.as_mut().poll(cx).is_ready() {
            // A socket of this machine shuts down at once. On an error the vendor has already
            // closed it, which the next read reports.
            let _ = Pin::new(&mut self.stream).poll_shutdown(cx);
            self.begin(ConnectionPhase::HalfClosed, PEER_CLOSE_TIMEOUT);
        }
        self.phase != ConnectionPhase::Session && self.left.as_mut().poll(cx).is_ready()
    }

    fn begin(&mut self, phase: ConnectionPhase, timeout: Duration) {
        self.phase = phase;
        self.left.as_mut().reset(Instant::now() + timeout);
    }
}

impl Connected for VendorConnection {
    type ConnectInfo = VendorPeer;

    fn connect_info(&self) -> VendorPeer {
        self.peer.clone()
    }
}

impl AsyncRead for VendorConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_expired(cx) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for VendorConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.phase == ConnectionPhase::HalfClosed {
            return Poll::Ready(Ok(from.len()));
        }
        Pin::new(&mut this.stream).poll_write(cx, from)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
