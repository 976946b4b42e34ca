//! Runs the reconciliation loop that brings the machine to the desired config, one phase and one effect at a time.
//!
//! The loop owns the journal. [`Phase::on`] returns the next phase and effect, and each effect has its own file.
//! While an effect runs, the loop keeps running, so that it reacts to a stop and notifies the watchdog from the
//! task that does the work.

mod actions;
mod adoption;
mod blocked;
mod blocking;
mod boot_guard_lock;
mod commit;
mod config_rename;
mod desired_config_watch;
mod desired_events;
mod devices;
mod drain;
mod drift;
mod drift_check;
mod drift_repair;
mod drift_watch;
mod health_check;
mod host_install;
mod initial_phase;
mod node_call_retry;
mod node_drain;
mod options;
mod options_watch;
mod phase_progress;
mod plan_state;
mod planning;
mod reboot;
mod rollback;
mod staging;
mod start_time;
mod state_directory;
mod state_errors;
mod update_report;
mod verification;

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{
    crash_recovery::RecoverError,
    journal::{Journal, UpdateFailure},
    phase::{Phase, PhaseEffect, PhaseEvent},
    service_port::Services,
    store::StoreError,
};
use desired_config_watch::DesiredConfigWatch;
use drift::DriftState;
use host_install::HostInstall;
use machinist_base::{backoff::Backoff, reason::Reason};
use machinist_rootfs::Root;
use node_drain::NodeDrain;
pub use options::{
    BlockReason, DesiredConfig, DriftAction, DriftHandling, RebootPolicy, ReconcilerHooks,
    ReconcilerOptions, TICK_INTERVAL,
};
use options_watch::OptionsWatch;
use phase_progress::PhaseProgress;
use plan_state::PlanState;
use state_directory::{OpenedState, StateDirectory};
use state_errors::StateRecovery;
pub use update_report::{BlockedUpdate, UpdateConfigState, UpdateReport};

/// Delays before a transient error is retried.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

/// Reasons why the loop ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// Recovery after a crash failed.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// The state cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The state directory could not be opened; the report has the cause.
    #[error("the state directory is not open")]
    NoState,
    /// A task with blocking work panicked or was cancelled.
    #[error("a task of the update panicked")]
    Lost(#[source] tokio::task::JoinError),
}

/// The reconciler of one root.
pub struct Reconciler<S, H> {
    state: StateDirectory,
    /// Empty while blocking work uses it.
    journal: Journal,
    services: Option<Arc<S>>,
    node: NodeDrain,
    host: HostInstall,
    hooks: Arc<H>,
    options: OptionsWatch,
    desired: DesiredConfigWatch,
    report: watch::Sender<Arc<UpdateReport>>,
    progress: PhaseProgress,
    plan: PlanState,
    drift: DriftState,
}

