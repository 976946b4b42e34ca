//! Serves one vendor: its directory, the plugins registered in it, and the resources that they
//! offer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    net::UnixListener,
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Server;

use self::checkpoint_writer::PluginCheckpointWriter;
use super::{
    ProxyDeps, Vendor,
    checkpoint::PluginCheckpoint,
    device_list::{self, PluginDeviceList},
    list_codec::DecodeTurn,
    list_stream::follow,
    plugin_client::PluginConnection,
    registration::{MAX_REQUEST_BYTES, RegistrationService},
    resource_instances::{ActiveList, ResourceInstances},
    task_events::PluginTaskEvent,
    vendor_directory::{DirectoryChange, DirectoryError, VendorDirectory},
};
use crate::kubelet::{
    api::v1beta1::registration_server::RegistrationServer,
    limited_incoming::{self, incoming_limited},
};
use machinist_base::{
    error_chain::chain,
    rate_limit::{LogOnce, RateLimiter, sleep_until_opt},
};
use machinist_device::{
    Resource, ResourceName,
    inventory::{DeviceSpec, ServeMode, Share},
    registry::{OfferOutcome, PathChecker, RegistryError},
    source::ResourceSource,
};
use machinist_rootfs::{RootError, Stat, UnixAddress};

/// Bytes that may arrive on a connection before they are read; a registration is smaller.
const CONNECTION_WINDOW_BYTES: u32 = 64 * 1024;
/// Concurrent registrations on one connection.
const MAX_CONCURRENT_STREAMS: u32 = 4;
/// Bytes of headers of one request: HTTP/2's default frame size.
const MAX_HEADER_BYTES: u32 = 16 * 1024;

