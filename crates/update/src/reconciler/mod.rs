//! Runs the reconciliation loop that brings the machine to the desired config, one phase and one effect at a time.
//!
//! The loop owns the journal. [`Phase::on`] returns the next phase and effect, and each effect has its own file.
//! While an effect runs, the loop keeps running, so that it reacts to a stop and notifies the watchdog from the
//! task that does the work.

mod actions;
mod blocked;
mod blocking;
mod boot_guard_lock;
mod commit;
mod config_rename;
mod devices;
mod drain;
mod drift_repair;
mod drift_watch;
mod health_check;
mod host_install;
mod initial_phase;
mod node_call_retry;
mod operator_requests;
mod options;
mod planning;
mod reboot;
mod rollback;
mod staging;
mod state_errors;
mod update_report;
mod verification;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{
    crash_recovery::RecoverError,
    journal::{Journal, UpdateFailure},
    node_port::{DrainProgress, NodePort},
    phase::{Phase, PhaseEffect, PhaseEvent},
    recovery_installer::RecoveryInstaller,
    service_port::Services,
    store::{StateStore, StoreError},
};
use machinist_base::{abs_path::AbsPath, backoff::Backoff, digest::Digest, reason::Reason};
use machinist_rootfs::Root;
pub use options::{
    BlockReason, DesiredConfig, DriftAction, DriftHandling, RebootPolicy, ReconcilerHooks,
    ReconcilerOptions, TICK_INTERVAL,
};
use state_errors::{StateOpen, StateRecovery};
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
pub struct Reconciler<S, A> {
    root: Root,
    /// `None` while the state directory cannot be opened, or while the guard judges the boot.
    store: Option<Arc<StateStore>>,
    /// Empty while blocking work uses it.
    journal: Journal,
    services: Option<Arc<S>>,
    /// `None` if the machine is not a node, and in every process except the agent.
    node: Option<Arc<dyn NodePort>>,
    /// `None` if a package or an administrator installs recovery.
    host: Option<Arc<dyn RecoveryInstaller>>,
    /// Why installing it failed.
    not_brought: Option<String>,
    /// Progress of the current drain.
    draining: DrainProgress,
    audience: Arc<A>,
    conduct: ReconcilerOptions,
    /// Changes of the settings; `None` if they do not change.
    conducts: Option<watch::Receiver<ReconcilerOptions>>,
    desired: watch::Receiver<DesiredConfig>,
    /// Counter of operator requests; `None` if there is no source of requests.
    words: Option<watch::Receiver<u64>>,
    /// The last request that was received.
    heard: u64,
    /// The config that an operator requested: it does not wait for maintenance windows, and its reboot counts as
    /// approved.
    released: Option<Digest>,
    /// The earliest time at which the cluster allows an update to begin, as last returned.
    earliest: Option<Timestamp>,
    report: watch::Sender<Arc<UpdateReport>>,
    phase: Phase,
    /// The state cannot be read or written: nothing is planned, and the machine is not changed.
    trouble: Option<state_errors::StateError>,
    since: Timestamp,
    /// The config that has a valid copy in the state directory.
    kept: Option<Digest>,
    /// The plan in progress, with its config.
    planned: Option<planning::PlannedUpdate>,
    /// The warnings of the last plan, with the digest of its config.
    cautions: Option<(Digest, Vec<String>)>,
    replans: u32,
    /// Consecutive failures, for the back-off.
    failures: u32,
    drift: drift_watch::DriftWatch,
    repairs: drift_repair::RepairLog,
    /// The drifted path that is being repaired: the plan is limited to it.
    repair: Option<AbsPath>,
    /// The first effect, derived from the journal.
    next: Option<PhaseEffect>,
}

impl<S, A> std::fmt::Debug for Reconciler<S, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Updater")
            .field("root", &self.root)
            .field("phase", &self.phase)
            .finish()
    }
}

impl<S: Services, A: ReconcilerHooks> Reconciler<S, A> {
    /// Takes the lock, recovers from a crash, and publishes the state.
    ///
    /// `services` is `None` for an offline root. Blocks. No effect runs before [`Reconciler::run`].
    pub fn new(
        root: &Root,
        services: Option<S>,
        audience: A,
        conduct: ReconcilerOptions,
        desired: watch::Receiver<DesiredConfig>,
    ) -> Result<(Self, watch::Receiver<Arc<UpdateReport>>), UpdateError> {
        let opened = state_errors::open(root, None)?;
        Ok(Self::of(root, opened, services, audience, conduct, desired))
    }

