//! Waits for events, and runs work while the loop stays responsive.

use std::future::Future;

use tokio_util::sync::CancellationToken;

use super::{Reconciler, ReconcilerHooks, UpdateError};
use crate::{
    journal::{Direction, Journal, TransactionState},
    phase::{Phase, PhaseEvent},
    service_port::Services,
    store::StateStore,
};

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Waits for the next event. Returns `None` on a stop.
    pub(super) async fn wait(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        if let Some(event) = self.event_for_desired() {
            return Ok(Some(event));
        }
        self.rename_base().await?;
        self.store_desired().await?;
        self.clean_up().await;
        self.remove_trial_copy().await;
        self.arm_drift().await?;
        if let Some(event) = self.next_repair() {
            return Ok(Some(event));
        }
        let retry = self.retry_after();
        let phase = self.progress.phase();
        let newer = self
            .newer_config_retry()
            .filter(|_| matches!(phase, Phase::RebootPending | Phase::Failed));
        let mut window = self.window_due();
        let mut tick = tokio::time::interval(self.hooks.tick());
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(None),
                // Safe to drop: a change that is missed here is still marked unseen.
                changed = self.desired.changed() => {
                    if changed.is_err() {
                        stop.cancelled().await;
                        return Ok(None);
                    }
                    if let Some(event) = self.event_for_desired() {
                        return Ok(Some(event));
                    }
                    self.rename_base().await?;
                    self.clean_up().await;
                }
                // Safe to drop: what inotify has queued is read by the next call.
                dirty = self.drift.wait_for_change() => {
                    self.check_drift(dirty).await?;
                    if let Some(event) = self.next_repair() {
                        return Ok(Some(event));
                    }
                }
                // Safe to drop: what inotify has queued is read by the next call.
                () = self.staging.changed() => self.remove_trial_copy().await,
                // Safe to drop: the deadline is absolute.
                () = sleep_until(retry) => return Ok(Some(self.retry_event())),
                // Safe to drop: the deadline is absolute.
                () = sleep_until(newer) => return Ok(Some(PhaseEvent::Desired)),
                // Safe to drop: the deadline is absolute.
                () = sleep_until(window) => {
                    // The cluster's earliest time is queried again, because it may have changed.
                    if self.closed_until().is_none() || self.plan.start.is_set_by_cluster() {
                        return Ok(Some(self.event_for_waiting()));
                    }
                    window = self.window_due();
                }
                // Safe to drop, both: ticks recur, and a probe stays pending.
                _ = tick.tick() => self.hooks.record_beat(),
                () = self.hooks.probe_requested() => self.hooks.record_beat(),
                // Safe to drop: a change that is missed here is still marked unseen.
                () = self.options.changed() => match self.progress.phase() {
                    Phase::RebootPending => return Ok(Some(PhaseEvent::Retry)),
                    Phase::Waiting => return Ok(Some(self.event_for_waiting())),
                    _ => {}
                },
            }
        }
    }

    /// Runs a future that may take long, and answers liveness probes meanwhile.
    pub(super) async fn run_responsive<T>(&self, work: impl Future<Output = T>) -> T {
        let mut tick = tokio::time::interval(self.hooks.tick());
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                // Safe to drop, both: ticks recur, and a probe stays pending.
                _ = tick.tick() => self.hooks.record_beat(),
                () = self.hooks.probe_requested() => self.hooks.record_beat(),
            }
        }
    }

    /// Runs blocking work with the journal. The work is never interrupted.
    pub(super) async fn blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&StateStore, &mut Journal) -> T + Send + 'static,
    ) -> Result<T, UpdateError> {
        let store = self.state.open_store()?;
        let mut journal = std::mem::take(&mut self.journal);
        let task = tokio::task::spawn_blocking(move || {
            let done = work(&store, &mut journal);
            (journal, done)
        });
        let (journal, done) = self.run_responsive(task).await.map_err(UpdateError::Lost)?;
        self.journal = journal;
        Ok(done)
    }

    /// Makes the journal durable.
    pub(super) async fn save(&mut self) -> Result<(), UpdateError> {
        Ok(self
            .blocking(|store, journal| store.save(journal))
            .await??)
    }

    /// Returns the event for a retry: of an undo, a reboot, or the whole update.
    pub(super) fn retry_event(&self) -> PhaseEvent {
        match self.journal.top() {
            Some(tx) if tx.direction == Direction::Undo || self.is_rolling_back_os() => {
                PhaseEvent::Withdrawn
            }
            Some(tx) if tx.mark == TransactionState::Committed => PhaseEvent::RebootDue,
            _ => PhaseEvent::Retry,
        }
    }

    /// Returns when a transient failure is retried; `None` if there is none.
    pub(super) fn retry_after(&self) -> Option<tokio::time::Instant> {
        let retryable = self
            .journal
            .failure
            .as_ref()
            .is_some_and(|failure| failure.retryable);
        let has_failed = self.progress.phase() == Phase::Failed;
        (retryable && has_failed).then(|| tokio::time::Instant::now() + self.progress.retry_delay())
    }
}

/// Sleeps until `then`; sleeps forever if it is `None`.
pub(super) async fn sleep_until(then: Option<tokio::time::Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}
