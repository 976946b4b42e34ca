//! Observes the machine, plans, and determines whether the plan may begin.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio_util::sync::CancellationToken;

use super::{DesiredConfig, Reconciler, ReconcilerHooks, UpdateError};
use crate::{
    journal::{Direction, Journal},
    observe_and_plan::{self, PlanResult},
    phase::{Phase, PhaseEvent},
    service_port::Services,
    store::{StateStore, StoreError},
    transaction,
};
use machinist_base::{abs_path::AbsPath, digest::Digest, reason::Reason};
use machinist_ignition::{MachineConfig, Refusal};
use machinist_plan::Plan;

/// Maximum number of a plan's warnings that the status and the journal keep; `machinist plan` prints all.
const MAX_WARNINGS: usize = 64;

/// A plan with its input.
#[derive(Debug)]
pub(super) struct PlannedUpdate {
    pub(super) plan: Plan,
    pub(super) from: Arc<MachineConfig>,
    /// The canonical paths that `to` names.
    pub(super) named: BTreeSet<AbsPath>,
    /// The canonical paths of those paths in both configs that differ from them.
    pub(super) moved: BTreeMap<AbsPath, AbsPath>,
    pub(super) to: Arc<MachineConfig>,
    pub(super) digest: Digest,
    /// The number of changes in the plan. The list of changes is dropped once it has been shown.
    pub(super) changes: usize,
}

/// All refusals as one error, for the failure's message.
#[derive(Debug, thiserror::Error)]
#[error("the config is refused: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub(super) struct PlanRefusedError(pub(super) Vec<Refusal>);

/// Returns whether the refusal may disappear without a change of the config: disk space becomes free, a file system
/// is mounted or remounted, a flag is cleared, recovery is installed, or an obstacle is removed. Anything else requires
/// a changed config.
fn passes(reason: Reason) -> bool {
    reason.is_obstacle()
        || matches!(
            reason,
            Reason::NoSpace
                | Reason::ReadOnly
                | Reason::Immutable
                | Reason::MountMissing
                | Reason::PermissionMissing
                | Reason::RecoveryMissing
        )
}

/// Returns as many warnings as the status and the journal keep.
pub(super) fn few(warnings: &[String]) -> Vec<String> {
    warnings.iter().take(MAX_WARNINGS).cloned().collect()
}

/// Returns whether obstacles are the only reasons.
fn obstacles_alone(refusals: &[Refusal]) -> bool {
    let mut refusals = refusals.iter();
    refusals.all(|refusal| refusal.reason.is_obstacle())
}

/// The desired config disappeared between two reads.
#[derive(Debug, thiserror::Error)]
#[error("no desired config to plan for")]
struct NoDesiredConfigError;

/// Makes the config the base without changing the tree. Paths that it does not name are not owned any more.
fn take_on(
    store: &StateStore,
    journal: &mut Journal,
    planned: &PlannedUpdate,
    adopted: BTreeSet<AbsPath>,
) -> Result<(), StoreError> {
    let named = |path: &AbsPath| planned.named.contains(path);
    journal.base = Some(store.keep_config(&planned.to)?);
    journal.failure = None;
    journal.adopted.extend(adopted);
    journal.adopted.retain(|path| named(path));
    journal.owned.retain(|path, _| named(path));
    journal.modes.retain(|path, _| named(path));
    let let_go = &planned.plan.let_go;
    journal
        .entries
        .retain(|edit| !let_go.contains(&edit.place()));
    let originals = std::mem::take(&mut journal.originals);
    let needed = |path: &AbsPath| planned.named.iter().any(|named| named.is_under(path));
    let (kept, released) = originals.into_iter().partition(|(path, _)| needed(path));
    journal.originals = kept;
    store.save(journal)?;
    let released: BTreeMap<AbsPath, AbsPath> = released;
    for (path, place) in &released {
        if let Err(error) = transaction::release(store.root(), path, place) {
            tracing::warn!(%path, %place, "{}", machinist_base::error_chain::chain(&error));
        }
    }
    store.forget_configs(journal)
}

