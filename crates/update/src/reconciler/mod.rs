//! Runs the reconciliation loop that brings the machine to the desired config, one phase and one effect at a time.
//!
//! The loop owns the journal. [`Phase::on`](crate::phase::Phase::on) returns the next phase and effect, and each
//! effect has its own file. While an effect runs, the loop keeps running, so that it reacts to a stop and notifies the watchdog from the
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
mod device_units;
mod devices;
mod drain;
mod drift;
mod drift_check;
mod drift_repair;
mod drift_watch;
mod event_loop;
mod failed_units;
mod fetch;
mod health_check;
mod host_install;
mod initial_phase;
mod newer_config;
mod node_call_retry;
mod node_drain;
mod options;
mod options_watch;
mod os_trial;
mod os_trial_arming;
mod os_trial_error;
mod os_trial_keep;
mod phase_progress;
mod plan_state;
mod planning;
mod reboot;
mod report_publisher;
mod rollback;
mod staging;
mod start_time;
mod state_directory;
mod state_errors;
mod trial_copies;
mod update_report;
mod verification;

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{
    crash_recovery::RecoverError, journal::Journal, os::OsProvider, service_port::Services,
    store::StoreError,
};
use desired_config_watch::DesiredConfigWatch;
use drift::DriftState;
use host_install::HostInstall;
use machinist_base::backoff::Backoff;
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
use trial_copies::StagingWatch;
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
    #[error("the state directory could not be opened; machinist status names the cause")]
    NoState,
    /// A task with blocking work panicked or was cancelled.
    #[error("a task of the update panicked")]
    Lost(#[source] tokio::task::JoinError),
}

/// The reconciler of one root. Each part owns what it needs to decide; the loop joins them.
pub struct Reconciler<S, H> {
    state: StateDirectory,
    /// Empty while blocking work uses it.
    journal: Journal,
    services: Option<Arc<S>>,
    node: NodeDrain,
    host: HostInstall,
    /// The provider of the host's operating system, if it has one.
    os: Option<Arc<dyn OsProvider>>,
    hooks: Arc<H>,
    options: OptionsWatch,
    desired: DesiredConfigWatch,
    report: watch::Sender<Arc<UpdateReport>>,
    progress: PhaseProgress,
    plan: PlanState,
    drift: DriftState,
    staging: StagingWatch,
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
        Ok(Self::from_opened(
            root, opened, services, hooks, options, desired,
        ))
    }

    fn from_opened(
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
            os: None,
            hooks: Arc::new(hooks),
            options: OptionsWatch::fixed(options),
            desired: DesiredConfigWatch::new(desired),
            report,
            progress: PhaseProgress::new(),
            plan,
            drift: DriftState::default(),
            staging: StagingWatch::default(),
        };
        // Published before the loop starts, so that readers get the correct state meanwhile.
        match reconciler.state.is_held_by_guard() {
            true => {
                let phase = boot_guard_lock::guard_phase(&reconciler.journal);
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

    /// Returns the boot ID; `None` for an offline root, or if it cannot be read.
    pub(super) fn boot_id(&self) -> Option<String> {
        if !self.options.is_live() {
            return None;
        }
        self.state.boot_id()
    }

    /// Returns the name of the config in progress, for messages.
    pub(super) fn config_name(&self) -> String {
        let name = self
            .journal
            .top()
            .map(|tx| &tx.to)
            .or(self.journal.base.as_ref());
        name.map(|config| config.name.clone()).unwrap_or_default()
    }

    /// Returns whether the machine's base is the desired config.
    pub(super) fn is_base_desired(&self) -> bool {
        let base = self.journal.base_digest();
        base.is_some() && self.desired.digest() == base
    }
}
