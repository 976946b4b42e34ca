//! Writes registrations to disk in the background: a sync on a busy disk takes seconds, and
//! registrations that arrive meanwhile share the next write.

use std::time::Duration;

use tokio::{
    sync::oneshot,
    task::{JoinError, JoinHandle, spawn_blocking},
    time::Instant,
};

use super::{PluginCheckpoint, ProxyVendorTask};
use crate::plugin_proxy::checkpoint::WrittenState;
use machinist_base::error_chain::chain;
use machinist_rootfs::RootError;

/// Maximum delay of a write that no registration waits for; a restarting plugin has registered
/// again by then.
const MAX_SAVE_DELAY: Duration = Duration::from_secs(1);
/// Retry interval after a failed write.
const SAVE_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// The answer to a plugin that waits for its registration.
type RegistrationReply = oneshot::Sender<Result<(), String>>;
/// The result of a write.
pub(super) type PluginWriteOutcome = Result<Result<WrittenState, RootError>, JoinError>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct PluginCheckpointWriter {
    at: Option<Instant>,
    writing: Option<JoinHandle<Result<WrittenState, RootError>>>,
    /// Answered when the current write is complete.
    told_then: Vec<RegistrationReply>,
    /// Registered since the current write began.
    waiting: Vec<RegistrationReply>,
    /// The failure was already logged.
    failed: bool,
}

impl PluginCheckpointWriter {
    /// When to write although no registration waits; `None` while a write is in progress.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at.filter(|_| self.writing.is_none())
    }

    /// Schedules a write of a change that no plugin waits for.
    pub(super) fn soon(&mut self) {
        self.at
            .get_or_insert_with(|| Instant::now() + MAX_SAVE_DELAY);
    }

    /// Queues the answer to a registration until it is on disk.
    pub(super) fn before(&mut self, reply: RegistrationReply) {
        self.waiting.push(reply);
    }

    /// Starts a write, or one after the current write.
    pub(super) fn start(&mut self, known: &PluginCheckpoint) {
        if self.writing.is_some() {
            return;
        }
        self.at = None;
        self.told_then.append(&mut self.waiting);
        match known.pending_write() {
            Some(page) => self.writing = Some(spawn_blocking(move || page.write())),
            None => self.tell(),
        }
    }

    /// Waits for the end of the current write. Safe to drop.
    pub(super) async fn done(&mut self) -> PluginWriteOutcome {
        match &mut self.writing {
            Some(writing) => {
                let end = writing.await;
                self.writing = None;
                end
            }
            None => std::future::pending().await,
        }
    }

    fn tell(&mut self) {
        for reply in self.told_then.drain(..) {
            // If the plugin gave up waiting it is registered nevertheless, as with the kubelet.
            let _ = reply.send(Ok(()));
        }
    }
}

impl ProxyVendorTask {
    /// Handles the end of a write. If it failed, the registration still counts.
    pub(super) fn saved(&mut self, end: PluginWriteOutcome) {
        let name = &self.vendor.name;
        let why = match end {
            Ok(Ok(written)) => {
                self.known.written(written);
                None
            }
            Ok(Err(error)) => Some(chain(&error)),
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = why {
            if !std::mem::replace(&mut self.saving.failed, true) {
                tracing::warn!(vendor = %name, "failed to save the plugins of {name}: {why}");
            }
            let again = || Instant::now() + SAVE_RETRY_INTERVAL;
            self.saving.at.get_or_insert_with(again);
        } else {
            self.saving.failed = false;
        }
        self.saving.tell();
        if !self.saving.waiting.is_empty() {
            self.saving.start(&self.known);
        }
    }

    /// Waits for the current write: the next session reads the same file.
    pub(in crate::plugin_proxy) async fn finish(&mut self) {
        if self.saving.writing.is_some() {
            let end = self.saving.done().await;
            self.saved(end);
        }
    }

    pub(super) fn save_soon(&mut self) {
        if self.known.is_changed() {
            self.saving.soon();
        }
    }
}