impl<S: Services, A: ReconcilerHooks> Reconciler<S, A> {
    pub(super) async fn plan(&mut self) -> Result<PhaseEvent, UpdateError> {
        let (to, digest) = match self.take_request().0 {
            DesiredConfig::Barred(..) if self.journal.transactions.is_empty() => {
                return Ok(PhaseEvent::Withdrawn);
            }
            DesiredConfig::Config(to, digest) | DesiredConfig::Barred(to, digest, _) => {
                (to, digest)
            }
            DesiredConfig::Unknown | DesiredConfig::Nothing | DesiredConfig::Refused(_) => {
                self.failed(&NoDesiredConfigError, Reason::SourceUnreadable, true);
                return Ok(PhaseEvent::StepFailed);
            }
        };
        self.install_recovery().await?;
        let Some(PlanResult {
            plan,
            from,
            named,
            moved,
        }) = self.observe_and_plan(&to).await?
        else {
            // Without this, it would be retried at once, without a delay.
            self.remember_failure(digest);
            return Ok(PhaseEvent::StepFailed);
        };
        let planned = match plan {
            Ok(plan) => PlannedUpdate {
                plan,
                from,
                named,
                moved,
                to,
                digest,
                changes: 0,
            },
            Err(refusals) => return Ok(self.refused(refusals, digest)),
        };
        let mut planned = planned;
        planned.changes = planned.plan.changes.len();
        if self.repair.is_some() {
            super::drift_repair::without_reboot(&mut planned.plan);
        }
        for warning in &planned.plan.warnings {
            tracing::warn!("{warning}");
        }
        if self.repair.is_none() {
            self.cautions = Some((digest, few(&planned.plan.warnings)));
        }
        if planned.plan.is_empty() && self.journal.transactions.is_empty() {
            return self.adopt(planned).await;
        }
        self.planned = Some(planned);
        Ok(PhaseEvent::PlanReady)
    }

    /// Handles a refused plan. A repair is dropped if the only reasons are obstacles.
    fn refused(&mut self, refusals: Vec<Refusal>, digest: Digest) -> PhaseEvent {
        if self.repair.is_some() && obstacles_alone(&refusals) {
            let reason = Reason::LeftBehind;
            for refusal in refusals {
                tracing::warn!(%reason, "not repaired: {refusal}");
            }
            self.repair = None;
            return PhaseEvent::Withdrawn;
        }
        let refusals = self.with_cause(refusals);
        let code = refusals
            .first()
            .map_or(Reason::ConfigRefused, |refusal| refusal.reason);
        self.planned = None;
        let passes = refusals.iter().all(|refusal| passes(refusal.reason));
        let listed = crate::bounded_refusals(&refusals);
        self.failed(&PlanRefusedError(refusals), code, passes);
        if let Some(failure) = &mut self.journal.failure {
            failure.refusals = listed;
        }
        self.remember_failure(digest);
        let reboot_pending = !self.journal.transactions.is_empty();
        match passes && !reboot_pending {
            true => PhaseEvent::StepFailed,
            false => PhaseEvent::PlanRefused { reboot_pending },
        }
    }

    /// Observes the machine and plans. Returns `None` if the machine could not be observed; the failure is recorded
    /// then.
    pub(super) async fn observe_and_plan(
        &mut self,
        to: &Arc<MachineConfig>,
    ) -> Result<Option<PlanResult>, UpdateError> {
        let policies = Arc::clone(&self.conduct.policies);
        let capabilities = self.conduct.capabilities;
        let units = match self.services.clone() {
            None => Ok(None),
            Some(services) => {
                let (to, policies) = (Arc::clone(to), Arc::clone(&policies));
                let names = move |store: &StateStore, journal: &mut Journal| {
                    observe_and_plan::unit_names(
                        store.root(),
                        journal,
                        &to,
                        &policies,
                        store.remembered(),
                    )
                };
                match self.blocking(names).await? {
                    Err(error) => Err(error),
                    Ok(names) => {
                        let asked = observe_and_plan::units(&*services, &names);
                        self.run_responsive(asked).await.map(Some)
                    }
                }
            }
        };
        let looked = match units {
            Err(error) => Err(error),
            Ok(units) => {
                let to = Arc::clone(to);
                let only = self.repair.clone();
                self.blocking(move |store, journal| {
                    let how = observe_and_plan::PlanOptions {
                        policies: &policies,
                        capabilities,
                        units: units.as_ref(),
                        only: only.as_ref(),
                        remembered: store.remembered(),
                    };
                    observe_and_plan::observe_and_plan(store.root(), journal, &to, how)
                })
                .await?
            }
        };
        match looked {
            Ok(looked) => Ok(Some(looked)),
            Err(error) => {
                self.failed(&error, error.reason(), error.is_retryable());
                Ok(None)
            }
        }
    }

    /// Adopts the config because the disk already matches it: only the base in the journal changes.
    async fn adopt(&mut self, planned: PlannedUpdate) -> Result<PhaseEvent, UpdateError> {
        let known = self.journal.base.as_ref().map(|base| base.digest) == Some(planned.digest);
        let adopted = planned.plan.adopted.clone();
        let saved = self
            .blocking(move |store, journal| take_on(store, journal, &planned, adopted))
            .await?;
        saved?;
        self.failures = 0;
        if !known {
            let config = self.config_name();
            tracing::info!("the machine already matches {config}");
        }
        Ok(PhaseEvent::PlanEmpty)
    }

