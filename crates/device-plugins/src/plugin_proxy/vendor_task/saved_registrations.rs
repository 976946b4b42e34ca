//! The registrations of a vendor, written to disk in the background: a sync on a busy disk takes
//! seconds, and registrations that arrive meanwhile share the next write.

use std::time::Duration;

use tokio::{
    sync::oneshot,
    task::{JoinError, JoinHandle, spawn_blocking},
    time::Instant,
};

use crate::plugin_proxy::checkpoint::{PluginCheckpoint, PluginRegistration, WrittenState};
use machinist_base::error_chain::chain;
use machinist_device::ResourceName;
use machinist_rootfs::RootError;

/// Maximum delay of a write that no registration waits for; a restarting plugin has registered
/// again by then.
const MAX_SAVE_DELAY: Duration = Duration::from_secs(1);
/// Retry interval after a failed write.
const SAVE_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// The answer to a plugin that waits for its registration.
type RegistrationReply = oneshot::Sender<Result<(), String>>;
/// The result of a write.
pub(super) type CheckpointWriteResult = Result<Result<WrittenState, RootError>, JoinError>;

/// See the module.
#[derive(Debug)]
pub(super) struct SavedRegistrations {
    checkpoint: PluginCheckpoint,
    /// When to write although no registration waits.
    write_at: Option<Instant>,
    current_write: Option<JoinHandle<Result<WrittenState, RootError>>>,
    /// Answered when the current write is complete.
    replies: Vec<RegistrationReply>,
    /// Registered since the current write began.
    next_replies: Vec<RegistrationReply>,
    /// The last write failed, which was already logged.
    has_failed: bool,
}

impl SavedRegistrations {
    pub(super) const fn new(checkpoint: PluginCheckpoint) -> Self {
        Self {
            checkpoint,
            write_at: None,
            current_write: None,
            replies: Vec::new(),
            next_replies: Vec::new(),
            has_failed: false,
        }
    }

    pub(super) const fn checkpoint(&self) -> &PluginCheckpoint {
        &self.checkpoint
    }

    pub(super) fn all(&self) -> &[PluginRegistration] {
        self.checkpoint.all()
    }

    pub(super) fn add(&mut self, resource: &ResourceName, endpoint: &str) {
        self.checkpoint.add(resource, endpoint);
    }

    /// Removes a registration; no plugin waits for the write.
    pub(super) fn remove(&mut self, resource: &ResourceName, endpoint: &str) {
        self.checkpoint.remove(resource, endpoint);
        if self.checkpoint.is_changed() {
            self.write_at
                .get_or_insert_with(|| Instant::now() + MAX_SAVE_DELAY);
        }
    }

    /// When to write although no registration waits; `None` while a write is in progress.
    pub(super) fn next_write_at(&self) -> Option<Instant> {
        self.write_at.filter(|_| self.current_write.is_none())
    }

    pub(super) const fn is_writing(&self) -> bool {
        self.current_write.is_some()
    }

    /// Writes, and answers a registration when it is on disk.
    pub(super) fn write_before(&mut self, reply: RegistrationReply) {
        self.next_replies.push(reply);
        self.start_write();
    }

    /// Starts a write, or one after the current write.
    pub(super) fn start_write(&mut self) {
        if self.current_write.is_some() {
            return;
        }
        self.write_at = None;
        self.replies.append(&mut self.next_replies);
        match self.checkpoint.pending_write() {
            Some(write) => self.current_write = Some(spawn_blocking(move || write.write())),
            None => self.send_replies(),
        }
    }

    /// Waits for the end of the current write. Safe to drop.
    pub(super) async fn write_finished(&mut self) -> CheckpointWriteResult {
        match &mut self.current_write {
            Some(write) => {
                let result = write.await;
                self.current_write = None;
                result
            }
            None => std::future::pending().await,
        }
    }

    /// Records the end of a write; returns the reason if it is the first that failed.
    pub(super) fn record_write(&mut self, result: CheckpointWriteResult) -> Option<String> {
        let failure = match result {
            Ok(Ok(written)) => {
                self.checkpoint.record_written(written);
                None
            }
            Ok(Err(error)) => Some(chain(&error)),
            Err(error) => Some(error.to_string()),
        };
        let had_failed = std::mem::replace(&mut self.has_failed, failure.is_some());
        if failure.is_some() {
            self.write_at
                .get_or_insert_with(|| Instant::now() + SAVE_RETRY_INTERVAL);
        }
        self.send_replies();
        if !self.next_replies.is_empty() {
            self.start_write();
        }
        failure.filter(|_| !had_failed)
    }

    fn send_replies(&mut self) {
        for reply in self.replies.drain(..) {
            // If the plugin gave up waiting it is registered nevertheless, as with the kubelet.
            let _ = reply.send(Ok(()));
        }
    }
}
