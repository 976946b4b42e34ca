//! What is registered, brought to the disk beside everything else: a sync of a busy disk takes seconds, and
//! registrations that come meanwhile are one more write together.

use std::time::Duration;

use tokio::{
    sync::oneshot,
    task::{JoinError, JoinHandle, spawn_blocking},
    time::Instant,
};

use super::{Known, Session};
use crate::{proxy::known::Written, root::RootError, telemetry::chain};

/// How long what changed by itself may stay unwritten: a plugin that restarts is registered again by then.
const SAVE_WITHIN: Duration = Duration::from_secs(1);
/// When to try again what could not be written.
const SAVE_AGAIN: Duration = Duration::from_secs(30);

/// A plugin that waits for the answer to its registration.
type Reply = oneshot::Sender<Result<(), String>>;
/// How a write ended.
pub(super) type End = Result<Result<Written, RootError>, JoinError>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Saving {
    at: Option<Instant>,
    writing: Option<JoinHandle<Result<Written, RootError>>>,
    /// Answered when what is being written is on the disk.
    told_then: Vec<Reply>,
    /// Registered since that write began.
    waiting: Vec<Reply>,
    /// That it cannot be written was said.
    failed: bool,
}

impl Saving {
    /// When to write although nobody waits; never while something is being written.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at.filter(|_| self.writing.is_none())
    }

    /// What is known changed by itself.
    pub(super) fn soon(&mut self) {
        self.at.get_or_insert_with(|| Instant::now() + SAVE_WITHIN);
    }

    /// Whoever registered is told when that is on the disk.
    pub(super) fn before(&mut self, reply: Reply) {
        self.waiting.push(reply);
    }

    /// Writes what is known, unless something is being written: then after that.
    pub(super) fn start(&mut self, known: &Known) {
        if self.writing.is_some() {
            return;
        }
        self.at = None;
        self.told_then.append(&mut self.waiting);
        match known.page() {
            Some(page) => self.writing = Some(spawn_blocking(move || page.write())),
            None => self.tell(),
        }
    }

    /// Waits for the end of what is being written. Safe to drop.
    pub(super) async fn done(&mut self) -> End {
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
            // A plugin that gave up waiting is registered all the same, as with the kubelet.
            let _ = reply.send(Ok(()));
        }
    }
}

impl Session {
    /// A write ended. A registration that could not be written is one all the same.
    pub(super) fn saved(&mut self, end: End) {
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
                tracing::warn!(vendor = %name, "the next agent will not know the plugins of {name}: {why}");
            }
            let again = || Instant::now() + SAVE_AGAIN;
            self.saving.at.get_or_insert_with(again);
        } else {
            self.saving.failed = false;
        }
        self.saving.tell();
        if !self.saving.waiting.is_empty() {
            self.saving.start(&self.known);
        }
    }

    /// Waits for what is being written: the next session reads the same file.
    pub(in crate::proxy) async fn finish(&mut self) {
        if self.saving.writing.is_some() {
            let end = self.saving.done().await;
            self.saved(end);
        }
    }

    pub(super) fn save_soon(&mut self) {
        if self.known.is_news() {
            self.saving.soon();
        }
    }
}
