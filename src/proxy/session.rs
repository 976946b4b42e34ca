//! Serves one vendor: its directory, the plugins registered in it, and the resources that they
//! offer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    net::UnixListener,
    sync::{mpsc, oneshot},
    time::{Instant, sleep},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Server;

use self::saving::Saving;
use super::{
    Shared, Vendor,
    dial::Connection,
    directory::{Change, Directory, DirectoryError},
    follow::follow,
    known::Known,
    line::{Line, Offer},
    list::{self, List},
    lists::Turns,
    registration::{Desk, LARGEST_REQUEST},
};
use crate::{
    device::{
        Resource, ResourceName,
        inventory::{Recipe, Serve, Share},
        registry::{AskError, Looks, Standing},
        source::Source,
    },
    error_chain::chain,
    kubelet::{
        api::v1beta1::registration_server::RegistrationServer,
        guests::{self, guests},
    },
    rate::{Complaints, Rate, until},
    root::{RootError, Stat, UnixAddress},
};

/// Bytes that may arrive on a connection before they are read; a registration is smaller.
const WINDOW: u32 = 64 * 1024;
/// Concurrent registrations on one connection.
const STREAMS: u32 = 4;
/// Bytes of headers of one request: HTTP/2's default frame size.
const HEADERS: u32 = 16 * 1024;

/// Queued lists and registrations; senders of more have to wait.
const EVENTS: usize = 16;
/// Minimum time between two creations of our socket, in case another process keeps removing it.
const BIND_AGAIN: Duration = Duration::from_secs(1);
/// Average interval of log lines about plugins that keep connecting and disconnecting.
const LINE_EACH: Duration = Duration::from_secs(10);

