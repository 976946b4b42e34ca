//! Keeps the deployment of a trial after its boot was judged.

use std::time::Duration;

use machinist_base::{error_chain::chain, reason::Reason};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Reconciler, ReconcilerHooks, UpdateError,
    node_call_retry::WaitEnd,
    os_trial::{MAX_ATTEMPTS, RETRY_DELAY, StepFailure},
    os_trial_error::OsTrialError,
};
use crate::{journal::OsTrial, os::DeploymentId, phase::PhaseEvent, service_port::Services};

/// How long a keep is repeated while a package manager may be installing a kernel, which has no initial RAM disk yet.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// The longest delay between two attempts; the first one is [`RETRY_DELAY`].
const MAX_KEEP_DELAY: Duration = Duration::from_secs(30);

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Keeps the deployment that the machine runs on. `None` if that succeeded, otherwise how verification ends.
    pub(super) async fn keep_deployment(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<WaitEnd, UpdateError> {
        let Some(trial) = &mut self.journal.os_trial else {
            return Ok(None);
        };
        trial.keeps = true;
        let trial = trial.clone();
        self.save().await?;
        let begin = Instant::now();
        let (mut attempt, mut delay) = (1, RETRY_DELAY);
        while let Err(failure) = self.try_keep(&trial).await {
            // Such as while the distribution's update-grub writes grub.cfg.
            let is_repeated = failure.retryable && attempt < MAX_ATTEMPTS
                || failure.is_busy && begin.elapsed() + delay <= BUSY_TIMEOUT;
            if !is_repeated {
                self.record_failure(&*failure.error, failure.reason, false);
                return Ok(Some(Some(PhaseEvent::StepFailed)));
            }
            let message = chain(&*failure.error);
            tracing::warn!(reason = %failure.reason, attempt, "{message}");
            self.report_unverified(failure.reason, message).await?;
            tokio::select! {
                () = stop.cancelled() => return Ok(Some(None)),
                // Safe to drop: no further attempt follows.
                () = self.run_responsive(tokio::time::sleep(delay)) => {}
            }
            if self.desired.has_changed()
                && let Some(event) = self.event_for_desired()
            {
                return Ok(Some(Some(event)));
            }
            (attempt, delay) = (attempt + 1, MAX_KEEP_DELAY.min(2 * delay));
        }
        Ok(None)
    }

    async fn try_keep(&self, trial: &OsTrial) -> Result<(), StepFailure> {
        let provider = self.provider()?;
        let id = DeploymentId::new(&trial.deployment);
        let begin = Instant::now();
        self.run_responsive(provider.keep(&id)).await?;
        let took = begin.elapsed().as_secs_f64();
        let next = self.run_responsive(provider.observe()).await?.next;
        if next != id {
            return Err(StepFailure {
                error: OsTrialError::NotKept(next.to_string()).into(),
                reason: Reason::OSStepFailed,
                retryable: false,
                is_busy: false,
            });
        }
        tracing::info!(
            "kept the deployment {id} in {took:.1} s: the boot loader selects it from now on"
        );
        Ok(())
    }
}
