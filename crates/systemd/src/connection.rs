//! D-Bus connections that are opened on demand and reopened after they broke.

use std::{
    fmt, io,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Mutex, OnceCell},
    time::Instant,
};
use tokio_stream::{Stream, StreamExt as _};
use zbus::{
    Connection, connection::Builder, fdo::DBusProxy, names::WellKnownName, proxy::CacheProperties,
};

use super::{
    dbus_proxies::{JobRemovedStream, ManagerProxy},
    error::SystemdErrorKind,
    private_socket,
};

/// Timeout for a connection that worked before; a restart of the bus takes well below a second.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The first delay between two attempts; it doubles with each further one.
const MIN_RECONNECT_BACKOFF: Duration = Duration::from_millis(50);
/// How long the D-Bus handshake may take. A socket-activated bus answers once it is up; after this time the other
/// socket is tried.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of one call. PID 1 answers no calls while it reloads, which takes seconds on large machines; 90 s is its
/// own limit for the generators that a reload runs.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(90);

/// Opens connections to a socket. Called for each new connection; must not block.
pub trait SocketDialer: Send + Sync + 'static {
    /// A connected stream.
    fn dial(&self) -> io::Result<UnixStream>;
}

impl<F: Fn() -> io::Result<UnixStream> + Send + Sync + 'static> SocketDialer for F {
    fn dial(&self) -> io::Result<UnixStream> {
        self()
    }
}

/// The sockets of the machine's services.
#[derive(Clone, Default)]
pub struct BusAddresses {
    bus: Option<Arc<dyn SocketDialer>>,
    private: Option<Arc<dyn SocketDialer>>,
    paths: Option<Arc<PathDialer>>,
}

/// Opens a connection to the socket at a path.
type PathDialer = dyn Fn(&str) -> io::Result<UnixStream> + Send + Sync;

impl BusAddresses {
    /// No socket: every request fails because the manager cannot be reached.
    pub fn none() -> Self {
        Self::default()
    }

    /// The system bus, `/run/dbus/system_bus_socket`: reaches PID 1, logind and timedated.
    #[must_use]
    pub fn bus(mut self, dial: impl SocketDialer) -> Self {
        self.bus = Some(Arc::new(dial));
        self
    }

    /// PID 1's own socket, `/run/systemd/private`, for root only. Used if the bus cannot be reached.
    #[must_use]
    pub fn private(mut self, dial: impl SocketDialer) -> Self {
        self.private = Some(Arc::new(dial));
        self
    }

    /// Opens connections to sockets that services name by their path.
    #[must_use]
    pub fn paths(
        mut self,
        dial: impl Fn(&str) -> io::Result<UnixStream> + Send + Sync + 'static,
    ) -> Self {
        self.paths = Some(Arc::new(dial));
        self
    }

    pub(super) fn dial_path(&self, path: &str) -> io::Result<UnixStream> {
        match &self.paths {
            Some(dial) => dial(path),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl fmt::Debug for BusAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines")
            .field("bus", &self.bus.is_some())
            .field("private", &self.private.is_some())
            .finish()
    }
}

/// The open connections. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Reconnecting(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    lines: BusAddresses,
    bus: ConnectionSlot,
    private: ConnectionSlot,
}

#[derive(Debug, Default)]
struct ConnectionSlot {
    live: Mutex<Option<LiveConnection>>,
    /// Set after the first successful connection: from then on a lost connection is retried for a while.
    stood: AtomicBool,
}

/// One connection that is open as far as known.
#[derive(Clone, Debug)]
pub(super) struct LiveConnection {
    connection: Connection,
    /// Set once PID 1 was found at the other end.
    manned: Arc<OnceCell<()>>,
    subscribed: Arc<OnceCell<()>>,
}

/// The connections of a transaction of rpm-ostree.
#[derive(Debug)]
pub(super) struct TransactionConnections {
    /// To the bus, as the client that has created the transaction.
    pub(super) bus: Connection,
    /// To the transaction alone.
    pub(super) private: Connection,
}

#[derive(Clone, Copy)]
enum BusRoute {
    Bus,
    Private,
}

impl Reconnecting {
    pub(super) fn new(lines: BusAddresses) -> Self {
        Self(Arc::new(Inner {
            lines,
            bus: ConnectionSlot::default(),
            private: ConnectionSlot::default(),
        }))
    }

    pub(super) fn addresses(&self) -> &BusAddresses {
        &self.0.lines
    }

    /// A connection to PID 1: over the bus, else over PID 1's own socket.
    pub(super) async fn to_manager(&self) -> Result<LiveConnection, SystemdErrorKind> {
        self.over(&[BusRoute::Bus, BusRoute::Private], true).await
    }

    /// A connection to the bus, for services that are reachable only there.
    pub(super) async fn to_bus(&self) -> Result<LiveConnection, SystemdErrorKind> {
        self.over(&[BusRoute::Bus], false).await
    }

    /// A connection to the bus for one client, whose name there ends with it.
    pub(super) async fn to_bus_alone(&self) -> Result<Connection, SystemdErrorKind> {
        let nobody = || SystemdErrorKind::NoManager("no socket found".into());
        let dial = self.0.lines.bus.as_ref().ok_or_else(nobody)?;
        Ok(open(BusRoute::Bus, dial.as_ref()).await?.connection)
    }

