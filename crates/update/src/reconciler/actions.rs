//! Carries out the actions after a commit, such as reloads and restarts. Each action is recorded before it runs.

use tokio_util::sync::CancellationToken;

use super::{RETRY_BACKOFF, Reconciler, ReconcilerHooks, UpdateError};
use crate::{
    journal::{ActionRecord, ActionState},
    phase::PhaseEvent,
    service_port::{ServiceError, Services},
};
use machinist_base::{backoff::jitter, error_chain::chain};
use machinist_plan::ActionKind;

/// Number of retries of an action: about seven seconds in total, in addition to the five seconds for which the
/// connection itself waits for the bus.
const MAX_ACTION_RETRIES: u32 = 3;

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Carries out the remaining actions. Returns `None` on a stop; the journal has the progress.
    pub(super) async fn run_actions(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        self.record_boots();
        let boot = self.boot_id();
        // The newest transaction decides: recovery may have committed it in this boot, after one from an earlier
        // boot.
        let newest = self.journal.top().zip(boot.as_deref());
        let rebooted = newest.is_some_and(|(tx, boot)| tx.rebooted_since(boot));
        // After any reboot, also a soft one, every unit has already started with the new files.
        let restarted = newest.is_some_and(|(tx, boot)| tx.restarted_since(boot));
        let count = self.journal.top().map_or(0, |tx| tx.actions.len());
        for index in 0..count {
            let Some(action) = self.action(index) else {
                break;
            };
            if action.state == ActionState::Done || !runs_after_commit(action.kind) {
                continue;
            }
            if !restarted && self.services.is_some() {
                let result = tokio::select! {
                    // The job continues in systemd; the next start checks its result.
                    () = stop.cancelled() => return Ok(None),
                    result = self.run_with_retries(index, boot.as_deref()) => result?,
                };
                if let Err(error) = result {
                    self.record_failure(&error, error.reason, error.retryable);
                    return Ok(Some(PhaseEvent::StepFailed));
                }
            }
            self.set_action(index, ActionState::Done);
            self.save().await?;
        }
        let wants_reboot = self
            .journal
            .top()
            .is_some_and(|tx| tx.wants_reboot() && !tx.offline);
        Ok(Some(PhaseEvent::ActionsDone {
            reboot: wants_reboot && !rebooted,
        }))
    }

    /// Retries an action after a transient error: a restart of the bus must not cause a rollback.
    async fn run_with_retries(
        &mut self,
        index: usize,
        boot: Option<&str>,
    ) -> Result<Result<(), ServiceError>, UpdateError> {
        for attempt in 0.. {
            let Some(action) = self.action(index) else {
                break;
            };
            match self.run_action(index, &action, boot).await? {
                Err(error) if error.retryable && attempt < MAX_ACTION_RETRIES => {
                    tracing::warn!(reason = %error.reason, "retrying: {}", chain(&error));
                    let wait = RETRY_BACKOFF.wait(attempt, jitter());
                    self.run_responsive(tokio::time::sleep(wait)).await;
                }
                result => return Ok(result),
            }
        }
        Ok(Ok(()))
    }

    /// Records and runs one action. If a crash interrupted it, checks first whether it was done.
    async fn run_action(
        &mut self,
        index: usize,
        action: &ActionRecord,
        boot: Option<&str>,
    ) -> Result<Result<(), ServiceError>, UpdateError> {
        let Some(services) = self.services.clone() else {
            return Ok(Ok(()));
        };
        let unit = action.unit.clone().unwrap_or_default();
        let before = match action.kind {
            ActionKind::DaemonReload => None,
            _ => match self.run_responsive(services.invocation(&unit)).await {
                Ok(invocation) => invocation,
                Err(error) => return Ok(Err(error)),
            },
        };
        if let ActionState::Started { invocation, .. } = &action.state
            && action.kind == ActionKind::Restart
            && before.is_some()
            && *invocation != before
        {
            // The unit has been restarted since; check whether it failed.
            match self.run_responsive(has_failed(&*services, &unit)).await {
                Ok(false) => return Ok(Ok(())),
                Ok(true) => {}
                Err(error) => return Ok(Err(error)),
            }
        }
        let started = ActionState::Started {
            boot: boot.unwrap_or_default().to_owned(),
            invocation: before,
        };
        self.set_action(index, started);
        self.save().await?;
        let (timeout, settle) = self.options.job_limits();
        let result = match action.kind {
            ActionKind::DaemonReload => self.run_responsive(services.daemon_reload()).await,
            kind => {
                self.run_responsive(services.act(kind, &unit, timeout, settle))
                    .await
            }
        };
        if result.is_ok() {
            tracing::info!(unit, "{}", log_message(action.kind, &unit));
        }
        Ok(result)
    }

    fn action(&self, index: usize) -> Option<ActionRecord> {
        self.journal
            .top()
            .and_then(|tx| tx.actions.get(index))
            .cloned()
    }

    fn set_action(&mut self, index: usize, state: ActionState) {
        if let Some(action) = self
            .journal
            .top_mut()
            .and_then(|tx| tx.actions.get_mut(index))
        {
            action.state = state;
        }
    }
}

async fn has_failed<S: Services>(services: &S, unit: &str) -> Result<bool, ServiceError> {
    let facts = services.unit_facts(&[unit.to_owned()]).await?;
    let active = facts.get(unit).and_then(|facts| facts.active.as_deref());
    Ok(active == Some("failed"))
}

/// Returns the log message for an action.
fn log_message(kind: ActionKind, unit: &str) -> String {
    match kind {
        ActionKind::DaemonReload => "systemd reloaded its unit files".to_owned(),
        ActionKind::Stop => format!("{unit} stopped"),
        ActionKind::Restart => format!("{unit} restarted"),
        _ => format!("{unit} reloaded"),
    }
}

/// Drains happen before any change, and reboots after all other actions.
fn runs_after_commit(kind: ActionKind) -> bool {
    !matches!(
        kind,
        ActionKind::Drain | ActionKind::Reboot | ActionKind::SoftReboot
    )
}
