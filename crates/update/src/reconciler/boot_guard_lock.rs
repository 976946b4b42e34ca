//! Coordinates the guard and the agent, which could both judge a boot: the guard holds the lock until its verdict;
//! the agent shows the guard's progress and takes over afterwards.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    DesiredConfig, Reconciler, ReconcilerHooks, ReconcilerOptions, UpdateError, UpdateReport,
    blocking::sleep_until,
    state_directory::{self, OpenedState},
    state_errors::StateRecovery,
};
use crate::{
    boot_health, boot_id,
    crash_recovery::RecoverError,
    journal::{Direction, Journal},
    phase::{Phase, PhaseEffect},
    service_port::Services,
    store::{self, StoreError},
};
use machinist_rootfs::Root;

/// Interval at which the agent checks whether the lock is free. The guard's verdict takes seconds at least.
const LOCK_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Number of checks for which the lock may be held although there is no boot to judge: a guard or a command may be
/// ending. On a slow machine (5 % of a processor), a guard took eight seconds to end.
const MAX_ENDING_CHECKS: u32 = 20;

impl UpdateError {
    /// Returns whether another process holds the lock.
    pub fn is_locked(&self) -> bool {
        let (Self::Store(error) | Self::Recover(RecoverError::Store(error))) = self else {
            return false;
        };
        matches!(error, StoreError::Locked { .. })
    }
}

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Works like [`Reconciler::new`], for the agent: while the guard judges the boot, it shows the guard's progress,
    /// and takes the lock afterwards.
    pub async fn new_with_guard(
        root: &Root,
        services: Option<S>,
        hooks: H,
        options: ReconcilerOptions,
        desired: watch::Receiver<DesiredConfig>,
    ) -> Result<(Self, watch::Receiver<Arc<UpdateReport>>), UpdateError> {
        let mut ending_checks = 0;
        let opened = loop {
            match try_lock(root)? {
                LockAttempt::Free(opened) => break *opened,
                LockAttempt::Held { journal, due, .. } if due && options.capabilities.live => {
                    break OpenedState {
                        store: None,
                        journal: *journal,
                        error: None,
                    };
                }
                // An offline root has no guard.
                LockAttempt::Held { lock, .. }
                    if ending_checks == MAX_ENDING_CHECKS || !options.capabilities.live =>
                {
                    return Err(StoreError::Locked { lock }.into());
                }
                LockAttempt::Held { .. } => ending_checks += 1,
            }
            tokio::time::sleep(LOCK_CHECK_INTERVAL).await;
        };
        Ok(Self::from_opened(
            root, opened, services, hooks, options, desired,
        ))
    }

    /// Shows the journal's state until the lock is free. Returns false on a stop.
    pub(super) async fn wait_for_guard(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<bool, UpdateError> {
        if !self.state.is_held_by_guard() {
            return Ok(true);
        }
        tracing::info!("waiting for machinist-guard to verify this boot; no changes until then");
        let mut ending_checks = 0;
        while self.state.is_held_by_guard() {
            let root = self.state.root().clone();
            let attempt = tokio::task::spawn_blocking(move || try_lock(&root));
            match self
                .run_responsive(attempt)
                .await
                .map_err(UpdateError::Lost)??
            {
                LockAttempt::Free(opened) => {
                    self.journal = self.state.use_opened(*opened);
                }
                LockAttempt::Held { journal, due, lock } => {
                    ending_checks = if due { 0 } else { ending_checks + 1 };
                    if ending_checks > MAX_ENDING_CHECKS {
                        return Err(StoreError::Locked { lock }.into());
                    }
                    self.report_guard(*journal);
                    tokio::select! {
                        () = stop.cancelled() => return Ok(false),
                        // Safe to drop: the next check is due in any case.
                        () = self.run_responsive(tokio::time::sleep(LOCK_CHECK_INTERVAL)) => {}
                    }
                }
            }
        }
        let effect = self.resume();
        self.progress.set_initial_effect(effect);
        self.publish();
        Ok(true)
    }

    /// Reports the guard's progress, if it or the desired config has changed.
    fn report_guard(&mut self, journal: Journal) {
        let phase = guard_phase(&journal);
        let desired = self.desired.digest();
        let reported = self
            .report
            .borrow()
            .config
            .desired
            .as_ref()
            .map(|desired| desired.digest);
        if desired != reported || self.journal != journal || self.progress.phase() != phase {
            self.journal = journal;
            self.enter(phase);
        }
    }

    /// Judges the running boot and carries out what follows: this is the guard's main function. Ends when no
    /// transaction is open, when the rest is left to the agent or an operator, with a reboot, or on a stop. Ignores
    /// the desired config.
    pub async fn judge_boot(
        mut self,
        stop: CancellationToken,
    ) -> Result<Arc<UpdateReport>, UpdateError> {
        let next = self.progress.take_initial_effect();
        let mut next = self.resume_os_or_fail(next).await?;
        loop {
            if !is_due(self.state.root(), &self.journal)? && !self.state.has_failed() {
                break;
            }
            let result = match next.take() {
                _ if self.state.has_failed() => match self.reopen_state(&stop).await? {
                    StateRecovery::Stopped => break,
                    StateRecovery::At(effect) => {
                        next = self.resume_os_or_fail(effect).await?;
                        continue;
                    }
                },
                Some(PhaseEffect::Reboot) if self.options.leaves_reboots_to_operators() => {
                    self.log_pending_reboot();
                    break;
                }
                Some(effect) => self.run_effect(effect, &stop).await,
                // A failed undo is retried; in all other cases the work is done.
                None => match self.retry_after() {
                    None => break,
                    Some(then) => tokio::select! {
                        () = stop.cancelled() => break,
                        // Safe to drop: the deadline is absolute.
                        () = sleep_until(Some(then)) => Ok(Some(self.retry_event())),
                    },
                },
            };
            match result {
                Ok(None) => break,
                Ok(Some(event)) => next = self.step(event),
                Err(error) => self.record_state_error(error)?,
            }
        }
        Ok(self.report.borrow().clone())
    }
}

/// Returns the guard's phase, derived from its journal.
pub(super) fn guard_phase(journal: &Journal) -> Phase {
    match journal.top() {
        Some(tx) if tx.direction == Direction::Undo => Phase::RollingBack,
        Some(_) => Phase::Verifying,
        None => Phase::Idle,
    }
}

/// Result of trying to take the lock.
enum LockAttempt {
    /// This process has taken the lock and recovered from a crash as far as possible.
    Free(Box<OpenedState>),
    /// Another process holds it.
    Held {
        journal: Box<Journal>,
        /// There is a boot to judge.
        due: bool,
        lock: std::path::PathBuf,
    },
}

fn try_lock(root: &Root) -> Result<LockAttempt, UpdateError> {
    match state_directory::open(root, None) {
        Ok(opened) => Ok(LockAttempt::Free(Box::new(opened))),
        Err(StoreError::Locked { lock }) => {
            let journal = Box::new(store::peek(root)?);
            let due = is_due(root, &journal)?;
            Ok(LockAttempt::Held { journal, due, lock })
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns whether the running boot of this root must be judged.
fn is_due(root: &Root, journal: &Journal) -> Result<bool, StoreError> {
    let boot = boot_id::current(root)?;
    Ok(boot.is_some_and(|boot| boot_health::is_due(journal, &boot)))
}
