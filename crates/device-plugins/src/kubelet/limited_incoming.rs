//! Accepts connections on our sockets and limits their number and age, so that a client that opens
//! too many only delays itself. Some clients, such as the kubelet's plugin watcher, send a path as
//! HTTP/2's host name, which is accepted here.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, mpsc},
    time::sleep,
};
use tokio_stream::{
    Stream, StreamExt as _,
    wrappers::{ReceiverStream, UnixListenerStream},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::{Connected, UdsConnectInfo};

use crate::{authority_rewrite::AuthorityRewrite, places::Places};
use machinist_base::{rate_limit::RateLimiter, shutdown::Tasks};

/// Concurrent connections to one socket. A plugin needs one, briefly; the kubelet has one or two.
pub const MAX_CONNECTIONS: usize = 32;
/// Average number of accepted connections per second, which limits the load from a program that
/// opens and closes connections in a loop.
const PER_SECOND: u32 = 100;
/// Additional concurrent connections of users who may not connect.
const MAX_REFUSED: usize = 4;
/// Maximum age of a connection, longer than any registration takes; plugins that never close theirs
/// would use up all places.
pub const MAX_CONNECTION_AGE: Duration = Duration::from_secs(60);
/// How long an ending connection is awaited; an idle peer may not notice that it has to close.
pub const CLOSE_GRACE: Duration = Duration::from_millis(500);
/// Delay after an error such as too many open files, which passes by itself or not at all.
const ACCEPT_ERROR_DELAY: Duration = Duration::from_millis(100);

/// One connection, which occupies one of the places.
#[derive(Debug)]
pub struct LimitedConnection {
    stream: AuthorityRewrite,
    _place: OwnedSemaphorePermit,
}

/// Accepts connections until it is stopped. Users whom `admits` rejects have a few separate places.
pub fn incoming_limited(
    listener: UnixListener,
    tasks: &Tasks,
    stop: CancellationToken,
    admits: impl Fn(u32) -> bool + Send + Sync + 'static,
) -> ReceiverStream<io::Result<LimitedConnection>> {
    let (to, from) = mpsc::channel(1);
    tasks.spawn("connections", async move {
        tokio::select! {
            // Safe to drop: a connection that was not handed on is closed.
            () = stop.cancelled() => {}
            () = accept(listener, to, admits) => {}
        }
    });
    ReceiverStream::new(from)
}

/// Unlimited connections, for a socket that only the kubelet opens. Pauses after an error, since
/// the server would poll again at once.
pub(super) fn connections(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> {
    UnixListenerStream::new(listener).then(|taken| async {
        if taken.is_err() {
            sleep(ACCEPT_ERROR_DELAY).await;
        }
        taken
    })
}

async fn accept(
    listener: UnixListener,
    to: mpsc::Sender<io::Result<LimitedConnection>>,
    admits: impl Fn(u32) -> bool,
) {
    let places = Places::new(MAX_CONNECTIONS, MAX_REFUSED);
    let mut rate = RateLimiter::new(PER_SECOND);
    loop {
        rate.wait().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let user = stream.peer_cred().map(|who| who.uid());
                let Some(place) = places.take(user.is_ok_and(&admits)).await else {
                    continue;
                };
                let guest = LimitedConnection {
                    stream: AuthorityRewrite::new(stream),
                    _place: place,
                };
                if to.send(Ok(guest)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "failed to accept a connection");
                sleep(ACCEPT_ERROR_DELAY).await;
            }
        }
    }
}

impl Connected for LimitedConnection {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.stream.stream().connect_info()
    }
}

impl AsyncRead for LimitedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for LimitedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "test code that connects to sockets in a temporary directory"
)]
mod tests {
    use std::{
        os::{
            fd::OwnedFd,
            unix::net::{UnixListener as Listener, UnixStream as Stream},
        },
        pin::pin,
    };

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_persistent_accept_error_does_not_busy_loop() {
        // Accepting on a socket that does not listen fails at once.
        let (no_listener, other_end) = Stream::pair().unwrap();
        no_listener.set_nonblocking(true).unwrap();
        drop(other_end);
        let listener = Listener::from(OwnedFd::from(no_listener));
        let mut taken = pin!(connections(UnixListener::from_std(listener).unwrap()));
        let start = Instant::now();
        for _ in 0..10 {
            assert!(taken.next().await.unwrap().is_err());
        }
        assert_eq!(start.elapsed(), ACCEPT_ERROR_DELAY * 10);
    }

    /// Connections that are closed at once, as fast as a program can open them.
    #[tokio::test(start_paused = true)]
    async fn a_flood_of_connections_is_accepted_at_a_limited_rate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let tasks = Tasks::new();
        let mut taken = incoming_limited(listener, &tasks, tasks.token(), |_| true);
        let start = Instant::now();
        for _ in 0..500 {
            drop(UnixStream::connect(&path).await.unwrap());
            taken.next().await.unwrap().unwrap();
        }
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(3), "{took:?}");
        assert!(took < Duration::from_secs(6), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn forbidden_peers_get_responses_with_limited_concurrency() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let tasks = Tasks::new();
        let mut taken = incoming_limited(listener, &tasks, tasks.token(), |_| false);
        let mut ours = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            ours.push(UnixStream::connect(&path).await.unwrap());
        }
        let mut kept = Vec::new();
        let wait = Duration::from_secs(1);
        while let Ok(Some(guest)) = tokio::time::timeout(wait, taken.next()).await {
            kept.push(guest.unwrap());
        }
        assert_eq!(kept.len(), MAX_REFUSED);
    }
}
