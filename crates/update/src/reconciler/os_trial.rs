//! Stages, tries and rolls back the deployment of the operating system that belongs to an update.
//!
//! A deployment is staged locked before the commit, and unlocked for one boot immediately before each request for the
//! reboot. The boot decides: a trial that was entered is judged like every boot and then kept; one that never reached
//! userspace has made the boot loader return to the previous deployment; and a boot of a locked deployment is no attempt.

use std::{error::Error, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Reconciler, ReconcilerHooks, UpdateError, os_trial_error::OsTrialError};
use crate::{
    journal::{Direction, OsTrial, OsTrialState},
    os::{
        self, DeploymentId, Deployments, DesiredDeployment, KernelArgumentEdit, OsError, OsProvider,
    },
    phase::{PhaseEffect, PhaseEvent},
    service_port::Services,
};
use machinist_base::{error_chain::chain, reason::Reason};
use machinist_ignition::KernelCommandLine;
use machinist_plan::OsUpdate;

/// Number of attempts at a step that another program may block, or that may fail soon after a boot.
pub(super) const MAX_ATTEMPTS: u32 = 5;

/// Delay before the second attempt; callers let it grow.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(2);

/// After so many reboots that did not try the deployment, the update fails.
const MAX_BYPASSED_REBOOTS: u32 = 2;

/// A failure in a step of the provider.
pub(super) struct StepFailure {
    pub(super) error: Box<dyn Error + Send + Sync>,
    pub(super) reason: Reason,
    pub(super) retryable: bool,
    /// Another program may need minutes until a retry can succeed.
    pub(super) is_busy: bool,
}

impl From<OsError> for StepFailure {
    fn from(error: OsError) -> Self {
        Self {
            reason: error.reason(),
            retryable: error.is_retryable(),
            is_busy: matches!(error, OsError::Busy { .. }),
            error: error.into(),
        }
    }
}