/// Queued lists and registrations; senders of more have to wait.
const EVENT_QUEUE_LEN: usize = 16;
/// Minimum time between two creations of our socket, in case another process keeps removing it.
const MIN_BIND_INTERVAL: Duration = Duration::from_secs(1);
/// Average interval of log lines about plugins that keep connecting and disconnecting.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionEnd {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Root(#[from] RootError),
    #[error("failed to accept connections")]
    Listen(#[from] std::io::Error),
    #[error("its directory was removed")]
    Gone,
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// See the module. Plugins, their sockets and their offers stay when it ends.
#[derive(Debug)]
pub(super) struct ProxyVendorTask {
    vendor: Arc<Vendor>,
    shared: ProxyDeps,
    directory: VendorDirectory,
    known: PluginCheckpoint,
    lines: BTreeMap<ResourceName, ResourceInstances>,
    looks: PathChecker,
    /// The offers in the registry, by resource.
    offered: BTreeMap<ResourceName, ActiveList>,
    /// The problems that were already logged: resources that another source owns, and lists that
    /// were cut.
    told: LoggedConditions,
    turns: DecodeTurn,
    dirty: BTreeSet<ResourceName>,
    /// Resources whose last list did not fit beside the others.
    crowded: BTreeSet<ResourceName>,
    saving: PluginCheckpointWriter,
    to: mpsc::Sender<PluginTaskEvent>,
    events: mpsc::Receiver<PluginTaskEvent>,
    stop: CancellationToken,
    server: Option<DropGuard>,
    bind_at: Option<Instant>,
    /// Limits log lines about plugins that connect and disconnect, and about our socket.
    log: RateLimiter,
}

/// Conditions that were already logged, so that they are not logged again.
#[derive(Debug, Default)]
struct LoggedConditions {
    taken: BTreeMap<ResourceName, ResourceSource>,
    cut: BTreeMap<ResourceName, (usize, usize)>,
    refused: LogOnce,
}

impl Drop for ProxyVendorTask {
    fn drop(&mut self) {
        self.shared.routes.clear(&self.vendor.name);
        self.shared.board.clear(&self.vendor.name);
    }
}

impl ProxyVendorTask {
    /// Opens the directory. Without stored registrations of this boot every plugin has to register;
    /// otherwise the stored ones are dialled again and notice nothing.
    pub(super) fn open(
        vendor: Arc<Vendor>,
        shared: ProxyDeps,
        stop: CancellationToken,
    ) -> Result<Self, SessionEnd> {
        let directory = VendorDirectory::open(&shared.root, &vendor)?;
        let known = PluginCheckpoint::load(&shared.root, &vendor).map_err(DirectoryError::from)?;
        let (to, events) = mpsc::channel(EVENT_QUEUE_LEN);
        let mut session = Self {
            vendor,
            shared,
            directory,
            known,
            lines: BTreeMap::new(),
            looks: PathChecker::default(),
            offered: BTreeMap::new(),
            told: LoggedConditions::default(),
            turns: DecodeTurn::default(),
            dirty: BTreeSet::new(),
            crowded: BTreeSet::new(),
            saving: PluginCheckpointWriter::default(),
            to,
            events,
            stop,
            server: None,
            bind_at: None,
            log: RateLimiter::per_interval(LOG_INTERVAL, 50),
        };
        session.restore();
        let cold = session.known.is_empty();
        session.directory.wipe(&session.known)?;
        session.serve()?;
        session.saving.start(&session.known);
        session.dial_known();
        let (name, path) = (&session.vendor.name, &session.directory.path);
        let start = if cold { "cold" } else { "warm" };
        tracing::info!(vendor = %name, "{start} start: plugins of {name} register in {path}");
        Ok(session)
    }

    fn source(&self) -> ResourceSource {
        ResourceSource::Plugin(self.vendor.name.clone())
    }

    /// Restores the offers of an earlier agent or session: they are in force until the plugin
    /// returns or the grace period is over.
    fn restore(&mut self) {
        let (inventory, source) = (self.shared.registry.inventory(), self.source());
        let inventory = inventory.borrow().clone();
        let ours = inventory.resources.values();
        for resource in ours.filter(|resource| resource.source == source) {
            let offer = ActiveList {
                devices: Arc::new(resource.devices.clone()),
                asks: resource.asks,
            };
            let name = &resource.name;
            self.offered.insert(name.clone(), offer.clone());
            let room = self.lines.len() < self.vendor.limits.resources;
            if room && self.vendor.may_claim(name) {
                let line = ResourceInstances::restored(offer, Instant::now());
                self.lines.insert(name.clone(), line);
            } else {
                // The vendor's file has changed since.
                self.dirty.insert(name.clone());
            }
        }
    }

    fn desk(&self, stop: CancellationToken) -> RegistrationService {
        RegistrationService::new(
            self.shared.root.clone(),
            self.directory.path.clone(),
            Arc::clone(&self.vendor),
            self.to.clone(),
            stop,
            Arc::clone(&self.shared.numbers),
        )
    }

    /// Accepts registrations from now on; an earlier server ends.
    fn serve(&mut self) -> Result<(), SessionEnd> {
        self.server = None;
        let listener = self.directory.bind()?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let stop = self.stop.child_token();
        let vendor = Arc::clone(&self.vendor);
        let admits = move |user| vendor.may_connect(user);
        let incoming = incoming_limited(listener, &self.shared.tasks, stop.clone(), admits);
        let desk = self.desk(stop.clone());
        let service = RegistrationServer::new(desk).max_decoding_message_size(MAX_REQUEST_BYTES);
        let server = Server::builder()
            .max_connection_age(limited_incoming::MAX_CONNECTION_AGE)
            .max_connection_age_grace(limited_incoming::CLOSE_GRACE)
            .initial_stream_window_size(CONNECTION_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .add_service(service);
        let server = server.serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
        let (ended, to) = (stop.clone(), self.to.clone());
        self.server = Some(stop.drop_guard());
        self.shared.tasks.spawn("plugin registration", async move {
            let late = async {
                ended.cancelled().await;
                sleep(limited_incoming::CLOSE_GRACE).await;
            };
            tokio::select! {
                over = server => if !ended.is_cancelled() {
                    let why = over.map_or_else(|error| chain(&error), |()| "it ended".to_owned());
                    // If the session is over, the event is not needed.
                    let _ = to.send(PluginTaskEvent::Closed { why }).await;
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
                    dialled = desk.dial_limited(&endpoint) => dialled,
                };
                let event = match dialled {
                    Ok(connection) => PluginTaskEvent::Returned {
                        resource,
                        connection,
                    },
                    Err(error) => PluginTaskEvent::Lost {
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
    pub(super) async fn run(&mut self) -> Result<(), SessionEnd> {
        let stop = self.stop.clone();
        // An earlier session's offers that another source overrides would come into force when that
        // source withdraws.
        let names = self.offered.keys().cloned().collect();
        self.shared
            .registry
            .retain_offers(self.source(), names)
            .await?;
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
                    DirectoryChange::Gone => return Err(SessionEnd::Gone),
                    DirectoryChange::Socket if !self.directory.is_open() => self.bind_later(),
                    DirectoryChange::Socket => {}
                },
                // Safe to drop: a write in progress continues, and its result can still be awaited.
                written = self.saving.done() => self.saved(written),
                // Safe to drop: the deadline is computed again.
                () = sleep_until_opt(alarm) => self.on_time()?,
            }
        }
    }

    fn bind_later(&mut self) {
        self.bind_at
            .get_or_insert_with(|| Instant::now() + MIN_BIND_INTERVAL);
    }

    fn alarm(&self) -> Option<Instant> {
        let (now, grace) = (Instant::now(), self.vendor.grace);
        let lines = self.lines.values();
        let lines = lines.filter_map(|line| line.next_change(now, grace)).min();
        let due = [self.saving.at(), self.bind_at, lines];
        due.into_iter().flatten().min()
    }

    fn on_time(&mut self) -> Result<(), SessionEnd> {
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

mod checkpoint_writer;
mod events;
mod registry_updates;