    fn of(
        root: &Root,
        opened: StateOpen,
        services: Option<S>,
        audience: A,
        conduct: ReconcilerOptions,
        desired: watch::Receiver<DesiredConfig>,
    ) -> (Self, watch::Receiver<Arc<UpdateReport>>) {
        let (report, reports) = watch::channel(Arc::new(UpdateReport::default()));
        let open = opened.journal.top();
        let cautions = open.map(|tx| (tx.to.digest, tx.warnings.clone()));
        let mut updater = Self {
            root: root.clone(),
            store: opened.store,
            journal: opened.journal,
            services: services.map(Arc::new),
            node: None,
            host: None,
            not_brought: None,
            draining: DrainProgress::default(),
            audience: Arc::new(audience),
            conduct,
            conducts: None,
            desired,
            words: None,
            heard: 0,
            released: None,
            earliest: None,
            report,
            phase: Phase::Idle,
            trouble: opened.trouble,
            since: Timestamp::now(),
            kept: None,
            planned: None,
            cautions,
            replans: 0,
            failures: 0,
            drift: drift_watch::DriftWatch::default(),
            repairs: drift_repair::RepairLog::default(),
            repair: None,
            next: None,
        };
        // Published before the loop starts, so that readers get the correct state meanwhile.
        match updater.is_guard_active() {
            true => updater.phase = boot_guard_lock::shown_phase(&updater.journal),
            false => updater.next = updater.resume(),
        }
        updater.publish();
        (updater, reports)
    }

    /// Follows changes of the settings; a change applies from the next step on.
    #[must_use]
    pub fn following(mut self, conducts: watch::Receiver<ReconcilerOptions>) -> Self {
        self.conducts = Some(conducts);
        self
    }

    /// Runs until `stop`. Work in progress is left in a state from which the next start continues.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), UpdateError> {
        if !self.wait_for_guard(&stop).await? {
            return Ok(());
        }
        let mut next = self.next.take();
        self.record_failed_units().await?;
        loop {
            if self.trouble.is_some() {
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
        let mut next = self.next.take();
        let mut looked = self.trouble.is_some();
        loop {
            let effect = match next.take() {
                Some(PhaseEffect::Reboot) if self.conduct.reboot != RebootPolicy::Auto => {
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
                    self.phase = Phase::Planned;
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
        self.phase == Phase::Failed && !self.journal.transactions.is_empty()
    }

    /// Returns the tracing span of an update.
    fn span(&self) -> tracing::Span {
        let transaction = self.journal.top().map(|tx| tx.id.as_str());
        tracing::info_span!("update", transaction, phase = self.phase.name())
    }

    async fn carry_out(
        &mut self,
        effect: PhaseEffect,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        if let Some(conducts) = &mut self.conducts {
            self.conduct = conducts.borrow_and_update().clone();
        }
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
        let digest = self.planned.as_ref().map(|planned| planned.digest);
        let digest = digest.or_else(|| self.journal.top().map(|tx| tx.to.digest));
        let message = machinist_base::error_chain::chain(error);
        tracing::error!(reason = %code, retryable, "{message}");
        self.journal.failure = Some(UpdateFailure {
            code,
            message: super::bounded(message),
            retryable,
            digest,
            refusals: Vec::new(),
        });
        self.failures = self.failures.saturating_add(1);
    }

    /// Enters the phase that follows an event, and returns its effect.
    fn step(&mut self, event: PhaseEvent) -> Option<PhaseEffect> {
        let (phase, effect) = self.phase.on(event, self.is_stale_cordon());
        self.enter(phase);
        effect
    }

    fn enter(&mut self, phase: Phase) {
        if phase != self.phase {
            let was = self.phase;
            self.phase = phase;
            self.since = Timestamp::now();
            if let Some(tx) = self.journal.top_mut() {
                tx.enter(phase.name(), self.since);
            } else if let Some(cordon) = &mut self.journal.cordon {
                cordon.enter(phase.name(), self.since);
            }
            let id = self
                .journal
                .top()
                .map(|tx| tx.id.clone())
                .unwrap_or_default();
            tracing::debug!(
                transaction = id,
                phase = phase.name(),
                from = was.name(),
                "phase"
            );
        }
        self.publish();
    }
}