impl StepFailure {
    fn no_provider() -> Self {
        Self {
            error: OsTrialError::NoProvider.into(),
            reason: Reason::OSStepFailed,
            retryable: false,
            is_busy: false,
        }
    }
}

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Adds the provider of the host's operating system.
    #[must_use]
    pub fn with_os_provider(mut self, provider: Option<Arc<dyn OsProvider>>) -> Self {
        self.os = provider;
        self
    }

    /// Returns whether each deployment has a /etc of its own.
    pub(super) fn has_etc_per_deployment(&self) -> bool {
        self.os
            .as_ref()
            .is_some_and(|provider| provider.has_etc_per_deployment())
    }

    /// Returns whether a newer config must wait, because the machine runs on a trial. The journal has one trial only: with
    /// a second one, the arguments of this one would count as those of the host, and OSTree's boot loader would return to
    /// this one.
    pub(super) fn must_end_trial(&self) -> bool {
        let trial = self.journal.os_trial.as_ref();
        trial.is_some_and(|trial| {
            matches!(
                trial.state,
                OsTrialState::Booted | OsTrialState::RollingBack
            )
        })
    }

    /// Repeats a step for a while if another program is changing the host.
    pub(super) async fn until_free<T, F: Future<Output = Result<T, OsError>>>(
        &self,
        step: impl Fn() -> F,
    ) -> Result<T, OsError> {
        for attempt in 1..MAX_ATTEMPTS {
            match self.run_responsive(step()).await {
                Err(error @ OsError::Busy { .. }) => {
                    tracing::warn!(reason = %error.reason(), attempt, "{}", chain(&error));
                    let delay = RETRY_DELAY * attempt;
                    self.run_responsive(tokio::time::sleep(delay)).await;
                }
                done => return done,
            }
        }
        self.run_responsive(step()).await
    }

    pub(super) fn provider(&self) -> Result<Arc<dyn OsProvider>, StepFailure> {
        self.os.clone().ok_or_else(StepFailure::no_provider)
    }

    /// Stages the deployment of a plan, locked. A plan without one discards what an earlier plan has staged, unless the
    /// machine runs on it. Returns the record for the journal.
    pub(super) async fn stage_deployment(
        &mut self,
        update: Option<&OsUpdate>,
    ) -> Result<Option<OsTrial>, PhaseEvent> {
        let staged = self.try_stage(update).await;
        staged.map_err(|failure| {
            self.record_failure(&*failure.error, failure.reason, failure.retryable);
            PhaseEvent::StepFailed
        })
    }

    async fn try_stage(&self, update: Option<&OsUpdate>) -> Result<Option<OsTrial>, StepFailure> {
        let open = self.journal.os_trial.clone();
        let is_booted = |trial: &OsTrial| trial.state == OsTrialState::Booted;
        let Some(provider) = self.os.clone() else {
            return match (open, update) {
                (None, None) => Ok(None),
                _ => Err(StepFailure::no_provider()),
            };
        };
        let Some(update) = update else {
            return match open {
                Some(trial) if is_booted(&trial) => Ok(Some(trial)),
                Some(_) => {
                    self.until_free(|| provider.discard()).await?;
                    Ok(None)
                }
                None => Ok(None),
            };
        };
        let deployments = self.run_responsive(provider.observe()).await?;
        let wanted = DesiredDeployment::from(update.clone());
        let limit = self.options.current().os_step_timeout;
        let begin = Instant::now();
        let staged = self.until_free(|| provider.stage(&wanted, limit)).await;
        let booted = open.filter(is_booted);
        Ok(match staged? {
            Some(id) => {
                let took = begin.elapsed().as_secs_f64();
                tracing::info!("staged the deployment {id} in {took:.1} s");
                let previous = deployments.next.as_str();
                Some(OsTrial::new(id.as_str(), previous, update))
            }
            // The machine runs on it already.
            None => {
                self.warn_of_kept_arguments(&wanted.kernel_arguments);
                booted.map(|trial| OsTrial {
                    state: OsTrialState::Booted,
                    ..OsTrial::new(&trial.deployment, &trial.previous, update)
                })
            }
        })
    }

    /// Warns of arguments that the plan removes and that stay, because the boot loader's configuration has them as those of
    /// the host: an administrator may have moved them there.
    fn warn_of_kept_arguments(&self, edit: &KernelArgumentEdit) {
        let Ok(running) = os::running_arguments(self.state.root()) else {
            return;
        };
        let after = edit.apply_to(&running);
        let count = |all: &KernelCommandLine, one| all.iter().filter(|own| *own == one).count();
        for one in edit.remove.iter() {
            if count(&after, one) < count(&running, one) {
                let argument = one.as_str();
                tracing::warn!(
                    "kernel argument {argument} stays: it is an argument of the host in the boot loader's configuration"
                );
            }
        }
    }

    /// Discards a staged deployment that no open update has: the previous process ended before it could record or
    /// discard it.
    pub(super) async fn discard_leftover(&mut self) -> Result<(), UpdateError> {
        if let Some(provider) = self.os.clone()
            && let Err(error) = self.run_responsive(os::discard_staged(&*provider)).await
        {
            tracing::warn!(reason = %error.reason(), "{}", chain(&error));
        }
        if self.journal.os_trial.take().is_some() {
            self.save().await?;
        }
        Ok(())
    }

    /// Continues a trial after a start of this process: finds out what the last boot was, and returns the effect with
    /// which the update continues.
    pub(super) async fn resume_os(
        &mut self,
        next: Option<PhaseEffect>,
    ) -> Result<Option<PhaseEffect>, UpdateError> {
        if self.state.has_failed() || self.state.is_held_by_guard() {
            return Ok(next);
        }
        let Some(top) = self.journal.top() else {
            self.discard_leftover().await?;
            return Ok(next);
        };
        let is_forward = top.direction == Direction::Forward;
        let Some(trial) = self.journal.os_trial.clone().filter(|_| is_forward) else {
            return Ok(next);
        };
        if trial.state == OsTrialState::RollingBack {
            return Ok(self.fail_trial());
        }
        if !self.has_booted() {
            // The reboot that it was unlocked for has not happened, and is requested again if it may be.
            self.lock_deployment().await?;
            return Ok(next);
        }
        let deployments = match self.observe_after_boot().await {
            Ok(deployments) => deployments,
            Err(failure) => {
                self.record_failure(&*failure.error, failure.reason, false);
                return Ok(self.fail_trial());
            }
        };
        if deployments.booted.id.as_str() == trial.deployment {
            self.lock_booted().await;
            if trial.state != OsTrialState::Booted {
                self.set_trial_state(OsTrialState::Booted);
                self.save().await?;
            }
            return Ok(next);
        }
        self.resume_in_previous(&trial, &deployments).await
    }

    /// Like [`Self::resume_os`]; if the state cannot be written, the loop waits and opens it again.
    pub(super) async fn resume_os_or_fail(
        &mut self,
        next: Option<PhaseEffect>,
    ) -> Result<Option<PhaseEffect>, UpdateError> {
        match self.resume_os(next).await {
            Ok(next) => Ok(next),
            Err(error) => self.record_state_error(error).map(|()| None),
        }
    }

    /// Continues on a machine that has booted the previous deployment.
    async fn resume_in_previous(
        &mut self,
        trial: &OsTrial,
        deployments: &Deployments,
    ) -> Result<Option<PhaseEffect>, UpdateError> {
        let staged = deployments.staged.as_ref();
        let staged = staged.filter(|staged| staged.deployment.id.as_str() == trial.deployment);
        let not_tried: Option<(&(dyn Error + Send + Sync), Reason)> = match staged {
            Some(staged) if staged.locked => None,
            Some(_) => Some((&OsTrialError::LoaderBypassed, Reason::LoaderBypassed)),
            None => Some((&OsTrialError::NotFinalized, Reason::OSStepFailed)),
        };
        if staged.is_some_and(|staged| staged.is_deselected) {
            self.record_failure(&OsTrialError::Deselected, Reason::OSStepFailed, false);
            return Ok(self.fail_trial());
        } else if trial.state == OsTrialState::Staged {
            // A power cut may have come before the record that it was unlocked.
            self.lock_deployment().await?;
            tracing::info!(
                "the machine rebooted without a request by machinist; the new deployment is not tried yet"
            );
        } else if let Some((error, reason)) = not_tried
            && trial.state == OsTrialState::Armed
        {
            self.uncount_boot();
            self.lock_deployment().await?;
            let bypassed = trial.bypassed + 1;
            if let Some(trial) = &mut self.journal.os_trial {
                trial.bypassed = bypassed;
            }
            if bypassed >= MAX_BYPASSED_REBOOTS {
                self.record_failure(error, reason, false);
                return Ok(self.fail_trial());
            }
            tracing::warn!(%reason, "{error}");
        } else {
            let boots = self.counted_boots();
            let error = match trial.state {
                OsTrialState::Booted => OsTrialError::LeftUnconfirmed,
                _ => OsTrialError::BootFailed,
            };
            if boots >= self.boot_attempts() {
                self.record_failure(&error, Reason::OSBootFailed, false);
                return Ok(self.fail_trial());
            }
            tracing::error!(reason = %Reason::OSBootFailed, boots, "{error}");
        }
        // The files are in place, and the reboot into the deployment is still to come.
        if let Some(open) = &mut self.journal.os_trial {
            open.state = OsTrialState::Staged;
            // An interrupted keep of an earlier boot had no effect if the boot loader still selects the other one.
            open.keeps &= deployments.next.as_str() == open.deployment;
        }
        let boot = self.boot_id();
        for tx in &mut self.journal.transactions {
            tx.committed_boot.clone_from(&boot);
        }
        self.save().await?;
        Ok(self.resume())
    }

    async fn observe_after_boot(&self) -> Result<Deployments, StepFailure> {
        let provider = self.provider()?;
        for _ in 1..MAX_ATTEMPTS {
            match self.run_responsive(provider.observe()).await {
                Err(error) if error.is_retryable() => {
                    tracing::warn!(reason = %error.reason(), "{}", chain(&error));
                    self.run_responsive(tokio::time::sleep(RETRY_DELAY)).await;
                }
                observed => return Ok(observed?),
            }
        }
        Ok(self.run_responsive(provider.observe()).await?)
    }

    /// Rolls the update back, whose failure was recorded.
    fn fail_trial(&mut self) -> Option<PhaseEffect> {
        self.step(PhaseEvent::StepFailed)
    }

    /// Returns whether the deployment has failed, and its rollback is not finished.
    pub(super) fn is_rolling_back_os(&self) -> bool {
        let trial = self.journal.os_trial.as_ref();
        trial.is_some_and(|trial| trial.state == OsTrialState::RollingBack)
    }

    /// Returns the number of boots after which an unhealthy update is rolled back.
    pub(super) fn boot_attempts(&self) -> u32 {
        let options = self.options.current();
        match self.journal.os_trial.is_some() {
            true => options.os_boot_attempts,
            false => options.boot_attempts,
        }
    }

    pub(super) fn counted_boots(&self) -> u32 {
        let open = self.journal.transactions.iter();
        open.map(|tx| tx.boots).max().unwrap_or_default()
    }

    fn uncount_boot(&mut self) {
        let boot = self.boot_id();
        for tx in &mut self.journal.transactions {
            if tx.counted_boot.is_some() && tx.counted_boot == boot {
                tx.counted_boot = None;
                tx.boots = tx.boots.saturating_sub(1);
            }
        }
    }

    pub(super) fn set_trial_state(&mut self, state: OsTrialState) {
        if let Some(trial) = &mut self.journal.os_trial {
            trial.state = state;
        }
    }

    /// Discards the deployment or rolls it back, before the files are rolled back. Returns whether the machine runs on
    /// it; an error event if that fails.
    pub(super) async fn roll_back_deployment(
        &mut self,
    ) -> Result<Result<bool, PhaseEvent>, UpdateError> {
        let Some(trial) = self.journal.os_trial.clone() else {
            return Ok(Ok(false));
        };
        if trial.state != OsTrialState::RollingBack {
            self.set_trial_state(OsTrialState::RollingBack);
            self.save().await?;
        }
        let rolled_back = self.try_roll_back(&trial).await;
        Ok(rolled_back.map_err(|failure| {
            self.record_failure(&*failure.error, Reason::RollbackFailed, true);
            PhaseEvent::RollbackFailed
        }))
    }

    async fn try_roll_back(&self, trial: &OsTrial) -> Result<bool, StepFailure> {
        let seen = async {
            let provider = self.provider()?;
            let deployments = provider.observe().await?;
            Ok::<_, StepFailure>((provider, deployments))
        };
        let (provider, deployments) = match self.run_responsive(seen).await {
            Ok(seen) => seen,
            // Such as in emergency mode without /boot. No boot enters a deployment again that was not kept; its entry
            // is discarded at the next start.
            Err(failure) if !trial.keeps => {
                tracing::warn!(reason = %failure.reason, "{}", chain(&*failure.error));
                return Ok(self.has_booted());
            }
            Err(failure) => return Err(failure),
        };
        let is = |id: &DeploymentId| id.as_str() == trial.deployment;
        if is(&deployments.next) {
            let previous = DeploymentId::new(&trial.previous);
            self.until_free(|| provider.roll_back(&previous)).await?;
        } else {
            self.until_free(|| provider.discard()).await?;
        }
        let is_running = os::is_running(self.state.root(), &trial.deployment);
        Ok(is_running || is(&deployments.booted.id))
    }
}
