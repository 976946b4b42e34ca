//! Restores the previous config and repeats its actions, with a reboot if the machine already runs on the config
//! that is being undone.

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{RETRY_BACKOFF, Reconciler, ReconcilerHooks, UpdateError};
use crate::{
    crash_recovery,
    journal::{ActionState, Direction, Journal, Outcome, TransactionState, UpdateFailure},
    phase::PhaseEvent,
    service_port::Services,
    store::StateStore,
    transaction::{self, RollbackSummary, TransactionError},
};
use machinist_base::{backoff::jitter, error_chain::chain, reason::Reason};
use machinist_plan::ActionKind;

/// Number of retries of an action after an undo: about two minutes in total. If the action fails, the unit keeps
/// running with the config that was rolled back, and nothing reloads it later.
const MAX_ACTION_RETRIES: u32 = 7;

#[derive(Debug, thiserror::Error)]
#[error("the rollback failed; manual repair required")]
struct RollbackStuckError {
    #[source]
    source: TransactionError,
}

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Rolls back all open transactions. Returns `None` on a stop.
    pub(super) async fn roll_back(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        let Some(tx) = self.journal.top() else {
            return Ok(Some(self.end_without_transaction().await?));
        };
        let boot = self.boot_id();
        if tx.reverted
            && tx.booted_into
            && boot.as_deref().is_some_and(|boot| tx.rebooted_since(boot))
        {
            return Ok(Some(self.close_rollback().await?));
        }
        let reason = self.rollback_reason();
        let has_deployment = self.journal.os_trial.is_some();
        let os_booted = match self.roll_back_deployment().await? {
            Ok(is_booted) => is_booted,
            Err(event) => return Ok(Some(event)),
        };
        if os_booted && self.has_etc_per_deployment() {
            return self.leave_deployment(&reason, boot).await.map(Some);
        }
        let booted_into = boot.as_deref().is_some_and(|boot| {
            let open = &self.journal.transactions;
            open.iter().any(|tx| {
                // A boot of the previous deployment matters only to files.
                let matters = os_booted || !has_deployment || !tx.operations.is_empty();
                let booted = !tx.reverted && tx.restarted_since(boot);
                tx.booted_into || (booted && matters)
            })
        });
        let code = reason.code;
        tracing::warn!(reason = %code, "{code}: rolling back to the previous config");
        let inhibitor = self.inhibit_shutdown().await;
        let rolled_back = self
            .blocking(move |store, journal| {
                roll_back_transactions(store, journal, &reason, booted_into, boot.as_deref())
            })
            .await?;
        drop(inhibitor);
        if let Err(TransactionError::Store(error)) = rolled_back {
            // Every step that was done is in the journal.
            return Err(error.into());
        }
        if let Err(source) = rolled_back {
            self.record_failure(&RollbackStuckError { source }, Reason::RollbackFailed, true);
            // A full disk must not end the agent: the journal on it still has the next step.
            if let Err(error) = self.save().await {
                tracing::error!("{}", chain(&error));
            }
            return Ok(Some(PhaseEvent::RollbackFailed));
        }
        if booted_into && !self.journal.top().is_some_and(|tx| tx.offline) {
            return Ok(Some(PhaseEvent::Undone {
                reboot: true,
                withdrawn: false,
            }));
        }
        if !self.rerun_actions(stop).await? {
            return Ok(None);
        }
        Ok(Some(self.close_rollback().await?))
    }

    /// Requests a reboot into the previous deployment, whose /etc has the files of the update as well: they are rolled back
    /// there, by the recovery at the beginning of that boot.
    async fn leave_deployment(
        &mut self,
        reason: &UpdateFailure,
        boot: Option<String>,
    ) -> Result<PhaseEvent, UpdateError> {
        for tx in &mut self.journal.transactions {
            tx.direction = Direction::Undo;
            tx.undo_reason.get_or_insert_with(|| reason.clone());
            tx.committed_boot.clone_from(&boot);
            tx.reboot = None;
            tx.enter("RollingBack", Timestamp::now());
        }
        if let Some(trial) = &mut self.journal.os_trial {
            trial.leaving_boot = boot;
        }
        self.save().await?;
        tracing::warn!(reason = %reason.code, "{}: rebooting into the previous deployment", reason.code);
        Ok(PhaseEvent::Undone {
            reboot: true,
            withdrawn: false,
        })
    }

    /// Handles an update without a transaction: it failed before its intent, or was already undone.
    async fn end_without_transaction(&mut self) -> Result<PhaseEvent, UpdateError> {
        if let Err(event) = self.roll_back_deployment().await? {
            return Ok(event);
        }
        self.journal.os_trial = None;
        let withdrawn = self.is_base_desired() || self.desired.is_blocked();
        if withdrawn {
            self.journal.failure = None;
        }
        self.save().await?;
        Ok(PhaseEvent::Undone {
            reboot: false,
            withdrawn,
        })
    }

    fn rollback_reason(&self) -> UpdateFailure {
        let withdrawn = || UpdateFailure {
            code: Reason::Withdrawn,
            message: "the config was withdrawn before it was applied".to_owned(),
            retryable: false,
            digest: None,
            refusals: Vec::new(),
        };
        if self.is_base_desired() {
            withdrawn()
        } else {
            self.journal.failure.clone().unwrap_or_else(withdrawn)
        }
    }

    /// Reloads systemd and repeats the restarts that were done. A unit that does not start is logged; the files are
    /// restored regardless. Returns false on a stop.
    async fn rerun_actions(&mut self, stop: &CancellationToken) -> Result<bool, UpdateError> {
        let Some(services) = self.services.clone() else {
            return Ok(true);
        };
        let started = self.journal.transactions.iter().flat_map(|tx| &tx.actions);
        let started = started.filter(|action| action.state != ActionState::Pending);
        let started =
            machinist_plan::in_order(started.map(|action| (action.kind, action.unit.clone())));
        for (kind, unit) in started {
            let unit = unit.unwrap_or_default();
            let (timeout, settle) = self.options.job_limits();
            let run = async || match kind {
                ActionKind::DaemonReload => services.daemon_reload().await,
                ActionKind::Drain | ActionKind::Reboot | ActionKind::SoftReboot => Ok(()),
                kind => services.act(kind, &unit, timeout, settle).await,
            };
            let run_with_retries = async {
                for attempt in 0..MAX_ACTION_RETRIES {
                    match run().await {
                        Err(error) if error.retryable => {
                            let wait = RETRY_BACKOFF.wait(attempt, jitter());
                            tokio::time::sleep(wait).await;
                        }
                        result => return result,
                    }
                }
                run().await
            };
            tokio::select! {
                () = stop.cancelled() => return Ok(false),
                result = self.run_responsive(run_with_retries) => if let Err(error) = result {
                    tracing::error!(reason = %error.reason, "{}", chain(&error));
                },
            }
        }
        Ok(true)
    }

    /// Records the outcome and drops the transactions that were rolled back.
    async fn close_rollback(&mut self) -> Result<PhaseEvent, UpdateError> {
        let withdrawn = self
            .journal
            .top()
            .and_then(|tx| tx.undo_reason.as_ref())
            .map(|reason| reason.code)
            == Some(Reason::Withdrawn);
        self.blocking(move |store, journal| record_outcome(store, journal, withdrawn))
            .await??;
        self.plan.discard();
        match &self.journal.base {
            Some(base) => tracing::info!("rolled back to {}", base.name),
            None => tracing::info!("rolled back to the machine without a config"),
        }
        Ok(PhaseEvent::Undone {
            reboot: false,
            withdrawn,
        })
    }
}

