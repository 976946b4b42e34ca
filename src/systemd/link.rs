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
    error::Trouble,
    private,
    proxies::{JobRemovedStream, ManagerProxy},
};

/// Timeout for a connection that worked before; a restart of the bus takes well below a second.
const PATIENCE: Duration = Duration::from_secs(5);
/// The first delay between two attempts; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// How long the D-Bus handshake may take. A socket-activated bus answers once it is up; after this time the other
/// socket is tried.
const GREETING: Duration = Duration::from_secs(5);
/// Timeout of one call. PID 1 answers no calls while it reloads, which takes seconds on large machines; 90 s is its
/// own limit for the generators that a reload runs.
pub(super) const CALL: Duration = Duration::from_secs(90);

/// Opens connections to a socket. Called for each new connection; must not block.
pub trait Dial: Send + Sync + 'static {
    /// A connected stream.
    fn dial(&self) -> io::Result<UnixStream>;
}

impl<F: Fn() -> io::Result<UnixStream> + Send + Sync + 'static> Dial for F {
    fn dial(&self) -> io::Result<UnixStream> {
        self()
    }
}

/// The sockets of the machine's services.
#[derive(Clone, Default)]
pub struct Lines {
    bus: Option<Arc<dyn Dial>>,
    private: Option<Arc<dyn Dial>>,
}

impl Lines {
    /// No socket: every request fails because the manager cannot be reached.
    pub fn none() -> Self {
        Self::default()
    }

    /// The system bus, `/run/dbus/system_bus_socket`: reaches PID 1, logind and timedated.
    #[must_use]
    pub fn bus(mut self, dial: impl Dial) -> Self {
        self.bus = Some(Arc::new(dial));
        self
    }

    /// PID 1's own socket, `/run/systemd/private`, for root only. Used if the bus cannot be reached.
    #[must_use]
    pub fn private(mut self, dial: impl Dial) -> Self {
        self.private = Some(Arc::new(dial));
        self
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines")
            .field("bus", &self.bus.is_some())
            .field("private", &self.private.is_some())
            .finish()
    }
}

/// The open connections. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Link(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    lines: Lines,
    bus: Slot,
    private: Slot,
}

#[derive(Debug, Default)]
struct Slot {
    live: Mutex<Option<Live>>,
    /// Set after the first successful connection: from then on a lost connection is retried for a while.
    stood: AtomicBool,
}

/// One connection that is open as far as known.
#[derive(Clone, Debug)]
pub(super) struct Live {
    connection: Connection,
    /// Set once PID 1 was found at the other end.
    manned: Arc<OnceCell<()>>,
    subscribed: Arc<OnceCell<()>>,
}

#[derive(Clone, Copy)]
enum Way {
    Bus,
    Private,
}

impl Link {
    pub(super) fn new(lines: Lines) -> Self {
        Self(Arc::new(Inner {
            lines,
            bus: Slot::default(),
            private: Slot::default(),
        }))
    }

    /// A connection to PID 1: over the bus, else over PID 1's own socket.
    pub(super) async fn to_manager(&self) -> Result<Live, Trouble> {
        self.over(&[Way::Bus, Way::Private], true).await
    }

    /// A connection to the bus, for services that are reachable only there.
    pub(super) async fn to_bus(&self) -> Result<Live, Trouble> {
        self.over(&[Way::Bus], false).await
    }

    async fn over(&self, ways: &[Way], manned: bool) -> Result<Live, Trouble> {
        let until = Instant::now() + PATIENCE;
        let mut pause = FIRST_PAUSE;
        loop {
            let mut fault = None;
            for way in ways {
                let stands = match self.stand(*way).await {
                    Ok(Some(live)) if manned => live.meet_manager().await.map(|()| live),
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
                let nobody = || Trouble::NoManager("no socket found".into());
                return Err(fault.unwrap_or_else(nobody));
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    /// The open connection or a new one; `None` if this socket is not configured.
    async fn stand(&self, way: Way) -> Result<Option<Live>, Trouble> {
        let dial = match way {
            Way::Bus => &self.0.lines.bus,
            Way::Private => &self.0.lines.private,
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

    fn slot(&self, way: Way) -> &Slot {
        match way {
            Way::Bus => &self.0.bus,
            Way::Private => &self.0.private,
        }
    }
}

async fn open(way: Way, dial: &dyn Dial) -> Result<Live, Trouble> {
    let no_manager = |error: zbus::Error| Trouble::NoManager(Box::new(error));
    let stream = dial
        .dial()
        .map_err(|error| Trouble::NoManager(error.into()))?;
    let greeted = tokio::time::timeout(GREETING, async {
        match way {
            Way::Bus => Builder::unix_stream(stream).build().await,
            Way::Private => private::connect(stream).await,
        }
    });
    let silent = |_| Trouble::NoManager("it accepted the connection but did not reply".into());
    let connection = greeted.await.map_err(silent)?.map_err(no_manager)?;
    Ok(Live {
        connection,
        manned: Arc::default(),
        subscribed: Arc::default(),
    })
}

impl Live {
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) async fn manager(&self) -> Result<ManagerProxy<'static>, Trouble> {
        // A property cache would first read all properties and subscribe to their changes.
        let manager = ManagerProxy::builder(&self.connection)
            .cache_properties(CacheProperties::No)
            .build();
        Ok(manager.await?)
    }

    /// Checks that PID 1 is on the bus: a bus that has just started may not have it yet.
    async fn meet_manager(&self) -> Result<(), Trouble> {
        let look = || async {
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
                Err(Trouble::NoManager("it is not on the bus".into()))
            }
        };
        self.manned.get_or_try_init(look).await.copied()
    }

    /// Subscribes; without it PID 1 sends no signals to the connection.
    pub(super) async fn subscribe(&self) -> Result<(), Trouble> {
        let subscribe = || async {
            match within(self.manager().await?.subscribe()).await {
                Err(Trouble::Other { name, .. }) if name.ends_with(".AlreadySubscribed") => Ok(()),
                done => done,
            }
        };
        self.subscribed.get_or_try_init(subscribe).await.copied()
    }

    /// The ends of jobs from now on.
    pub(super) async fn job_ends(&self) -> Result<JobRemovedStream, Trouble> {
        // Subscribe first: an open stream must be read continuously.
        self.subscribe().await?;
        Ok(self.manager().await?.receive_job_removed().await?)
    }
}

/// Waits for `answer` and meanwhile passes signals to `taken`: a full queue of signals would stop the reading of
/// the connection, and thereby the answer.
pub(super) async fn while_taking<T, S: Stream + Unpin>(
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

/// Waits at most [`CALL`] for the answer to one call.
pub(super) async fn within<T, E: Into<Trouble>>(
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, Trouble> {
    match tokio::time::timeout(CALL, call).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(Trouble::NoReply),
    }
}
