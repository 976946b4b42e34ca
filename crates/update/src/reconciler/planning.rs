//! Observes the machine, plans, and determines whether the plan may begin.

use std::sync::Arc;

use super::{DesiredConfig, Reconciler, ReconcilerHooks, UpdateError, plan_state::PlannedUpdate};
use crate::{
    journal::Journal,
    observe_and_plan::{self, PlanResult},
    phase::PhaseEvent,
    service_port::Services,
    store::StateStore,
};
use machinist_base::{digest::Digest, reason::Reason};
use machinist_ignition::{MachineConfig, Refusal};
use machinist_plan::Capabilities;

/// All refusals as one error, for the failure's message.
#[derive(Debug, thiserror::Error)]
#[error("the config is refused: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub(super) struct PlanRefusedError(pub(super) Vec<Refusal>);

/// Returns whether the refusal may disappear without a change of the config: disk space becomes free, a file system
/// is mounted or remounted, a flag is cleared, recovery is installed, the boot loader's files become readable, or an
/// obstacle is removed. Anything else requires a changed config.
fn is_transient(reason: Reason) -> bool {
    reason.is_obstacle()
        || matches!(
            reason,
            Reason::NoSpace
                | Reason::ReadOnly
                | Reason::Immutable
                | Reason::MountMissing
                | Reason::PermissionMissing
                | Reason::RecoveryMissing
                | Reason::OSStepFailed
        )
}

/// The desired config disappeared between two reads.
#[derive(Debug, thiserror::Error)]
#[error("no desired config to plan for")]
struct NoDesiredConfigError;

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Plans the update to the desired config; adopts the config if the disk already matches it.
    pub(super) async fn plan(&mut self) -> Result<PhaseEvent, UpdateError> {
        self.plan.rejected = None;
        let (to, digest) = match self.receive_desired().0 {
            DesiredConfig::Blocked(..) if self.journal.transactions.is_empty() => {
                return Ok(PhaseEvent::Withdrawn);
            }
            DesiredConfig::Config(to, digest) | DesiredConfig::Blocked(to, digest, _) => {
                (to, digest)
            }
            DesiredConfig::Unknown | DesiredConfig::Nothing | DesiredConfig::Refused(_) => {
                self.record_failure(&NoDesiredConfigError, Reason::SourceUnreadable, true);
                return Ok(PhaseEvent::StepFailed);
            }
        };
        self.install_recovery().await?;
        let Some(PlanResult {
            plan,
            from,
            named,
            moved,
            adopted_os,
            ..
        }) = self.observe_and_plan(&to).await?
        else {
            // Without this, it would be retried at once, without a delay.
            self.link_failure(digest);
            return Ok(PhaseEvent::StepFailed);
        };
        let mut planned = match plan {
            Ok(plan) => PlannedUpdate {
                changes: plan.changes.len(),
                is_approved: false,
                plan,
                from,
                named,
                moved,
                to,
                digest,
                adopted_os,
            },
            Err(refusals) => return Ok(self.record_refusals(refusals, digest)),
        };
        self.plan.limit_to_repair(&mut planned.plan);
        for warning in &planned.plan.warnings {
            tracing::warn!("{warning}");
        }
        self.plan.keep_warnings(&planned);
        // What an update leaves behind is recorded in its history, even if it changes nothing.
        let is_base = self.journal.base_digest() == Some(planned.digest);
        let leaves_nothing = planned.plan.left_behind.is_empty() || is_base;
        if planned.plan.is_empty() && leaves_nothing && self.journal.transactions.is_empty() {
            return self.adopt(planned).await;
        }
        self.plan.set(planned);
        Ok(PhaseEvent::PlanReady)
    }

    /// Handles a refused plan. A refused repair is dropped, and the drift stays reported.
    fn record_refusals(&mut self, refusals: Vec<Refusal>, digest: Digest) -> PhaseEvent {
        if self.plan.is_repair() {
            for refusal in refusals {
                tracing::warn!(reason = %Reason::LeftBehind, "drift not repaired: {refusal}");
            }
            return PhaseEvent::Withdrawn;
        }
        let refusals = self.host.explain(refusals);
        let code = refusals
            .first()
            .map_or(Reason::ConfigRefused, |refusal| refusal.reason);
        self.plan.discard();
        let transient = refusals.iter().all(|refusal| is_transient(refusal.reason));
        let listed = crate::bounded_refusals(&refusals);
        self.record_failure(&PlanRefusedError(refusals), code, transient);
        if let Some(failure) = &mut self.journal.failure {
            failure.refusals = listed;
        }
        self.link_failure(digest);
        match transient {
            true => PhaseEvent::StepFailed,
            false => PhaseEvent::PlanRefused,
        }
    }

    /// Observes the machine and plans. Returns `None` if the machine could not be observed; the failure is recorded
    /// then.
    pub(super) async fn observe_and_plan(
        &mut self,
        to: &Arc<MachineConfig>,
    ) -> Result<Option<PlanResult>, UpdateError> {
        let policies = Arc::clone(&self.options.current().policies);
        let capabilities = self.options.current().capabilities;
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
                        let units = observe_and_plan::units(&*services, &names);
                        self.run_responsive(units).await.map(Some)
                    }
                }
            }
        };
        let result = match units {
            Err(error) => Err(error),
            Ok(units) => {
                let to = Arc::clone(to);
                let only = self.plan.repair_path().cloned();
                let hooks = Arc::clone(&self.hooks);
                self.blocking(move |store, journal| {
                    let options = observe_and_plan::PlanOptions {
                        policies: &policies,
                        capabilities: Capabilities {
                            os: hooks.os_capabilities(store.root(), capabilities.os),
                            ..capabilities
                        },
                        units: units.as_ref(),
                        only: only.as_ref(),
                        remembered: store.remembered(),
                    };
                    observe_and_plan::observe_and_plan(store.root(), journal, &to, options)
                })
                .await?
            }
        };
        match result {
            Ok(result) => Ok(Some(result)),
            Err(error) => {
                self.record_failure(&error, error.reason(), error.is_retryable());
                Ok(None)
            }
        }
    }

    /// Links the failure to the refused config, so that an unchanged config is not retried.
    fn link_failure(&mut self, digest: Digest) {
        if let Some(failure) = &mut self.journal.failure {
            failure.digest = Some(digest);
        }
    }
}
