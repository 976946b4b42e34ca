//! Watches the paths that the config owns for changes by other writers.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::blocking::sleep_until;
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{Root, RootError, Watch, WatchEvent, WatchKind};

/// How long events are collected: an editor's save causes several events within a few milliseconds.
const DRIFT_DEBOUNCE: Duration = Duration::from_millis(50);

/// inotify watches on the directories of all paths that the base config owns.
#[derive(Debug, Default)]
pub(super) struct DriftWatch {
    watch: Option<Watch>,
    /// Relevant names in each watched directory, and whether each is owned or is a parent of an owned path.
    names: BTreeMap<AbsPath, BTreeMap<String, NameRelation>>,
    full_scan: Option<tokio::time::Instant>,
    /// Paths that were modified since the last report, and the time at which collecting ends.
    modified: BTreeSet<AbsPath>,
    /// All paths may have been modified, because events were lost or a directory was removed or created.
    all_modified: bool,
    collected_at: Option<tokio::time::Instant>,
}

/// How a name in a watched directory relates to the config.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NameRelation {
    /// Its object is owned.
    Owned,
    /// Owned paths are below it: if it is removed or created, all of them are affected.
    Parent,
}

/// The paths to check for drift.
#[derive(Debug)]
pub(super) enum DirtyPaths {
    /// These paths.
    Some(BTreeSet<AbsPath>),
    /// All paths, before watching of a new config begins. Files that its update has read need not be read again.
    NewConfig,
    /// All paths, without cached results: events were lost, a directory was removed or created, or the full scan is
    /// due.
    All,
}

impl DriftWatch {
    /// Waits until an owned path is modified. Waits forever if nothing is watched.
    ///
    /// Cancel-safe: collected events stay for the next call.
    pub(super) async fn wait_for_change(&mut self) -> DirtyPaths {
        loop {
            let (collected_at, full_scan) = (self.collected_at, self.full_scan);
            tokio::select! {
                // Safe to drop: what inotify has queued is read by the next call.
                events = next(&mut self.watch) => self.collect(events),
                // Safe to drop, both: the deadlines are absolute.
                () = sleep_until(collected_at) => return self.take_modified(),
                () = sleep_until(full_scan) => return DirtyPaths::All,
            }
        }
    }

    /// Schedules a full scan at this time or earlier.
    pub(super) fn schedule_full_scan(&mut self, then: tokio::time::Instant) {
        let due = self.full_scan.map_or(then, |due| due.min(then));
        self.full_scan = Some(due);
    }

    /// Cancels the full scan that is due next.
    pub(super) const fn cancel_full_scan(&mut self) {
        self.full_scan = None;
    }

    /// Replaces the time of the next full scan.
    pub(super) const fn set_full_scan(&mut self, then: tokio::time::Instant) {
        self.full_scan = Some(then);
    }

    fn take_modified(&mut self) -> DirtyPaths {
        self.collected_at = None;
        let modified = std::mem::take(&mut self.modified);
        match std::mem::take(&mut self.all_modified) {
            true => DirtyPaths::All,
            false => DirtyPaths::Some(modified),
        }
    }

    /// Records the paths that the events concern; the first relevant event starts the collection.
    fn collect(&mut self, events: Result<Vec<WatchEvent>, RootError>) {
        match events {
            Ok(events) => events.iter().for_each(|event| self.record(event)),
            Err(error) => {
                tracing::debug!("{}", machinist_base::error_chain::chain(&error));
                self.watch = None;
                self.all_modified = true;
            }
        }
        if self.all_modified || !self.modified.is_empty() {
            let end = tokio::time::Instant::now() + DRIFT_DEBOUNCE;
            self.collected_at.get_or_insert(end);
        }
    }

    fn record(&mut self, event: &WatchEvent) {
        let Some(name) = &event.name else {
            self.all_modified |= matches!(event.kind, WatchKind::DirGone | WatchKind::Overflow);
            return;
        };
        let names = self.names.get(&event.dir);
        match names.and_then(|names| names.get(name)) {
            Some(NameRelation::Owned) => self.modified.extend(event.dir.join(name)),
            Some(NameRelation::Parent) => self.all_modified |= event.kind != WatchKind::Attributes,
            None => {}
        }
    }

    /// Watches the directories of `owned`, and the entries of every parent directory: if a parent is moved or
    /// removed, everything below it is affected, and its return is an event one level higher.
    pub(super) fn arm(&mut self, root: &Root, owned: &[AbsPath]) -> Result<(), RootError> {
        self.names.clear();
        for path in owned {
            let (mut child, mut relation) = (path.clone(), NameRelation::Owned);
            for dir in path.ancestors() {
                let names = self.names.entry(dir.clone()).or_default();
                let name = child.file_name().to_owned();
                let recorded = names.entry(name).or_insert(relation);
                *recorded = relation.max(*recorded);
                (child, relation) = (dir, NameRelation::Parent);
            }
        }
        let mut watch = root.watch()?;
        let mut failed = None;
        let walks = root.for_one_pass();
        // Paths that a user could redirect are not watched; the full scan finds their drift.
        let is_safe = |dir: &AbsPath| {
            let inside = dir.join("x").ok();
            inside.is_some_and(|path| !walks.walk(&path).is_err_and(|error| error.is_unsafe()))
        };
        for (dir, names) in self.names.iter().filter(|(dir, _)| is_safe(dir)) {
            let has_owned = names
                .values()
                .any(|relation| *relation == NameRelation::Owned);
            // The creation of a missing directory is an event of its parent.
            let watched = match has_owned {
                true => watch.add(dir),
                false => watch.add_names(dir),
            };
            match watched {
                Err(error) if !error.is_not_found() => failed = Some(error),
                _ => {}
            }
        }
        self.watch = Some(watch);
        failed.map_or(Ok(()), Err)
    }
}

async fn next(watch: &mut Option<Watch>) -> Result<Vec<WatchEvent>, RootError> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}
