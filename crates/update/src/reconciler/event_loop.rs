//! Runs the loop: an effect causes an event, which leads to the next phase and its effect.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Reconciler, ReconcilerHooks, UpdateError, UpdateReport, state_errors::StateRecovery};
use crate::{
    journal::UpdateFailure,
    phase::{Phase, PhaseEffect, PhaseEvent},
    service_port::Services,
};
use machinist_base::{abs_path::AbsPath, error_chain::chain, reason::Reason};
use machinist_plan::{MAX_CONTESTED_UPDATES, TargetFailures};

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Runs until `stop`. Work in progress is left in a state from which the next start continues.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), UpdateError> {
        if !self.wait_for_guard(&stop).await? {
            return Ok(());
        }
        let next = self.progress.take_initial_effect();
        let mut next = self.resume_os_or_fail(next).await?;
        self.record_failed_units().await?;
        loop {
            if self.state.has_failed() {
                match self.reopen_state(&stop).await? {
                    StateRecovery::Stopped => return Ok(()),
                    StateRecovery::At(effect) => next = self.resume_os_or_fail(effect).await?,
                }
                continue;
            }
            let result = match next.take() {
                Some(effect) => self.run_effect(effect, &stop).await,
                None => self.wait(&stop).await,
            };
            let event = match result {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(()),
                Err(error) => {
                    self.record_state_error(error)?;
                    continue;
                }
            };
            next = self.step(event);
        }
    }

    /// Completes open work, then plans and applies the desired config once, as `apply` does. Applying the same
    /// config again repairs drift. Ends if an operator must act: the plan is not approved, a step has failed, or
    /// the reboot is left to an operator.
    pub async fn run_once(
        mut self,
        stop: CancellationToken,
    ) -> Result<Arc<UpdateReport>, UpdateError> {
        let next = self.progress.take_initial_effect();
        let mut next = self.resume_os(next).await?;
        let mut has_planned = self.state.has_failed();
        let mut changed = self.changed_targets();
        loop {
            let effect = match next.take() {
                Some(PhaseEffect::Reboot) if self.options.leaves_reboots_to_operators() => {
                    let Some(event) = self.event_for_desired() else {
                        break;
                    };
                    has_planned = true;
                    next = self.step(event);
                    continue;
                }
                Some(effect) => {
                    has_planned |= effect == PhaseEffect::Plan;
                    effect
                }
                None if self.has_failed_update() => break,
                // A later plan leaves alone what made the last ones fail.
                None if has_planned && self.changed_targets() == changed => break,
                None => {
                    has_planned = true;
                    changed = self.changed_targets();
                    self.progress.begin_in(Phase::Planned);
                    PhaseEffect::Plan
                }
            };
            let Some(event) = self.run_effect(effect, &stop).await? else {
                break;
            };
            if event == PhaseEvent::Withdrawn && self.progress.phase() == Phase::Waiting {
                break;
            }
            next = self.step(event);
            // It is planned again, and its refusal reported, once the open update has ended.
            has_planned &= self.plan.rejected.is_none();
        }
        Ok(self.report.borrow().clone())
    }

    /// Returns the targets at which another writer made updates fail, with their number as far as plans consider it.
    fn changed_targets(&self) -> BTreeMap<AbsPath, TargetFailures> {
        let mut changed = self.journal.recently_changed_targets(Timestamp::now());
        for failures in changed.values_mut() {
            failures.updates = MAX_CONTESTED_UPDATES.min(failures.updates);
        }
        changed
    }

    /// Returns whether an open update has failed, so that no other update may be based on it.
    fn has_failed_update(&self) -> bool {
        self.progress.phase() == Phase::Failed && !self.journal.transactions.is_empty()
    }

    /// Returns the tracing span of an update.
    pub(super) fn span(&self) -> tracing::Span {
        let transaction = self.journal.top().map(|tx| tx.id.as_str());
        tracing::info_span!("update", transaction, phase = self.progress.phase().name())
    }

    /// Runs an effect with the current options. Returns `None` on a stop.
    pub(super) async fn run_effect(
        &mut self,
        effect: PhaseEffect,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        let span = self.span();
        self.options.refresh();
        self.dispatch(effect, stop).instrument(span).await
    }

    async fn dispatch(
        &mut self,
        effect: PhaseEffect,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        let event = match effect {
            PhaseEffect::Plan => self.plan().await?,
            PhaseEffect::AwaitRelease => return self.await_release(stop).await,
            PhaseEffect::Fetch => return self.fetch(stop).await,
            PhaseEffect::Cordon => return self.cordon(stop).await,
            PhaseEffect::Withhold => return self.disable_devices(stop).await,
            PhaseEffect::Drain => return self.drain(stop).await,
            PhaseEffect::Quiesce => return self.quiesce(stop).await,
            PhaseEffect::Uncordon => return self.uncordon(stop).await,
            PhaseEffect::Stage => self.stage(stop).await?,
            PhaseEffect::Commit => self.commit().await?,
            PhaseEffect::Act => return self.run_actions(stop).await,
            PhaseEffect::Reboot => return self.reboot(stop).await,
            PhaseEffect::Verify => return self.verify(stop).await,
            PhaseEffect::Undo => return self.roll_back(stop).await,
        };
        // Blocking work is never interrupted, but nothing new begins after a stop.
        Ok(if stop.is_cancelled() {
            None
        } else {
            Some(event)
        })
    }

    /// Records a failure of the current transaction, or of a config without one. A failed repair of drift is only
    /// logged, because the machine is otherwise on its config, and the drift stays reported.
    pub(super) fn record_failure(
        &mut self,
        error: &dyn std::error::Error,
        code: Reason,
        retryable: bool,
    ) {
        let message = chain(error);
        if self.plan.is_repair() && self.progress.phase() != Phase::RollingBack {
            tracing::warn!(reason = %Reason::LeftBehind, cause = %code, "drift not repaired: {message}");
            return;
        }
        let open_config = || self.journal.top().map(|tx| tx.to.digest);
        let digest = self.plan.digest().or_else(open_config);
        tracing::error!(reason = %code, retryable, "{message}");
        self.journal.failure = Some(UpdateFailure {
            code,
            message: crate::bounded(message),
            retryable,
            digest,
            refusals: Vec::new(),
        });
        self.progress.add_failure();
    }

    /// Enters the phase that follows an event, and returns its effect.
    pub(super) fn step(&mut self, event: PhaseEvent) -> Option<PhaseEffect> {
        let event = self.event_for_repair(event);
        let event = self.event_for_open_update(event);
        let (phase, effect) = self.progress.phase().on(event, self.is_stale_cordon());
        if phase == Phase::Idle {
            self.plan.end_repair();
        }
        self.enter(phase);
        effect
    }

    /// Enters a phase, records the transition, and publishes the state.
    pub(super) fn enter(&mut self, phase: Phase) {
        if let Some(previous) = self.progress.enter(phase) {
            let since = self.progress.since();
            if let Some(tx) = self.journal.top_mut() {
                tx.enter(phase.name(), since);
            } else if let Some(cordon) = &mut self.journal.cordon {
                cordon.enter(phase.name(), since);
            }
            let id = self
                .journal
                .top()
                .map(|tx| tx.id.clone())
                .unwrap_or_default();
            tracing::debug!(
                transaction = id,
                phase = phase.name(),
                from = previous.name(),
                "phase"
            );
        }
        self.publish();
    }
}
