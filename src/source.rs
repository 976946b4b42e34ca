//! Where the desired config comes from on a machine without a cluster: a directory of manifests,
//! read whole, watched, and read again whenever something in it changes.

mod watching;

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use watching::Watching;

use crate::{
    machine_config::{self, Order, Refusal, Rules},
    metrics::{Metrics, SourceRead},
    path::AbsPath,
    reason::Reason,
    root::{Kind, Root, RootError},
    update::run::Desired,
};

/// An editor's save is several events within a few milliseconds; the reaction to a save must show
/// within 300 ms, so the quiet time is a small part of that.
const DEBOUNCE: Duration = Duration::from_millis(40);

/// A save that is caught half-way reads as broken: the complaint waits this long for the rest of it.
const PATIENCE: Duration = Duration::from_millis(150);

/// One manifest may be as large as the API server would take, with room for what needs no server.
const LARGEST_FILE: u64 = 8 << 20;

/// More manifests than this in one directory is a wrong directory.
const MOST_FILES: usize = 10_000;

/// The pool that a machine without a cluster is in: the middle of its configs' names.
pub const POOL: &str = "machine";

/// A directory of manifests.
#[derive(Clone, Debug)]
pub struct DirectorySource {
    /// The tree that `dir` is resolved in: the root for a path from settings, the caller's file
    /// system for a path from a flag.
    pub tree: Root,
    /// The directory.
    pub dir: AbsPath,
    /// How the user calls it; messages name files below it.
    pub shown: String,
    /// Users whose keys may be set.
    pub users: Vec<String>,
}

impl DirectorySource {
    /// Reads and merges everything in the directory. Files are taken in the order of their names;
    /// hidden files and names with an unknown ending are left out.
    pub fn read(&self) -> Result<machine_config::MachineConfig, Vec<Refusal>> {
        let files = self.files().map_err(|refusal| vec![refusal])?;
        let rules = Rules {
            users: self.users.iter().cloned().collect(),
        };
        let (documents, warnings) = machine_config::documents_from_files(files, &rules)?;
        if documents.is_empty() {
            return Err(vec![self.refusal(
                Reason::SourceEmpty,
                "the source holds no config; nothing is taken away because of it",
            )]);
        }
        let (config, more) = machine_config::merge(documents, POOL, Order::AsGiven)?;
        for warning in warnings.iter().chain(&more) {
            tracing::warn!("{warning}");
        }
        Ok(config)
    }

    fn files(&self) -> Result<Vec<(String, Vec<u8>)>, Refusal> {
        let entries = match self.tree.list(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.is_not_found() => {
                return Err(
                    self.refusal(Reason::SourceEmpty, "the source directory does not exist")
                );
            }
            Err(error) => return Err(self.unreadable(&error)),
        };
        if entries.len() > MOST_FILES {
            return Err(self.refusal(
                Reason::SourceUnreadable,
                "the source holds more than 10,000 entries",
            ));
        }
        let manifests = entries.into_iter().filter(|entry| {
            !entry.name.starts_with('.') && matches!(entry.kind, Kind::File | Kind::Link)
        });
        let mut files = Vec::new();
        for entry in manifests.filter(|entry| machine_config::is_config_name(&entry.name)) {
            let path = self
                .dir
                .join(&entry.name)
                .map_err(|error| self.refusal(Reason::SourceUnreadable, &error.to_string()))?;
            match self.tree.read(&path, LARGEST_FILE) {
                Ok(bytes) => files.push((format!("{}/{}", self.shown, entry.name), bytes)),
                // What it brought must not leave the machine because a share is away.
                Err(error) if error.is_not_found() && self.tree.read_link(&path).is_ok() => {
                    let message = format!("{} is a link that leads nowhere", entry.name);
                    return Err(self.refusal(Reason::SourceUnreadable, &message));
                }
                // Gone between the listing and the reading: the watch has seen it too.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(self.unreadable(&error)),
            }
        }
        Ok(files)
    }

    fn unreadable(&self, error: &RootError) -> Refusal {
        self.refusal(Reason::SourceUnreadable, &crate::telemetry::chain(error))
    }

    fn refusal(&self, reason: Reason, message: &str) -> Refusal {
        Refusal {
            file: Some(self.shown.clone()),
            ..Refusal::new(reason, message)
        }
    }

    /// Reads now and after every change, until `stop`. Each reading that differs is published.
    pub async fn follow(
        self,
        desired: watch::Sender<Desired>,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) {
        let mut watching = self.arm().await;
        self.publish(&desired, &metrics, false).await;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                // Safe to drop: what inotify has queued is read by the next call.
                () = watching.changed() => {}
            }
            watching.settle(DEBOUNCE).await;
            // The directory may have been replaced, or its links may lead elsewhere now.
            watching = self.arm().await;
            if !self.publish(&desired, &metrics, true).await {
                watching.settle(PATIENCE).await;
                self.publish(&desired, &metrics, false).await;
            }
        }
    }

    async fn arm(&self) -> Watching {
        let source = self.clone();
        let armed = move || Watching::arm(&source.tree, &source.dir);
        tokio::task::spawn_blocking(armed).await.unwrap_or_default()
    }

    /// Reads once and publishes. With `patient` a refusal is kept back and `false` returned.
    async fn publish(
        &self,
        desired: &watch::Sender<Desired>,
        metrics: &Metrics,
        patient: bool,
    ) -> bool {
        let source = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let config = source.read()?;
            let digest = machine_config::digest(&config);
            Ok((config, digest))
        });
        let read = match read.await {
            Ok(Ok((config, digest))) => Desired::Config(Arc::new(config), digest),
            Ok(Err(_)) if patient => return false,
            Ok(Err(refusals)) => Desired::Refused(Arc::new(refusals)),
            // A defect of the reader must not look like a source that nobody changed.
            Err(lost) => {
                let refusal = self.refusal(
                    Reason::SourceUnreadable,
                    &format!("reading broke off: {lost}"),
                );
                Desired::Refused(Arc::new(vec![refusal]))
            }
        };
        metrics.source_was_read(match &read {
            Desired::Config(..) => SourceRead::Accepted,
            Desired::Refused(refusals) if refusals.iter().any(is_unreadable) => {
                SourceRead::Unreadable
            }
            _ => SourceRead::Refused,
        });
        desired.send_if_modified(|known| {
            let differs = !known.says_the_same(&read);
            if differs {
                *known = read;
            }
            differs
        });
        true
    }
}

fn is_unreadable(refusal: &Refusal) -> bool {
    refusal.reason == Reason::SourceUnreadable
}