/// The events of a vendor's task.
#[derive(Debug)]
pub(super) enum Event {
    /// A plugin registered, and was reached for its options.
    Came {
        resource: ResourceName,
        connection: Connection,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// A plugin that registered with an earlier agent was reached again.
    Returned {
        resource: ResourceName,
        connection: Connection,
    },
    /// Such a plugin was not reached.
    Lost {
        resource: ResourceName,
        endpoint: String,
        /// The socket as it was before the dial; kept open, so that its inode number is not reused.
        was: Option<(UnixAddress, Stat)>,
        why: String,
    },
    /// A registration was refused.
    Refused { name: String, why: String },
    /// A plugin listed its devices.
    Heard {
        resource: ResourceName,
        number: u64,
        list: List,
    },
    /// The registration server ended unexpectedly.
    Closed { why: String },
    /// A plugin's stream ended.
    Ended {
        resource: ResourceName,
        number: u64,
        why: String,
    },
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Over {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Root(#[from] RootError),
    #[error("failed to accept connections")]
    Listen(#[from] std::io::Error),
    #[error("its directory was removed")]
    Gone,
    #[error(transparent)]
    Registry(#[from] AskError),
}

/// See the module. Plugins, their sockets and their offers stay when it ends.
#[derive(Debug)]
pub(super) struct Session {
    vendor: Arc<Vendor>,
    shared: Shared,
    directory: Directory,
    known: Known,
    lines: BTreeMap<ResourceName, Line>,
    looks: Looks,
    /// The offers in the registry, by resource.
    offered: BTreeMap<ResourceName, Offer>,
    /// The problems that were already logged: resources that another source owns, and lists that
    /// were cut.
    told: Told,
    turns: Turns,
    dirty: BTreeSet<ResourceName>,
    /// Resources whose last list did not fit beside the others.
    crowded: BTreeSet<ResourceName>,
    saving: Saving,
    to: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
    stop: CancellationToken,
    server: Option<DropGuard>,
    bind_at: Option<Instant>,
    /// Limits log lines about plugins that connect and disconnect, and about our socket.
    log: Rate,
}

/// Conditions that were already logged, so that they are not logged again.
#[derive(Debug, Default)]
struct Told {
    taken: BTreeMap<ResourceName, Source>,
    cut: BTreeMap<ResourceName, (usize, usize)>,
    refused: Complaints,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.routes.clear(&self.vendor.name);
        self.shared.board.clear(&self.vendor.name);
    }
}

impl Session {
    /// Opens the directory. Without stored registrations of this boot every plugin has to register;
    /// otherwise the stored ones are dialled again and notice nothing.
    pub(super) fn open(
        vendor: Arc<Vendor>,
        shared: Shared,
        stop: CancellationToken,
    ) -> Result<Self, Over> {
        let directory = Directory::open(&shared.root, &vendor)?;
        let known = Known::load(&shared.root, &vendor).map_err(DirectoryError::from)?;
        let (to, events) = mpsc::channel(EVENTS);
        let mut session = Self {
            vendor,
            shared,
            directory,
            known,
            lines: BTreeMap::new(),
            looks: Looks::default(),
            offered: BTreeMap::new(),
            told: Told::default(),
            turns: Turns::default(),
            dirty: BTreeSet::new(),
            crowded: BTreeSet::new(),
            saving: Saving::default(),
            to,
            events,
            stop,
            server: None,
            bind_at: None,
            log: Rate::every(LINE_EACH, 50),
        };
        session.restore();
        let cold = session.known.is_cold();
        session.directory.wipe(&session.known)?;
        session.serve()?;
        session.saving.start(&session.known);
        session.dial_known();
        let (name, path) = (&session.vendor.name, &session.directory.path);
        let start = if cold { "cold" } else { "warm" };
        tracing::info!(vendor = %name, "{start} start: plugins of {name} register in {path}");
        Ok(session)
    }

    fn source(&self) -> Source {
        Source::Plugin(self.vendor.name.clone())
    }

    /// Restores the offers of an earlier agent or session: they are in force until the plugin
    /// returns or the grace period is over.
    fn restore(&mut self) {
        let (inventory, source) = (self.shared.registry.inventory(), self.source());
        let inventory = inventory.borrow().clone();
        let ours = inventory.resources.values();
        for resource in ours.filter(|resource| resource.source == source) {
            let offer = Offer {
                devices: Arc::new(resource.devices.clone()),
                asks: resource.asks,
            };
            let name = &resource.name;
            self.offered.insert(name.clone(), offer.clone());
            let room = self.lines.len() < self.vendor.limits.resources;
            if room && self.vendor.may_claim(name) {
                let line = Line::restored(offer, Instant::now());
                self.lines.insert(name.clone(), line);
            } else {
                // The vendor's file has changed since.
                self.dirty.insert(name.clone());
            }
        }
    }

    fn desk(&self, stop: CancellationToken) -> Desk {
        Desk::new(
            self.shared.root.clone(),
            self.directory.path.clone(),
            Arc::clone(&self.vendor),
            self.to.clone(),
            stop,
            Arc::clone(&self.shared.numbers),
        )
    }

    /// Accepts registrations from now on; an earlier server ends.
    fn serve(&mut self) -> Result<(), Over> {
        self.server = None;
        let listener = self.directory.bind()?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let stop = self.stop.child_token();
        let vendor = Arc::clone(&self.vendor);
        let admits = move |user| vendor.may_connect(user);
        let incoming = guests(listener, &self.shared.tasks, stop.clone(), admits);
        let desk = self.desk(stop.clone());
        let service = RegistrationServer::new(desk).max_decoding_message_size(LARGEST_REQUEST);
        let server = Server::builder()
            .max_connection_age(guests::LONGEST)
            .max_connection_age_grace(guests::FAREWELL)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_concurrent_streams(STREAMS)
            .http2_max_header_list_size(HEADERS)
            .add_service(service);
        let server = server.serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
        let (ended, to) = (stop.clone(), self.to.clone());
        self.server = Some(stop.drop_guard());
        self.shared.tasks.spawn("plugin registration", async move {
            let late = async {
                ended.cancelled().await;
                sleep(guests::FAREWELL).await;
            };
            tokio::select! {
                over = server => if !ended.is_cancelled() {
                    let why = over.map_or_else(|error| chain(&error), |()| "it ended".to_owned());
                    // If the session is over, the event is not needed.
                    let _ = to.send(Event::Closed { why }).await;
                },
                // Safe to drop: only idle connections are left.
                () = late => {}
            }
        });
        Ok(())
    }

    /// Dials the plugins that registered with an earlier agent.
    fn dial_known(&self) {
        let stop = self.stop.child_token();
        // One service for all of them, since few are dialled at a time.
        let desk = self.desk(stop.clone());
        for one in self.known.all() {
            let (resource, endpoint) = (one.resource.clone(), one.endpoint.clone());
            let (stop, to, desk) = (stop.clone(), self.to.clone(), desk.clone());
            let was = self.directory.socket(&endpoint);
            self.shared.tasks.spawn("plugin dial", async move {
                let dialled = tokio::select! {
                    // Safe to drop: the next session dials it.
                    () = stop.cancelled() => return,
                    dialled = desk.dial_in_turn(&endpoint) => dialled,
                };
                let event = match dialled {
                    Ok(connection) => Event::Returned {
                        resource,
                        connection,
                    },
                    Err(error) => Event::Lost {
                        resource,
                        endpoint,
                        was,
                        why: chain(&error),
                    },
                };
                // If the session is over, the event is not needed.
                let _ = to.send(event).await;
            });
        }
    }

    /// Runs until it is stopped, which is no error, or cannot continue.
    pub(super) async fn run(&mut self) -> Result<(), Over> {
        let stop = self.stop.clone();
        // An earlier session's offers that another source overrides would come into force when that
        // source withdraws.
        let names = self.offered.keys().cloned().collect();
        self.shared.registry.only(self.source(), names).await?;
        loop {
            self.offer().await?;
            let alarm = self.alarm();
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                // Safe to drop: an event stays in the channel.
                Some(event) = self.events.recv() => self.on_event(event),
                // Safe to drop: changes stay in the kernel's queue.
                change = self.directory.changed() => match change? {
                    Change::Gone => return Err(Over::Gone),
                    Change::Socket if !self.directory.is_open() => self.bind_later(),
                    Change::Socket => {}
                },
                // Safe to drop: a write in progress continues, and its result can still be awaited.
                written = self.saving.done() => self.saved(written),
                // Safe to drop: the deadline is computed again.
                () = until(alarm) => self.on_time()?,
            }
        }
    }

    fn bind_later(&mut self) {
        self.bind_at
            .get_or_insert_with(|| Instant::now() + BIND_AGAIN);
    }

    fn alarm(&self) -> Option<Instant> {
        let (now, grace) = (Instant::now(), self.vendor.grace);
        let lines = self.lines.values();
        let lines = lines.filter_map(|line| line.alarm(now, grace)).min();
        let due = [self.saving.at(), self.bind_at, lines];
        due.into_iter().flatten().min()
    }

    fn on_time(&mut self) -> Result<(), Over> {
        let now = Instant::now();
        let passed = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if passed(self.saving.at()) {
            self.saving.start(&self.known);
        }
        if passed(self.bind_at) {
            self.bind_at = None;
            let (name, path) = (&self.vendor.name, &self.directory.path);
            if self.log.take() {
                tracing::warn!(vendor = %name, "kubelet.sock in {path} was replaced by another process; creating it again");
            }
            self.serve()?;
        }
        // The grace period may be over for any of them; the others turn out unchanged.
        self.dirty.extend(self.lines.keys().cloned());
        Ok(())
    }
}

mod events;
mod offering;
mod saving;