impl<S, H> std::fmt::Debug for Reconciler<S, H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reconciler")
            .field("root", self.state.root())
            .field("phase", &self.progress.phase())
            .finish()
    }
}

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Takes the lock, recovers from a crash, and publishes the state.
    ///
    /// `services` is `None` for an offline root. Blocks. No effect runs before [`Reconciler::run`].
    pub fn new(
        root: &Root,
        services: Option<S>,
        hooks: H,
        options: ReconcilerOptions,
        desired: watch::Receiver<DesiredConfig>,
    ) -> Result<(Self, watch::Receiver<Arc<UpdateReport>>), UpdateError> {
        let opened = state_directory::open(root, None)?;
        Ok(Self::of(root, opened, services, hooks, options, desired))
    }

    fn of(
        root: &Root,
        opened: OpenedState,
        services: Option<S>,
        hooks: H,
        options: ReconcilerOptions,
        desired: watch::Receiver<DesiredConfig>,
    ) -> (Self, watch::Receiver<Arc<UpdateReport>>) {
        let (report, reports) = watch::channel(Arc::new(UpdateReport::default()));
        let plan = PlanState::resumed(opened.journal.top());
        let mut reconciler = Self {
            state: StateDirectory::new(root, opened.store, opened.error),
            journal: opened.journal,
            services: services.map(Arc::new),
            node: NodeDrain::default(),
            host: HostInstall::default(),
            hooks: Arc::new(hooks),
            options: OptionsWatch::fixed(options),
            desired: DesiredConfigWatch::new(desired),
            report,
            progress: PhaseProgress::new(),
            plan,
            drift: DriftState::default(),
        };
        // Published before the loop starts, so that readers get the correct state meanwhile.
        match reconciler.state.is_held_by_guard() {
            true => {
                let phase = boot_guard_lock::shown_phase(&reconciler.journal);
                reconciler.progress.begin_in(phase);
            }
            false => {
                let effect = reconciler.resume();
                reconciler.progress.set_initial_effect(effect);
            }
        }
        reconciler.publish();
        (reconciler, reports)
    }

    /// Watches the options for changes; a change applies from the next step on.
    #[must_use]
    pub fn watch_options(mut self, changes: watch::Receiver<ReconcilerOptions>) -> Self {
        self.options.follow(changes);
        self
    }

    /// Runs until `stop`. Work in progress is left in a state from which the next start continues.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), UpdateError> {
        if !self.wait_for_guard(&stop).await? {
            return Ok(());
        }
        let mut next = self.progress.take_initial_effect();
        self.record_failed_units().await?;
        loop {
            if self.state.has_failed() {
                match self.reopen_state(&stop).await? {
                    StateRecovery::Stopped => return Ok(()),
                    StateRecovery::At(effect) => next = effect,
                }
                continue;
            }
            let turned = match next.take() {
                Some(effect) => {
                    let span = self.span();
                    self.carry_out(effect, &stop).instrument(span).await
                }
                None => self.wait(&stop).await,
            };
            let event = match turned {
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
        let mut next = self.progress.take_initial_effect();
        let mut looked = self.state.has_failed();
        loop {
            let effect = match next.take() {
                Some(PhaseEffect::Reboot) if self.options.leaves_reboots_to_operators() => {
                    let Some(event) = self.event_for_desired() else {
                        break;
                    };
                    looked = true;
                    next = self.step(event);
                    continue;
                }
                Some(effect) => effect,
                None if looked || self.is_stuck() => break,
                None => {
                    looked = true;
                    self.progress.begin_in(Phase::Planned);
                    PhaseEffect::Plan
                }
            };
            let span = self.span();
            let Some(event) = self.carry_out(effect, &stop).instrument(span).await? else {
                break;
            };
            next = self.step(event);
        }
        Ok(self.report.borrow().clone())
    }

    /// Returns whether an open update has failed, so that no other update may be based on it.
    fn is_stuck(&self) -> bool {
        self.progress.phase() == Phase::Failed && !self.journal.transactions.is_empty()
    }

    /// Returns the tracing span of an update.
    fn span(&self) -> tracing::Span {
        let transaction = self.journal.top().map(|tx| tx.id.as_str());
        tracing::info_span!("update", transaction, phase = self.progress.phase().name())
    }

    async fn carry_out(
        &mut self,
        effect: PhaseEffect,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        self.options.refresh();
        let event = match effect {
            PhaseEffect::Plan => self.plan().await?,
            PhaseEffect::AwaitRelease => return self.await_release(stop).await,
            PhaseEffect::Cordon => return self.cordon(stop).await,
            PhaseEffect::Withhold => return self.disable_devices(stop).await,
            PhaseEffect::Drain => return self.drain(stop).await,
            PhaseEffect::Quiesce => return self.quiesce(stop).await,
            PhaseEffect::Uncordon => return self.uncordon(stop).await,
            PhaseEffect::Stage => self.stage(stop).await?,
            PhaseEffect::Commit => self.commit().await?,
            PhaseEffect::Act => return self.act(stop).await,
            PhaseEffect::Reboot => return self.reboot(stop).await,
            PhaseEffect::Verify => return self.verify(stop).await,
            PhaseEffect::Undo => return self.undo(stop).await,
        };
        // Blocking work is never interrupted, but nothing new begins after a stop.
        Ok(if stop.is_cancelled() {
            None
        } else {
            Some(event)
        })
    }

    /// Records a failure of the current transaction, or of a config without one.
    fn failed(&mut self, error: &dyn std::error::Error, code: Reason, retryable: bool) {
        let digest = self.plan.digest();
        let digest = digest.or_else(|| self.journal.top().map(|tx| tx.to.digest));
        let message = machinist_base::error_chain::chain(error);
        tracing::error!(reason = %code, retryable, "{message}");
        self.journal.failure = Some(UpdateFailure {
            code,
            message: super::bounded(message),
            retryable,
            digest,
        });
        self.progress.add_failure();
    }

    /// Enters the phase that follows an event, and returns its effect.
    fn step(&mut self, event: PhaseEvent) -> Option<PhaseEffect> {
        let (phase, effect) = self.progress.phase().on(event, self.is_stale_cordon());
        self.enter(phase);
        effect
    }

    fn enter(&mut self, phase: Phase) {
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
