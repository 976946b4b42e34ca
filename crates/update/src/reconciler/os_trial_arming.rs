//! Unlocks the deployment of a trial for one boot, and locks it again if the reboot does not happen.

use machinist_base::error_chain::chain;

use super::{Reconciler, ReconcilerHooks, UpdateError, os_trial::StepFailure};
use crate::{
    journal::{Direction, OsTrialState},
    os::{DeploymentId, DesiredDeployment, OsError, ProviderStep},
    phase::PhaseEvent,
    service_port::Services,
};

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Unlocks the deployment for the reboot that is requested next, and sets it to `Armed`; the caller saves the journal.
    /// Stages the deployment again if it is gone, such as after the removal of its kernel. Returns an event if that fails.
    pub(super) async fn arm_deployment(&mut self) -> Result<Option<PhaseEvent>, UpdateError> {
        let is_forward = self.journal.top().map(|tx| tx.direction) == Some(Direction::Forward);
        match &self.journal.os_trial {
            Some(trial) if is_forward && trial.state == OsTrialState::RollingBack => {
                return Ok(Some(PhaseEvent::Withdrawn));
            }
            Some(_) if is_forward => {}
            Some(_) => {
                self.discard_again().await;
                return Ok(None);
            }
            None => return Ok(None),
        }
        let Err(failure) = self.try_unlock().await else {
            self.set_trial_state(OsTrialState::Armed);
            if let Some(trial) = &self.journal.os_trial {
                tracing::info!("the next boot tries the deployment {}", trial.deployment);
            }
            return Ok(None);
        };
        // The boot loader may have got the request nevertheless.
        self.lock_deployment().await?;
        self.record_failure(&*failure.error, failure.reason, failure.retryable);
        Ok(Some(match failure.retryable {
            true => PhaseEvent::StepFailed,
            false => PhaseEvent::Withdrawn,
        }))
    }

    /// Discards what another program has staged from the failed deployment while the reboot that leaves it was waited for.
    async fn discard_again(&self) {
        if let Some(provider) = self.os.clone()
            && let Err(error) = self.until_free(|| provider.discard()).await
        {
            tracing::warn!(reason = %error.reason(), "{}", chain(&error));
        }
    }

    async fn try_unlock(&mut self) -> Result<(), StepFailure> {
        let provider = self.provider()?;
        let Some(trial) = self.journal.os_trial.clone() else {
            return Ok(());
        };
        let id = DeploymentId::new(&trial.deployment);
        match self.run_responsive(provider.unlock(&id)).await {
            Err(OsError::DeploymentMissing { .. }) if !self.has_booted() => {}
            unlocked => return Ok(unlocked?),
        }
        tracing::warn!(
            "the deployment {} is gone; staging it again",
            trial.deployment
        );
        let wanted = DesiredDeployment::from(trial.update());
        let limit = self.options.current().os_step_timeout;
        self.run_responsive(provider.fetch(&wanted, limit)).await?;
        let staged = self.run_responsive(provider.stage(&wanted, limit));
        let Some(staged) = staged.await? else {
            return Err(OsError::DeploymentMissing {
                step: ProviderStep::Unlock,
                id,
            }
            .into());
        };
        self.run_responsive(provider.unlock(&staged)).await?;
        if let Some(trial) = &mut self.journal.os_trial {
            trial.deployment = staged.as_str().to_owned();
        }
        Ok(())
    }

    /// Locks the deployment again, because the reboot does not happen now.
    pub(super) async fn lock_deployment(&mut self) -> Result<(), UpdateError> {
        let state = self.journal.os_trial.as_ref().map(|trial| trial.state);
        // A staged or booted one may have been unlocked without a record, by an earlier process or a failed step.
        if matches!(state, None | Some(OsTrialState::RollingBack)) {
            return Ok(());
        }
        let was_armed = state == Some(OsTrialState::Armed);
        let mut saved = Ok(());
        if was_armed {
            // The journal first: if the power fails before the boot loader is changed, the next boot still enters the
            // deployment, which is accepted with `Staged` and does not count as a failed boot.
            self.set_trial_state(match self.has_booted() {
                true => OsTrialState::Booted,
                false => OsTrialState::Staged,
            });
            saved = self.save().await;
        }
        if let Some(provider) = self.os.clone()
            && let Err(error) = self.run_responsive(provider.lock()).await
        {
            // The next boot would be an attempt.
            tracing::error!(reason = %error.reason(), "{}", chain(&error));
            if was_armed {
                self.set_trial_state(OsTrialState::Armed);
                saved = saved.and(self.save().await);
            }
        } else if was_armed {
            tracing::info!("the next boot does not try the staged deployment");
        }
        saved
    }

    /// Locks the deployment that runs as a trial: no further boot enters it, also if an administrator changes the menu of
    /// the boot loader.
    pub(super) async fn lock_booted(&self) {
        if let Some(provider) = self.os.clone()
            && let Err(error) = self.run_responsive(provider.lock()).await
        {
            tracing::error!(reason = %error.reason(), "{}", chain(&error));
        }
    }
}
