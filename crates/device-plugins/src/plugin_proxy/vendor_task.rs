//! Serves one vendor: its directory, the plugins registered in it, and the resources that they
//! offer.

mod events;
mod plugin_log;
mod published_offers;
mod registration_server;
mod registry_updates;
mod saved_registrations;
mod server_state;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use self::{
    plugin_log::PluginLog,
    published_offers::PublishedOffers,
    saved_registrations::{CheckpointWriteResult, SavedRegistrations},
    server_state::ServerState,
};
use super::{
    ProxyDeps, Vendor,
    checkpoint::PluginCheckpoint,
    list_codec::DecodeTurn,
    resource_instances::{ActiveList, ResourceInstances},
    task_events::PluginTaskEvent,
    vendor_directory::{DirectoryChange, DirectoryError, VendorDirectory},
};
use machinist_base::rate_limit::sleep_until_opt;
use machinist_device::{
    ResourceName,
    registry::{PathChecker, RegistryError},
    source::ResourceSource,
};
use machinist_rootfs::RootError;

/// Queued lists and registrations; senders of more have to wait.
const EVENT_QUEUE_LEN: usize = 16;
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
    DirectoryRemoved,
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// See the module. Plugins, their sockets and their offers stay when it ends.
#[derive(Debug)]
pub(super) struct ProxyVendorTask {
    vendor: Arc<Vendor>,
    deps: ProxyDeps,
    directory: VendorDirectory,
    server: ServerState,
    registrations: SavedRegistrations,
    resources: BTreeMap<ResourceName, ResourceInstances>,
    path_checker: PathChecker,
    offers: PublishedOffers,
    decode_turn: DecodeTurn,
    /// Resources whose last list did not fit beside the others.
    truncated_lists: BTreeSet<ResourceName>,
    log: PluginLog,
    event_sender: mpsc::Sender<PluginTaskEvent>,
    events: mpsc::Receiver<PluginTaskEvent>,
    stop: CancellationToken,
}

impl Drop for ProxyVendorTask {
    fn drop(&mut self) {
        self.deps.routes.clear(&self.vendor.name);
        self.deps.problems.clear(&self.vendor.name);
    }
}

impl ProxyVendorTask {
    /// Opens the directory. Without stored registrations of this boot every plugin has to register;
    /// otherwise the stored ones are dialled again and notice nothing.
    pub(super) fn open(
        vendor: Arc<Vendor>,
        deps: ProxyDeps,
        stop: CancellationToken,
    ) -> Result<Self, SessionEnd> {
        let directory = VendorDirectory::open(&deps.root, &vendor)?;
        let checkpoint =
            PluginCheckpoint::load(&deps.root, &vendor).map_err(DirectoryError::from)?;
        let is_cold_start = checkpoint.is_empty();
        let (event_sender, events) = mpsc::channel(EVENT_QUEUE_LEN);
        let mut task = Self {
            vendor,
            deps,
            directory,
            server: ServerState::default(),
            registrations: SavedRegistrations::new(checkpoint),
            resources: BTreeMap::new(),
            path_checker: PathChecker::default(),
            offers: PublishedOffers::default(),
            decode_turn: DecodeTurn::default(),
            truncated_lists: BTreeSet::new(),
            log: PluginLog::default(),
            event_sender,
            events,
            stop,
        };
        task.restore();
        task.directory.wipe(task.registrations.checkpoint())?;
        task.serve()?;
        task.registrations.start_write();
        task.dial_registered();
        let (name, path) = (&task.vendor.name, &task.directory.path);
        let start = if is_cold_start { "cold" } else { "warm" };
        tracing::info!(vendor = %name, "{start} start: plugins of {name} register in {path}");
        Ok(task)
    }

    fn source(&self) -> ResourceSource {
        ResourceSource::Plugin(self.vendor.name.clone())
    }

    /// Restores the offers of an earlier agent or session: they are in force until the plugin
    /// returns or the grace period is over.
    fn restore(&mut self) {
        let (inventory, source) = (self.deps.registry.inventory(), self.source());
        let inventory = inventory.borrow().clone();
        let ours = inventory.resources.values();
        for resource in ours.filter(|resource| resource.source == source) {
            let list = ActiveList {
                devices: Arc::new(resource.devices.clone()),
                options: resource.asks,
            };
            let name = &resource.name;
            self.offers.record_published(name.clone(), list.clone());
            let has_room = self.resources.len() < self.vendor.limits.resources;
            if has_room && self.vendor.may_claim(name) {
                let instances = ResourceInstances::restored(list, Instant::now());
                self.resources.insert(name.clone(), instances);
            } else {
                // The vendor's file has changed since.
                self.offers.mark_changed(name.clone());
            }
        }
    }

    /// Runs until it is stopped, which is no error, or cannot continue.
    pub(super) async fn run(&mut self) -> Result<(), SessionEnd> {
        let stop = self.stop.clone();
        // An earlier session's offers that another source overrides would come into force when that
        // source withdraws.
        let names = self.offers.names();
        self.deps
            .registry
            .retain_offers(self.source(), names)
            .await?;
        loop {
            self.update_registry().await?;
            let deadline = self.next_deadline();
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                // Safe to drop: an event stays in the channel.
                Some(event) = self.events.recv() => self.handle_event(event),
                // Safe to drop: changes stay in the kernel's queue.
                change = self.directory.changed() => match change? {
                    DirectoryChange::Removed => return Err(SessionEnd::DirectoryRemoved),
                    DirectoryChange::Socket if !self.directory.is_open() => self.server.schedule_restart(),
                    DirectoryChange::Socket => {}
                },
                // Safe to drop: a write in progress continues, and its result can still be awaited.
                result = self.registrations.write_finished() => self.record_write(result),
                // Safe to drop: the deadline is computed again.
                () = sleep_until_opt(deadline) => self.handle_deadline()?,
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let (now, grace) = (Instant::now(), self.vendor.grace);
        let resources = self.resources.values();
        let resources = resources.filter_map(|instances| instances.next_change(now, grace));
        let deadlines = [
            self.registrations.next_write_at(),
            self.server.restart_at(),
            resources.min(),
        ];
        deadlines.into_iter().flatten().min()
    }

    fn handle_deadline(&mut self) -> Result<(), SessionEnd> {
        let now = Instant::now();
        if self
            .registrations
            .next_write_at()
            .is_some_and(|at| at <= now)
        {
            self.registrations.start_write();
        }
        if self.server.take_due_restart(now) {
            let (name, path) = (&self.vendor.name, &self.directory.path);
            if self.log.take_connection_line() {
                tracing::warn!(vendor = %name, "kubelet.sock in {path} was replaced by another process; creating it again");
            }
            self.serve()?;
        }
        // The grace period may be over for any of them; the others turn out unchanged.
        self.offers.mark_all_changed(self.resources.keys());
        Ok(())
    }

    /// Handles the end of a write. If it failed, the registration still counts.
    fn record_write(&mut self, result: CheckpointWriteResult) {
        let name = &self.vendor.name;
        if let Some(reason) = self.registrations.record_write(result) {
            tracing::warn!(vendor = %name, "failed to save the plugins of {name}: {reason}");
        }
    }

    /// Waits for the current write: the next session reads the same file.
    pub(super) async fn finish(&mut self) {
        if self.registrations.is_writing() {
            let result = self.registrations.write_finished().await;
            self.record_write(result);
        }
    }
}