/// Records the direction, rolls back all transactions from the newest on, and records the result.
fn roll_back_transactions(
    store: &StateStore,
    journal: &mut Journal,
    reason: &UpdateFailure,
    booted_into: bool,
    boot: Option<&str>,
) -> Result<(), TransactionError> {
    for tx in &mut journal.transactions {
        tx.direction = Direction::Undo;
        tx.undo_reason.get_or_insert_with(|| reason.clone());
        tx.booted_into |= booted_into;
        tx.enter("RollingBack", Timestamp::now());
    }
    store.save(journal)?;
    for index in (0..journal.transactions.len()).rev() {
        let tx = &journal.transactions[index];
        if tx.reverted {
            continue;
        }
        let summary = match tx.mark >= TransactionState::Staged {
            true => transaction::undo(store.root(), tx)?,
            false => RollbackSummary::default(),
        };
        summary.log();
        let tx = &mut journal.transactions[index];
        tx.left_behind.extend(summary.lines());
        tx.reverted = true;
        tx.committed_boot = boot.map(str::to_owned);
        tx.reboot = None;
        store.save(journal)?;
    }
    Ok(())
}

fn record_outcome(
    store: &StateStore,
    journal: &mut Journal,
    withdrawn: bool,
) -> Result<(), crash_recovery::RecoverError> {
    let now = Timestamp::now();
    journal.os_trial = None;
    let transactions = std::mem::take(&mut journal.transactions);
    for tx in &transactions {
        transaction::drop_staging(store.root(), tx)
            .map_err(crash_recovery::RecoverError::of(&tx.id))?;
    }
    for mut tx in transactions {
        tx.leave(now);
        let outcome = if withdrawn {
            Outcome::Withdrawn
        } else {
            Outcome::RolledBack
        };
        journal.failure = tx.undo_reason.clone().filter(|_| !withdrawn);
        journal.remember(tx.record(outcome, now));
    }
    store.save(journal)?;
    store.forget_configs(journal)?;
    Ok(())
}
