//! Runs the reconciliation loop that brings the machine to the desired config, one phase and one effect at a time.
//!
//! The loop owns the journal. [`Phase::on`] returns the next phase and effect, and each effect has its own file.
//! While an effect runs, the loop keeps running, so that it reacts to a stop and notifies the watchdog from the
//! task that does the work.

mod act;
mod ask;
mod bar;
mod commit;
mod conduct;
mod drift;
mod evidence;
mod guard;
mod host;
mod lend;
mod names;
mod node;
mod plan;
mod reboot;
mod repair;
mod report;
mod resume;
mod stage;
mod trouble;
mod turn;
mod undo;
mod verify;
mod word;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{
    host::HostPart,
    journal::{Failure, Journal},
    node::{DrainProgress, Node},
    phase::{Effect, Event, Phase},
    ports::Services,
    recover::RecoverError,
    store::{Store, StoreError},
};
use crate::{backoff::Backoff, digest::Digest, path::AbsPath, reason::Reason, root::Root};
pub use conduct::{Audience, Bar, Conduct, Desired, DriftAct, DriftConduct, RebootConduct, TICK};
pub use report::{Barred, ConfigState, UpdateReport};
use trouble::{Opened, Regained};

/// Delays before a transient error is retried.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

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
pub struct Updater<S, A> {
    root: Root,
    /// `None` while the state directory cannot be opened, or while the guard judges the boot.
    store: Option<Arc<Store>>,
    /// Empty while blocking work uses it.
    journal: Journal,
    services: Option<Arc<S>>,
    /// `None` if the machine is not a node, and in every process except the agent.
    node: Option<Arc<dyn Node>>,
    /// `None` if a package or an administrator installs recovery.
    host: Option<Arc<dyn HostPart>>,
    /// Why installing it failed.
    not_brought: Option<String>,
    /// Progress of the current drain.
    draining: DrainProgress,
    audience: Arc<A>,
    conduct: Conduct,
    /// Changes of the settings; `None` if they do not change.
    conducts: Option<watch::Receiver<Conduct>>,
    desired: watch::Receiver<Desired>,
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
    trouble: Option<trouble::Trouble>,
    since: Timestamp,
    /// The config that has a valid copy in the state directory.
    kept: Option<Digest>,
    /// The plan in progress, with its config.
    planned: Option<plan::Planned>,
    /// The warnings of the last plan, with the digest of its config.
    cautions: Option<(Digest, Vec<String>)>,
    replans: u32,
    /// Consecutive failures, for the back-off.
    failures: u32,
    drift: drift::DriftWatch,
    repairs: repair::Repairs,
    /// The drifted path that is being repaired: the plan is limited to it.
    repair: Option<AbsPath>,
    /// The first effect, derived from the journal.
    next: Option<Effect>,
}

impl<S, A> std::fmt::Debug for Updater<S, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Updater")
            .field("root", &self.root)
            .field("phase", &self.phase)
            .finish()
    }
}

impl<S: Services, A: Audience> Updater<S, A> {
    /// Takes the lock, recovers from a crash, and publishes the state.
    ///
    /// `services` is `None` for an offline root. Blocks. No effect runs before [`Updater::run`].
    pub fn new(
        root: &Root,
        services: Option<S>,
        audience: A,
        conduct: Conduct,
        desired: watch::Receiver<Desired>,
    ) -> Result<(Self, watch::Receiver<Arc<UpdateReport>>), UpdateError> {
        let opened = trouble::open(root, None)?;
        Ok(Self::of(root, opened, services, audience, conduct, desired))
    }

    fn of(
        root: &Root,
        opened: Opened,
        services: Option<S>,
        audience: A,
        conduct: Conduct,
        desired: watch::Receiver<Desired>,
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
            drift: drift::DriftWatch::default(),
            repairs: repair::Repairs::default(),
            repair: None,
            next: None,
        };
        // Published before the loop starts, so that readers get the correct state meanwhile.
        match updater.is_beside_the_guard() {
            true => updater.phase = guard::shown_phase(&updater.journal),
            false => updater.next = updater.resume(),
        }
        updater.publish();
        (updater, reports)
    }

    /// Follows changes of the settings; a change applies from the next step on.
    #[must_use]
    pub fn following(mut self, conducts: watch::Receiver<Conduct>) -> Self {
        self.conducts = Some(conducts);
        self
    }

    /// Runs until `stop`. Work in progress is left in a state from which the next start continues.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), UpdateError> {
        if !self.await_the_guard(&stop).await? {
            return Ok(());
        }
        let mut next = self.next.take();
        self.know_failed_units().await?;
        loop {
            if self.trouble.is_some() {
                match self.regain(&stop).await? {
                    Regained::Stopped => return Ok(()),
                    Regained::At(effect) => next = effect,
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
                    self.troubled(error)?;
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
                Some(Effect::Reboot) if self.conduct.reboot != RebootConduct::Auto => {
                    let Some(event) = self.look_at_desired() else {
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
                    Effect::Plan
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
        effect: Effect,
        stop: &CancellationToken,
    ) -> Result<Option<Event>, UpdateError> {
        if let Some(conducts) = &mut self.conducts {
            self.conduct = conducts.borrow_and_update().clone();
        }
        let event = match effect {
            Effect::Plan => self.plan().await?,
            Effect::AwaitRelease => return self.await_release(stop).await,
            Effect::Cordon => return self.cordon(stop).await,
            Effect::Withhold => return self.withhold(stop).await,
            Effect::Drain => return self.drain(stop).await,
            Effect::Quiesce => return self.quiesce(stop).await,
            Effect::Uncordon => return self.uncordon(stop).await,
            Effect::Stage => self.stage(stop).await?,
            Effect::Commit => self.commit().await?,
            Effect::Act => return self.act(stop).await,
            Effect::Reboot => return self.reboot(stop).await,
            Effect::Verify => return self.verify(stop).await,
            Effect::Undo => return self.undo(stop).await,
        };
        // Blocking work is never interrupted, but nothing new begins after a stop.
        Ok(if stop.is_cancelled() {
            None
        } else {
            Some(event)
        })
    }

    /// Records a failure of the current transaction, or of a config without one.
    fn failed(&mut self, error: &dyn std::error::Error, code: Reason, again: bool) {
        let digest = self.planned.as_ref().map(|planned| planned.digest);
        let digest = digest.or_else(|| self.journal.top().map(|tx| tx.to.digest));
        let message = crate::error_chain::chain(error);
        tracing::error!(reason = %code, again, "{message}");
        self.journal.failure = Some(Failure {
            code,
            message: super::bounded(message),
            again,
            digest,
        });
        self.failures = self.failures.saturating_add(1);
    }

    /// Enters the phase that follows an event, and returns its effect.
    fn step(&mut self, event: Event) -> Option<Effect> {
        let (phase, effect) = self.phase.on(event, self.is_to_be_lifted());
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