    /// Waits until the plan may begin, and shows it to the caller for approval. Returns `None` on a stop.
    pub(super) async fn await_release(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        let known = self.earliest;
        if let Some(otherwise) = self.query_earliest_start(stop).await? {
            return Ok(otherwise);
        }
        if let Some(opens) = self.closed_until() {
            let to = self.desired_name();
            match self.earliest.is_some() && self.earliest == known {
                true => tracing::debug!("{to} is still waiting until {opens}"),
                false => tracing::info!("{to} is waiting for its start time {opens}"),
            }
            self.publish();
            return self.wait(stop).await;
        }
        let Some(planned) = self.planned.take() else {
            return Ok(Some(PhaseEvent::Withdrawn));
        };
        let audience = Arc::clone(&self.audience);
        let asked = tokio::task::spawn_blocking(move || {
            let mut planned = planned;
            let approved = audience.approve(&planned.plan);
            planned.plan.changes = Vec::new();
            (approved, planned)
        });
        let (approved, planned) = self
            .run_responsive(asked)
            .await
            .map_err(UpdateError::Lost)?;
        if !approved {
            return Ok(Some(PhaseEvent::Withdrawn));
        }
        self.planned = Some(planned);
        match self.drains() {
            // Nothing new begins after a stop.
            drain if drain || self.node.is_none() => {
                Ok((!stop.is_cancelled()).then_some(PhaseEvent::Released { drain }))
            }
            _ => self.permit_without_drain(stop).await,
        }
    }

    /// Returns the event that the desired config causes in the current phase.
    pub(super) fn event_for_desired(&mut self) -> Option<PhaseEvent> {
        let (desired, asked) = self.take_request();
        self.rename_update();
        match desired {
            DesiredConfig::Unknown | DesiredConfig::Nothing => {
                self.publish();
                None
            }
            DesiredConfig::Refused(refusals) => {
                self.note_refused(&refusals);
                None
            }
            DesiredConfig::Barred(_, digest, bar) => {
                let event = self.event_for_blocked(digest, &bar);
                if event.is_none() {
                    self.publish();
                }
                event
            }
            DesiredConfig::Config(_, digest) => {
                let event = self.event_for(digest);
                let event = event.or_else(|| self.event_for_request().filter(|_| asked));
                if event.is_none() {
                    // There is nothing to do, but the report must show its name.
                    self.publish();
                }
                event
            }
        }
    }

    pub(super) fn event_for(&mut self, digest: Digest) -> Option<PhaseEvent> {
        let base = self.journal.base.as_ref().map(|base| base.digest);
        let failure = self.journal.failure.as_ref();
        if self.phase.is_before_staging() {
            let planned = self.planned.as_ref().map(|planned| planned.digest);
            return match planned == Some(digest) {
                true => None,
                false if base == Some(digest) && self.journal.top().is_none() => {
                    Some(PhaseEvent::Withdrawn)
                }
                false => Some(PhaseEvent::Desired),
            };
        }
        match self.journal.top() {
            // An undo is completed first; only the wait for its next attempt is interrupted.
            Some(tx) if tx.direction == Direction::Undo => None,
            Some(tx) if tx.to.digest == digest => None,
            Some(_) if base == Some(digest) => Some(PhaseEvent::Withdrawn),
            None if base == Some(digest) => {
                if failure.is_some() && self.phase == Phase::Failed {
                    return Some(PhaseEvent::Withdrawn);
                }
                if self.journal.failure.take().is_some() {
                    tracing::info!("the source contains the machine's config again");
                }
                // The node is still cordoned for a config that is no longer desired.
                (self.phase == Phase::Idle && self.is_stale_cordon())
                    .then_some(PhaseEvent::Withdrawn)
            }
            // The same config would fail the same way; a transient failure has its own retry delay.
            _ if failure.is_some_and(|failure| failure.digest == Some(digest)) => None,
            _ => {
                self.repair = None;
                Some(PhaseEvent::Desired)
            }
        }
    }

    /// Stores the machine's current config again when the source still has it, which restores a damaged or lost
    /// copy.
    pub(super) async fn keep_desired(&mut self) -> Result<(), UpdateError> {
        let desired = self.desired.borrow().clone();
        let Some((config, digest)) = desired.config() else {
            return Ok(());
        };
        let config = Arc::clone(config);
        let current = observe_and_plan::current(&self.journal).map(|name| name.digest);
        if current != Some(digest) || self.kept == current {
            return Ok(());
        }
        let kept = self
            .blocking(move |store, _| store.keep_config(&config))
            .await??;
        self.kept = current;
        let base = self.journal.base.as_mut();
        if let Some(base) = base.filter(|base| base.digest == kept.digest && !base.tells_absent) {
            base.tells_absent = true;
            self.save().await?;
        }
        Ok(())
    }

    fn note_refused(&mut self, refusals: &[Refusal]) {
        for refusal in refusals {
            tracing::error!(reason = %refusal.reason, "{refusal}");
        }
        match observe_and_plan::current(&self.journal) {
            Some(current) => tracing::warn!("keeping the last valid config: {}", current.name),
            None => {
                tracing::warn!("no changes until the source contains a valid config")
            }
        }
        self.publish();
    }

    /// Links the failure to the refused config, so that an unchanged config is not retried.
    fn remember_failure(&mut self, digest: Digest) {
        if let Some(failure) = &mut self.journal.failure {
            failure.digest = Some(digest);
        }
    }
}