    async fn over(
        &self,
        ways: &[BusRoute],
        manned: bool,
    ) -> Result<LiveConnection, SystemdErrorKind> {
        let until = Instant::now() + RECONNECT_TIMEOUT;
        let mut pause = MIN_RECONNECT_BACKOFF;
        loop {
            let mut fault = None;
            for way in ways {
                let stands = match self.connected(*way).await {
                    Ok(Some(live)) if manned => live.check_manager().await.map(|()| live),
                    Ok(Some(live)) => Ok(live),
                    Ok(None) => continue,
                    Err(trouble) => Err(trouble),
                };
                match stands {
                    Ok(live) => return Ok(live),
                    Err(trouble) => fault = fault.or(Some(trouble)),
                }
            }
            let stood = ways
                .iter()
                .any(|way| self.slot(*way).stood.load(Ordering::Relaxed));
            if !stood || Instant::now() + pause > until {
                // After this failure, the next requests try once without waiting, until a connection succeeds.
                for way in ways {
                    self.slot(*way).stood.store(false, Ordering::Relaxed);
                }
                let nobody = || SystemdErrorKind::NoManager("no socket found".into());
                return Err(fault.unwrap_or_else(nobody));
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    /// The open connection or a new one; `None` if this socket is not configured.
    async fn connected(&self, way: BusRoute) -> Result<Option<LiveConnection>, SystemdErrorKind> {
        let dial = match way {
            BusRoute::Bus => &self.0.lines.bus,
            BusRoute::Private => &self.0.lines.private,
        };
        let Some(dial) = dial else {
            return Ok(None);
        };
        let slot = self.slot(way);
        let mut held = slot.live.lock().await;
        if let Some(live) = held.as_ref().filter(|live| !live.connection.is_closed()) {
            return Ok(Some(live.clone()));
        }
        *held = None;
        let live = open(way, dial.as_ref()).await?;
        slot.stood.store(true, Ordering::Relaxed);
        *held = Some(live.clone());
        Ok(Some(live))
    }

    fn slot(&self, way: BusRoute) -> &ConnectionSlot {
        match way {
            BusRoute::Bus => &self.0.bus,
            BusRoute::Private => &self.0.private,
        }
    }
}

async fn open(way: BusRoute, dial: &dyn SocketDialer) -> Result<LiveConnection, SystemdErrorKind> {
    let no_manager = |error: zbus::Error| SystemdErrorKind::NoManager(Box::new(error));
    let stream = dial
        .dial()
        .map_err(|error| SystemdErrorKind::NoManager(error.into()))?;
    let greeted = tokio::time::timeout(HANDSHAKE_TIMEOUT, async {
        match way {
            BusRoute::Bus => Builder::unix_stream(stream).build().await,
            BusRoute::Private => private_socket::connect(stream).await,
        }
    });
    let silent =
        |_| SystemdErrorKind::NoManager("it accepted the connection but did not reply".into());
    let connection = greeted.await.map_err(silent)?.map_err(no_manager)?;
    Ok(LiveConnection {
        connection,
        manned: Arc::default(),
        subscribed: Arc::default(),
    })
}

impl LiveConnection {
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) async fn manager(&self) -> Result<ManagerProxy<'static>, SystemdErrorKind> {
        // A property cache would first read all properties and subscribe to their changes.
        let manager = ManagerProxy::builder(&self.connection)
            .cache_properties(CacheProperties::No)
            .build();
        Ok(manager.await?)
    }

    /// Checks that PID 1 is on the bus: a bus that has just started may not have it yet.
    async fn check_manager(&self) -> Result<(), SystemdErrorKind> {
        let has_manager = || async {
            if !self.connection.is_bus() {
                return Ok(());
            }
            let bus = DBusProxy::builder(&self.connection)
                .cache_properties(CacheProperties::No)
                .build()
                .await?;
            let name = WellKnownName::from_static_str_unchecked("org.freedesktop.systemd1");
            if within(bus.name_has_owner(name.into())).await? {
                Ok(())
            } else {
                Err(SystemdErrorKind::NoManager("it is not on the bus".into()))
            }
        };
        self.manned.get_or_try_init(has_manager).await.copied()
    }

    /// Subscribes; without it PID 1 sends no signals to the connection.
    pub(super) async fn subscribe(&self) -> Result<(), SystemdErrorKind> {
        let subscribe = || async {
            match within(self.manager().await?.subscribe()).await {
                Err(SystemdErrorKind::Other { name, .. })
                    if name.ends_with(".AlreadySubscribed") =>
                {
                    Ok(())
                }
                done => done,
            }
        };
        self.subscribed.get_or_try_init(subscribe).await.copied()
    }

    /// The ends of jobs from now on.
    pub(super) async fn job_ends(&self) -> Result<JobRemovedStream, SystemdErrorKind> {
        // Subscribe first: an open stream must be read continuously.
        self.subscribe().await?;
        Ok(self.manager().await?.receive_job_removed().await?)
    }
}

/// Waits for `answer` and meanwhile passes signals to `taken`: a full queue of signals would stop the reading of
/// the connection, and thereby the answer.
pub(super) async fn while_receiving<T, S: Stream + Unpin>(
    answer: impl Future<Output = T>,
    signals: &mut S,
    mut taken: impl FnMut(S::Item),
) -> T {
    tokio::pin!(answer);
    loop {
        tokio::select! {
            // Polled by reference, so a signal does not drop the request.
            answer = &mut answer => return answer,
            // Safe to drop: a signal that was not received stays in the queue.
            Some(signal) = signals.next() => taken(signal),
        }
    }
}

/// Waits at most [`CALL_TIMEOUT`] for the answer to one call.
pub(super) async fn within<T, E: Into<SystemdErrorKind>>(
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, SystemdErrorKind> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(SystemdErrorKind::NoReply),
    }
}
