//! Adopts a config without a change of the disk: as the base, or as the stored copy of the current config.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Reconciler, ReconcilerHooks, UpdateError, plan_state::PlannedUpdate};
use crate::{
    journal::Journal,
    observe_and_plan,
    phase::PhaseEvent,
    service_port::Services,
    store::{StateStore, StoreError},
    transaction,
};
use machinist_base::abs_path::AbsPath;

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Adopts the config because the disk already matches it: only the base in the journal changes.
    pub(super) async fn adopt(
        &mut self,
        planned: PlannedUpdate,
    ) -> Result<PhaseEvent, UpdateError> {
        let is_base = self.journal.base_digest() == Some(planned.digest);
        let adopted = planned.plan.adopted.clone();
        let is_repair = self.plan.is_repair();
        let result = self
            .blocking(move |store, journal| {
                if !is_repair {
                    journal.skipped.clone_from(&planned.plan.skipped);
                }
                make_base(store, journal, &planned, adopted)
            })
            .await?;
        result?;
        self.progress.reset_failures();
        if !is_base {
            let config = self.config_name();
            tracing::info!("the machine already matches {config}");
        }
        Ok(PhaseEvent::PlanEmpty)
    }

    /// Stores the machine's current config again when the source still has it, which restores a damaged or lost
    /// copy.
    pub(super) async fn store_desired(&mut self) -> Result<(), UpdateError> {
        let desired = self.desired.current();
        let Some((config, digest)) = desired.config() else {
            return Ok(());
        };
        let config = Arc::clone(config);
        let current = observe_and_plan::current(&self.journal).map(|name| name.digest);
        if current != Some(digest) || self.state.has_stored(digest) {
            return Ok(());
        }
        let stored = self
            .blocking(move |store, _| store.keep_config(&config))
            .await??;
        self.state.set_stored(Some(digest));
        let base = self.journal.base.as_mut();
        if let Some(base) = base.filter(|base| base.digest == stored.digest && !base.tells_absent) {
            base.tells_absent = true;
            self.save().await?;
        }
        Ok(())
    }
}

/// Makes the config the base without changing the tree. Paths that it does not name are not owned any more.
fn make_base(
    store: &StateStore,
    journal: &mut Journal,
    planned: &PlannedUpdate,
    adopted: BTreeSet<AbsPath>,
) -> Result<(), StoreError> {
    let is_named = |path: &AbsPath| planned.named.contains(path);
    journal.base = Some(store.keep_config(&planned.to)?);
    if let Some(adopted) = &planned.adopted_os {
        adopted.record(journal);
    }
    journal.failure = None;
    journal.adopted.extend(adopted);
    journal.adopted.retain(|path| is_named(path));
    journal.owned.retain(|path, _| is_named(path));
    journal.modes.retain(|path, _| is_named(path));
    journal.changed_objects.retain(|path, _| is_named(path));
    let let_go = &planned.plan.let_go;
    journal
        .entries
        .retain(|edit| !let_go.contains(&edit.place()));
    let originals = std::mem::take(&mut journal.originals);
    let is_needed = |path: &AbsPath| planned.named.iter().any(|named| named.is_under(path));
    let (needed, released) = originals.into_iter().partition(|(path, _)| is_needed(path));
    journal.originals = needed;
    store.save(journal)?;
    let released: BTreeMap<AbsPath, AbsPath> = released;
    for (path, place) in &released {
        if let Err(error) = transaction::release(store.root(), path, place) {
            tracing::warn!(%path, %place, "{}", machinist_base::error_chain::chain(&error));
        }
    }
    store.forget_configs(journal)
}
