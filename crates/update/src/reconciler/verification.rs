//! Verifies the disk and the boot, records the outcome, and cleans up.

use std::collections::BTreeSet;

use jiff::Timestamp;

use tokio_util::sync::CancellationToken;

use super::{Reconciler, ReconcilerHooks, UpdateError, health_check::HealthOutcome};
use crate::{
    boot_health::{self, Regression},
    crash_recovery,
    journal::{Outcome, UpdateFailure},
    observe_and_plan,
    phase::PhaseEvent,
    service_port::Services,
    transaction,
};
use machinist_base::reason::Reason;
use machinist_plan::{DriftEntry, DriftKind};

#[derive(Debug, thiserror::Error)]
#[error("the disk does not match the config: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
struct DiskMismatchError(Vec<DriftEntry>);

#[derive(Debug, thiserror::Error)]
#[error("the machine has not rebooted since the commit")]
struct StaleBootError;

#[derive(Debug, thiserror::Error)]
#[error("the machine's health is worse than before: {}", boot_health::sentence(.0))]
struct HealthRegressedError(Vec<Regression>);

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Waits until the machine is healthy, then checks the disk once. Returns `None` on a stop.
    pub(super) async fn verify(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        if !self.has_needed_boot() {
            self.record_failure(&StaleBootError, Reason::BootUnverified, false);
            return Ok(Some(PhaseEvent::StepFailed));
        }
        // A process that runs once receives no later change of the desired config.
        if let Some(event) = self.event_for_desired() {
            return Ok(Some(event));
        }
        if let Some(ended) = self.reenable_devices(stop).await? {
            return Ok(ended);
        }
        Ok(match self.wait_for_health(stop).await? {
            HealthOutcome::Healthy => self.check_disk(stop).await?,
            HealthOutcome::Unhealthy(regressions) => Some(self.handle_unhealthy(regressions)),
            HealthOutcome::Event(event) => Some(event),
            HealthOutcome::Stopped => None,
        })
    }

    /// Handles an unhealthy machine: requests another boot, because the cause may be transient; after
    /// `update.bootAttempts` boots, the update fails. Requests no boot if reboots are left to an operator.
    fn handle_unhealthy(&mut self, regressions: Vec<Regression>) -> PhaseEvent {
        let boots = self.counted_boots();
        let may_reboot = boots < self.boot_attempts() && self.has_booted();
        let error = HealthRegressedError(regressions);
        if !may_reboot || self.options.leaves_reboots_to_operators() {
            self.record_failure(&error, Reason::HealthRegressed, false);
            return PhaseEvent::StepFailed;
        }
        let message = crate::bounded(error.to_string());
        tracing::error!(reason = %Reason::HealthRegressed, boots, "{message}; rebooting once more");
        self.journal.failure = Some(UpdateFailure {
            code: Reason::HealthRegressed,
            message,
            retryable: true,
            digest: None,
            refusals: Vec::new(),
        });
        PhaseEvent::RebootDue
    }

    async fn check_disk(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        self.store_desired().await?;
        let capabilities = self.options.current().capabilities;
        // A repair concerns only its own path.
        let only = self
            .plan
            .repair_path()
            .cloned()
            .map(|path| BTreeSet::from([path]));
        match self
            .blocking(move |store, journal| {
                observe_and_plan::drift(
                    store.root(),
                    observe_and_plan::current(journal),
                    only.as_ref(),
                    capabilities,
                    store.remembered(),
                )
            })
            .await?
        {
            Ok(drift) if drift.iter().all(|entry| self.is_tolerated(entry)) => {
                self.record_user_changes(&drift);
                self.complete(stop).await
            }
            Ok(drift) => {
                self.record_failure(&DiskMismatchError(drift), Reason::VerifyFailed, false);
                Ok(Some(PhaseEvent::StepFailed))
            }
            Err(error) => {
                self.record_failure(&error, error.reason(), error.is_retryable());
                Ok(Some(PhaseEvent::StepFailed))
            }
        }
    }

    /// Whether a difference is no evidence against this update: below a mount that does not respond, caused by a user at
    /// an object of that user, at an entry that the update skips, or in the kernel arguments, which are judged with the
    /// deployment.
    fn is_tolerated(&self, entry: &DriftEntry) -> bool {
        let mut open = self.journal.transactions.iter();
        entry.by_user
            || matches!(
                entry.kind,
                DriftKind::Unreachable | DriftKind::KernelArgument
            )
            || open.any(|tx| tx.skipped.contains(&entry.path))
    }

    /// Records the paths that differ and that a user may have changed since the commit. They stay reported as drift.
    fn record_user_changes(&mut self, drift: &[DriftEntry]) {
        let Some(top) = self.journal.top_mut() else {
            return;
        };
        for entry in drift.iter().filter(|entry| entry.by_user) {
            let reason = Reason::LeftBehind;
            tracing::warn!(path = %entry.path, %reason, "left unchanged, because a user may change it: {entry}");
            let line = format!("{entry}: left unchanged, because a user may change it");
            if !top.left_behind.contains(&line) {
                top.left_behind.push(line);
            }
        }
    }

    fn has_needed_boot(&self) -> bool {
        let Some(boot) = self.boot_id() else {
            return true;
        };
        let top = self.journal.top();
        let needed = top.is_some_and(|tx| tx.reboot.is_some());
        !needed || top.is_some_and(|tx| tx.rebooted_since(&boot))
    }

    /// Completes a good update: marks it `Verified`, then does everything that may be repeated. Returns `None` on a stop.
    async fn complete(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        if let Some(ended) = self.keep_deployment(stop).await? {
            return Ok(ended);
        }
        let is_repair = self.plan.is_repair();
        let completed = self
            .blocking(
                move |store, journal| -> Result<(), crash_recovery::RecoverError> {
                    let now = Timestamp::now();
                    let Some(top) = journal.top_mut() else {
                        return Ok(());
                    };
                    let id = top.id.clone();
                    top.leave(now);
                    let outcome = if top.offline {
                        Outcome::AppliedOffline
                    } else {
                        Outcome::Done
                    };
                    let record = top.record(outcome, now);
                    match is_repair {
                        true => journal.end_repaired_failures(now),
                        false => journal.end_recent_failures(now),
                    }
                    transaction::finish(journal).map_err(crash_recovery::RecoverError::of(&id))?;
                    journal.remember(record);
                    store.save(journal)?;
                    crash_recovery::settle(store, journal)
                },
            )
            .await?;
        completed?;
        self.progress.reset_failures();
        self.plan.discard();
        self.desired.end_approval();
        self.plan.end_repair();
        self.drift.rearm();
        if let Some(update) = self.journal.history.last() {
            let (to, outcome) = (&update.to, update.outcome);
            let took = update.finished.duration_since(update.started).as_secs_f64();
            tracing::info!(
                "{outcome:?}: {to} is in place and verified, {took:.1} s after the start"
            );
        }
        Ok(Some(PhaseEvent::Verified))
    }
}
