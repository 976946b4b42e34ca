//! Detects drift: changes that other writers make to paths that the config owns.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{DriftAction, Reconciler, ReconcilerHooks, UpdateError, blocking::sleep_until};
use crate::{
    cache::ObservationCache, journal::Journal, observe_and_plan, phase::Phase,
    service_port::Services, transaction,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_plan::DriftEntry;
use machinist_rootfs::{Root, RootError, Watch, WatchEvent, WatchKind};

/// How long events are collected: an editor's save causes several events within a few milliseconds.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// inotify watches on the directories of all paths that the base config owns.
#[derive(Debug, Default)]
pub(super) struct DriftWatch {
    watch: Option<Watch>,
    /// Relevant names in each watched directory, and whether each is owned or is a parent of an owned path.
    names: BTreeMap<AbsPath, BTreeMap<String, NameRelation>>,
    full_pass: Option<tokio::time::Instant>,
    /// Paths that were modified since the last report, and the time at which collecting ends.
    touched: BTreeSet<AbsPath>,
    all: bool,
    gathered_at: Option<tokio::time::Instant>,
    /// Drift by path.
    pub(super) found: BTreeMap<AbsPath, DriftEntry>,
    armed_for: Option<machinist_base::digest::Digest>,
}

/// How a name in a watched directory relates to the config.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NameRelation {
    /// Its object is owned.
    Owned,
    /// Owned paths are below it: if it is removed or created, all of them are affected.
    Above,
}

/// The paths to check for drift.
#[derive(Debug)]
pub(super) enum DirtyPaths {
    /// These paths.
    Some(BTreeSet<AbsPath>),
    /// All paths, before watching of a new config begins. Files that its update has read need not be read again.
    Armed,
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
            let (gathered_at, full_pass) = (self.gathered_at, self.full_pass);
            tokio::select! {
                // Safe to drop: what inotify has queued is read by the next call.
                events = next(&mut self.watch) => self.gather(events),
                // Safe to drop, both: the deadlines are absolute.
                () = sleep_until(gathered_at) => return self.take(),
                () = sleep_until(full_pass) => return DirtyPaths::All,
            }
        }
    }

    /// Schedules a full scan at this time or earlier.
    pub(super) fn schedule_full_scan(&mut self, then: tokio::time::Instant) {
        let sooner = self.full_pass.map_or(then, |known| known.min(then));
        self.full_pass = Some(sooner);
    }

    /// Makes the loop arm the watches again, with a full check, when it next waits.
    pub(super) fn rearm(&mut self) {
        self.armed_for = None;
    }

    fn take(&mut self) -> DirtyPaths {
        self.gathered_at = None;
        let touched = std::mem::take(&mut self.touched);
        match std::mem::take(&mut self.all) {
            true => DirtyPaths::All,
            false => DirtyPaths::Some(touched),
        }
    }

    /// Records the paths that the events concern; the first relevant event starts the collection.
    fn gather(&mut self, events: Result<Vec<WatchEvent>, RootError>) {
        match events {
            Ok(events) => events.iter().for_each(|event| self.note(event)),
            Err(error) => {
                tracing::debug!("{}", machinist_base::error_chain::chain(&error));
                self.watch = None;
                self.all = true;
            }
        }
        if self.all || !self.touched.is_empty() {
            let end = tokio::time::Instant::now() + DEBOUNCE;
            self.gathered_at.get_or_insert(end);
        }
    }

    fn note(&mut self, event: &WatchEvent) {
        let Some(name) = &event.name else {
            self.all |= matches!(event.kind, WatchKind::DirGone | WatchKind::Overflow);
            return;
        };
        let part = self.names.get(&event.dir).and_then(|names| names.get(name));
        match part {
            Some(NameRelation::Owned) => self.touched.extend(event.dir.join(name)),
            Some(NameRelation::Above) => self.all |= event.kind != WatchKind::Attributes,
            None => {}
        }
    }

    /// Watches the directories of `owned`, and the entries of every parent directory: if a parent is moved or
    /// removed, everything below it is affected, and its return is an event one level higher.
    fn arm(&mut self, root: &Root, owned: &[AbsPath]) -> Result<(), RootError> {
        self.names.clear();
        for path in owned {
            let (mut below, mut part) = (path.clone(), NameRelation::Owned);
            for above in path.ancestors() {
                let names = self.names.entry(above.clone()).or_default();
                let name = below.file_name().to_owned();
                let known = names.entry(name).or_insert(part);
                *known = part.max(*known);
                (below, part) = (above, NameRelation::Above);
            }
        }
        let mut watch = root.watch()?;
        let mut blind = None;
        let walks = root.for_one_pass();
        // Paths that a user could redirect are not watched; the full scan finds their drift.
        let safe = |dir: &AbsPath| {
            let inside = dir.join("x").ok();
            inside.is_some_and(|path| !walks.walk(&path).is_err_and(|error| error.is_unsafe()))
        };
        for (dir, names) in self.names.iter().filter(|(dir, _)| safe(dir)) {
            let holds = names.values().any(|part| *part == NameRelation::Owned);
            // The creation of a missing directory is an event of its parent.
            let watched = match holds {
                true => watch.add(dir),
                false => watch.add_names(dir),
            };
            match watched {
                Err(error) if !error.is_not_found() => blind = Some(error),
                _ => {}
            }
        }
        self.watch = Some(watch);
        blind.map_or(Ok(()), Err)
    }
}

