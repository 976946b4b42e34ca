//! Checks the disk for drift: changes that other writers make to paths that the config owns.

use super::{Reconciler, ReconcilerHooks, UpdateError, drift_watch::DirtyPaths};
use crate::{
    cache::ObservationCache, journal::Journal, observe_and_plan, phase::Phase,
    service_port::Services, store, transaction,
};
use machinist_base::{abs_path::AbsPath, error_chain::chain, reason::Reason};

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Watches the paths of the base, and checks all of them once if the base is new.
    pub(super) async fn arm_drift(&mut self) -> Result<(), UpdateError> {
        let base = self.journal.base_digest();
        let Some(base) = base else {
            return Ok(());
        };
        // While an update is open, the disk need not match the base.
        if !self.journal.transactions.is_empty() || !self.drift.begin_watch(base) {
            return Ok(());
        }
        self.check_drift(DirtyPaths::NewConfig).await
    }

    pub(super) async fn check_drift(&mut self, dirty: DirtyPaths) -> Result<(), UpdateError> {
        if !self.journal.transactions.is_empty() {
            // It is checked when the update is over.
            self.drift.suspend();
            return Ok(());
        }
        let capabilities = self.options.current().capabilities;
        let rereads = !matches!(dirty, DirtyPaths::NewConfig);
        let only = match dirty {
            DirtyPaths::Some(paths) if paths.is_empty() => return Ok(()),
            DirtyPaths::Some(paths) => Some(paths),
            DirtyPaths::NewConfig | DirtyPaths::All => {
                let full_scan = tokio::time::Instant::now() + self.options.current().full_pass;
                self.drift.set_full_scan(full_scan);
                let paths = self.watched_paths().await?;
                self.drift.watch_paths(self.state.root(), &paths);
                None
            }
        };
        let found = self
            .blocking(move |store, journal| {
                let (root, base) = (store.root(), journal.base.as_ref());
                let empty = ObservationCache::default();
                let cache = if rereads { &empty } else { store.remembered() };
                let found = match only {
                    Some(only) => {
                        observe_and_plan::drift_around(root, base, only, capabilities, cache)
                            .map(|(checked, found)| (Some(checked), found))
                    }
                    None => observe_and_plan::drift(root, base, None, capabilities, cache)
                        .map(|found| (None, found)),
                };
                // The config is not needed until the next update.
                store.remembered().forget_configs();
                found
            })
            .await?;
        match found {
            Ok((checked, found)) => {
                let handling = &self.options.current().drift;
                self.drift.record(checked.as_ref(), found, handling);
                self.publish();
            }
            Err(error) if error.reason() == Reason::StoredConfigLost => {
                self.drift.rearm();
                self.report_lost_config(&error);
            }
            Err(error) => tracing::warn!("{}", chain(&error)),
        }
        Ok(())
    }

    /// Records that the stored copy of the config is lost. The config source may still have it, so it is read
    /// first.
    fn report_lost_config(&mut self, error: &observe_and_plan::LookError) {
        if self.progress.phase() == Phase::Idle && self.desired.is_known() {
            self.record_failure(error, error.reason(), error.is_retryable());
            self.enter(Phase::Failed);
        }
    }

    /// Returns the paths to watch: those that machinist wrote, and the directories of the base.
    async fn watched_paths(&mut self) -> Result<Vec<AbsPath>, UpdateError> {
        let Journal {
            owned,
            adopted,
            made,
            ..
        } = &self.journal;
        let named = owned.keys().chain(adopted).chain(made).cloned();
        let named: Vec<_> = named.chain(transaction::databases(&self.journal)).collect();
        Ok(named.into_iter().chain(self.directories().await?).collect())
    }

    /// Returns the directories that the base names. They may have existed before, and are not owned.
    async fn directories(&mut self) -> Result<Vec<AbsPath>, UpdateError> {
        self.blocking(|store, journal| {
            let base = journal.base.as_ref();
            let config = store::cached_config(store.root(), base, store.remembered());
            // The check that follows reports a read error.
            config.map_or_else(
                |_| Vec::new(),
                |config| config.directories.keys().cloned().collect(),
            )
        })
        .await
    }
}
