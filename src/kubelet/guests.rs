//! Connections that others open to a socket of ours, of which there are only so many: whoever opens more waits,
//! and nobody else runs out of descriptors. Some, the kubelet's plugin watcher among them, name a path where HTTP/2
//! has the name of a host.

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

use crate::{authority::Unaddressed, places::Places, rate::Rate, shutdown::Tasks};

/// Connections to one socket at a time. A plugin needs one, for a moment; the kubelet has one or two.
pub const MOST: usize = 32;
/// Connections in a second, over time: a program that opens and leaves them without end takes little of the machine's time.
const PER_SECOND: u32 = 100;
/// Connections at a time of users who may not connect, besides.
const MOST_REFUSED: usize = 4;
/// Longer than any registration takes; plugins that never close theirs would use them up.
pub const LONGEST: Duration = Duration::from_secs(60);
/// How long the end of a connection is waited for that is to end: whoever never spoke does not notice.
pub const FAREWELL: Duration = Duration::from_millis(500);
/// After an error such as too many open files, which ends by itself or not at all.
const PAUSE: Duration = Duration::from_millis(100);

/// One connection, with its place.
#[derive(Debug)]
pub struct Guest {
    stream: Unaddressed,
    _place: OwnedSemaphorePermit,
}

/// Takes connections until it is stopped. Those of users whom `admits` does not name have few places of their own.
pub fn guests(
    listener: UnixListener,
    tasks: &Tasks,
    stop: CancellationToken,
    admits: impl Fn(u32) -> bool + Send + Sync + 'static,
) -> ReceiverStream<io::Result<Guest>> {
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

/// Connections to a socket that only the kubelet opens, as many as it wants. Whoever serves them takes an error
/// for news and asks for the next one at once.
pub(super) fn connections(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> {
    UnixListenerStream::new(listener).then(|taken| async {
        if taken.is_err() {
            sleep(PAUSE).await;
        }
        taken
    })
}

async fn accept(
    listener: UnixListener,
    to: mpsc::Sender<io::Result<Guest>>,
    admits: impl Fn(u32) -> bool,
) {
    let places = Places::new(MOST, MOST_REFUSED);
    let mut rate = Rate::new(PER_SECOND);
    loop {
        rate.wait().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let user = stream.peer_cred().map(|who| who.uid());
                let Some(place) = places.take(user.is_ok_and(&admits)).await else {
                    continue;
                };
                let guest = Guest {
                    stream: Unaddressed::new(stream),
                    _place: place,
                };
                if to.send(Ok(guest)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "a connection was not taken");
                sleep(PAUSE).await;
            }
        }
    }
}

impl Connected for Guest {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.stream.stream().connect_info()
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Guest {
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
    async fn an_error_that_stays_does_not_take_the_machines_time() {
        // Nobody can be taken from what is no listener, and that is told at once.
        let (no_listener, other_end) = Stream::pair().unwrap();
        no_listener.set_nonblocking(true).unwrap();
        drop(other_end);
        let listener = Listener::from(OwnedFd::from(no_listener));
        let mut taken = pin!(connections(UnixListener::from_std(listener).unwrap()));
        let start = Instant::now();
        for _ in 0..10 {
            assert!(taken.next().await.unwrap().is_err());
        }
        assert_eq!(start.elapsed(), PAUSE * 10);
    }

    /// Connections that are left at once, as fast as a program can open them.
    #[tokio::test(start_paused = true)]
    async fn a_flood_of_connections_is_taken_at_a_measured_pace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let tasks = Tasks::new();
        let mut taken = guests(listener, &tasks, tasks.token(), |_| true);
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
    async fn those_who_may_not_connect_are_answered_a_few_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let tasks = Tasks::new();
        let mut taken = guests(listener, &tasks, tasks.token(), |_| false);
        let mut ours = Vec::new();
        for _ in 0..MOST {
            ours.push(UnixStream::connect(&path).await.unwrap());
        }
        let mut kept = Vec::new();
        let wait = Duration::from_secs(1);
        while let Ok(Some(guest)) = tokio::time::timeout(wait, taken.next()).await {
            kept.push(guest.unwrap());
        }
        assert_eq!(kept.len(), MOST_REFUSED);
    }
}