async fn next(watch: &mut Option<Watch>) -> Result<Vec<WatchEvent>, RootError> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Watches the paths of the base, and checks all of them once if the base is new.
    pub(super) async fn arm_drift(&mut self) -> Result<(), UpdateError> {
        let base = self.journal.base.as_ref().map(|base| base.digest);
        // While an update is open, the disk need not match the base.
        if base.is_none() || self.drift.armed_for == base || !self.journal.transactions.is_empty() {
            return Ok(());
        }
        self.drift.armed_for = base;
        self.check_drift(DirtyPaths::Armed).await
    }

    pub(super) async fn check_drift(&mut self, touched: DirtyPaths) -> Result<(), UpdateError> {
        if !self.journal.transactions.is_empty() {
            self.drift.armed_for = None;
            // It is checked when the update is over; a deadline in the past would fire again at once.
            self.drift.full_pass = None;
            return Ok(());
        }
        let capabilities = self.options.current().capabilities;
        let anew = !matches!(touched, DirtyPaths::Armed);
        let only = match touched {
            DirtyPaths::Some(paths) if paths.is_empty() => return Ok(()),
            DirtyPaths::Some(paths) => Some(paths),
            DirtyPaths::Armed | DirtyPaths::All => {
                self.drift.full_pass =
                    Some(tokio::time::Instant::now() + self.options.current().full_pass);
                let Journal {
                    owned,
                    adopted,
                    made,
                    ..
                } = &self.journal;
                let named = owned.keys().chain(adopted).chain(made).cloned();
                let named: Vec<_> = named.chain(transaction::databases(&self.journal)).collect();
                let owned: Vec<_> = named.into_iter().chain(self.directories().await?).collect();
                if let Err(error) = self.drift.arm(self.state.root(), &owned) {
                    tracing::warn!(
                        "cannot watch all managed files; other drift is found by the periodic scan: {}",
                        machinist_base::error_chain::chain(&error)
                    );
                }
                None
            }
        };
        let found = self
            .blocking(move |store, journal| {
                let (root, base) = (store.root(), journal.base.as_ref());
                let fresh = ObservationCache::default();
                let known = if anew { &fresh } else { store.remembered() };
                let found = match only {
                    Some(only) => {
                        observe_and_plan::drift_around(root, base, only, capabilities, known)
                            .map(|(looked, found)| (Some(looked), found))
                    }
                    None => observe_and_plan::drift(root, base, None, capabilities, known)
                        .map(|found| (None, found)),
                };
                // The config is not needed until the next update.
                store.remembered().forget_configs();
                found
            })
            .await?;
        match found {
            Ok((looked, found)) => self.note_drift(looked.as_ref(), found),
            Err(error) if error.reason() == Reason::StoredConfigLost => {
                self.drift.armed_for = None;
                self.note_lost(&error);
            }
            Err(error) => tracing::warn!("{}", machinist_base::error_chain::chain(&error)),
        }
        Ok(())
    }

    /// Records that the stored copy of the config is lost. The config source may still have it, so it is read
    /// first.
    fn note_lost(&mut self, error: &observe_and_plan::LookError) {
        if self.progress.phase() == Phase::Idle && self.desired.is_known() {
            self.failed(error, error.reason(), error.is_retryable());
            self.enter(Phase::Failed);
        }
    }

    /// Returns the directories that the base names. They may have existed before, and are not owned.
    async fn directories(&mut self) -> Result<Vec<AbsPath>, UpdateError> {
        self.blocking(|store, journal| {
            let base = journal.base.as_ref();
            let config = store.remembered().config(store.root(), base);
            // The check that follows reports a read error.
            config.map_or_else(
                |_| Vec::new(),
                |config| config.directories.keys().cloned().collect(),
            )
        })
        .await
    }

    fn note_drift(&mut self, asked: Option<&BTreeSet<AbsPath>>, found: Vec<DriftEntry>) {
        let before = std::mem::take(&mut self.drift.found);
        let kept = before
            .iter()
            .filter(|(path, _)| asked.is_some_and(|asked| !asked.contains(path)));
        let mut now: BTreeMap<_, _> = kept
            .map(|(path, drift)| (path.clone(), drift.clone()))
            .collect();
        let shown = found
            .into_iter()
            .filter(|drift| self.options.current().drift.act(&drift.path) != DriftAction::Ignore);
        now.extend(shown.map(|drift| (drift.path.clone(), drift)));
        for (path, drift) in &now {
            if before.get(path) != Some(drift) {
                tracing::warn!(reason = %Reason::Drifted, "{drift}");
            }
        }
        for path in before.keys().filter(|path| !now.contains_key(path)) {
            tracing::info!(%path, "matches the config again");
        }
        self.drift.found = now;
        self.publish();
    }
}
