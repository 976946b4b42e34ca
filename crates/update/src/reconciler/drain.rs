//! Cordons and drains the node before the first change, and uncordons it after the last.
//!
//! Each request to the cluster is recorded before it is sent, so that the next start continues or reverts it. Every
//! step is idempotent.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Reconciler, ReconcilerHooks, UpdateError, node_call_retry::NodeCallResult};
use crate::{
    journal::{ConfigName, CordonRecord, DeviceUsers, PhaseRecord},
    node_port::{
        DrainOrder, DrainProgress, DrainResult, IrreversibleStep, NodeError, NodePort, StepDecision,
    },
    phase::{Phase, PhaseEffect, PhaseEvent},
    service_port::Services,
};
use machinist_base::reason::Reason;

/// Interval at which the time spent on a drain is saved; a crash loses at most this much.
const SPENT_TIME_SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// How long a stopped drain may take to report its final progress.
const FINAL_PROGRESS_TIMEOUT: Duration = Duration::from_millis(200);

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Enables draining for updates that need it. Must be called before [`Reconciler::run`].
    #[must_use]
    pub fn on_node(mut self, node: Arc<dyn NodePort>) -> Self {
        self.node.connect(node);
        if !self.state.is_held_by_guard() && !self.progress.has_initial_effect() {
            let effect = self.resume_cordon();
            self.progress.set_initial_effect(effect);
        }
        self.publish();
        self
    }

    /// Returns the remaining effect of a cordon if no update is open.
    pub(super) fn resume_cordon(&mut self) -> Option<PhaseEffect> {
        let cordon = self.journal.cordon.as_ref()?;
        let base = self.journal.base_digest();
        let is_over = base == Some(cordon.to.digest) || self.journal.failure.is_some();
        if !is_over || !self.is_stale_cordon() {
            // It continues, or is reverted, once the desired config is known.
            return None;
        }
        self.enter(Phase::Uncordoning);
        Some(PhaseEffect::Uncordon)
    }

    /// Returns whether the node is cordoned for an update that no longer exists, neither on the disk nor as a
    /// retry. A refused config is retried, too, if the reason may disappear, but the node is cordoned again only once
    /// the plan is accepted. So is one whose registry does not answer, once the download has succeeded.
    pub(super) fn is_stale_cordon(&self) -> bool {
        let failure = self.journal.failure.as_ref();
        self.node.is_connected()
            && !self.state.has_failed()
            && self.journal.cordon.is_some()
            && self.journal.transactions.is_empty()
            && !failure.is_some_and(|failure| {
                let refused = !failure.refusals.is_empty()
                    || failure.code.is_obstacle()
                    || failure.code == Reason::ImageUnreachable;
                failure.retryable && !refused
            })
    }

    /// Returns whether the planned update drains the node first.
    pub(super) fn drains(&self) -> bool {
        self.node.is_connected() && self.plan.drains()
    }

    /// Checks the cluster before an update that disturbs no pod.
    pub(super) async fn check_start_without_drain(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        let step = IrreversibleStep::Stage { drained: false };
        let result = self.check_step(step, stop).await?;
        Ok(result.map(|_| PhaseEvent::Released { drain: false }))
    }

    /// Cordons the node, and records that first.
    pub(super) async fn cordon(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        let Some(planned) = self.plan.planned() else {
            return Ok(Some(PhaseEvent::Withdrawn));
        };
        let (name, digest) = (planned.to.name.clone(), planned.digest);
        let to = ConfigName::new(name, digest);
        let now = Timestamp::now();
        let cordon = self.journal.cordon.take();
        let mut record = cordon.unwrap_or_else(|| CordonRecord {
            to: to.clone(),
            since: now,
            drained_for: 0,
            blocked_for: 0,
            phases: Vec::new(),
            devices_before: None,
            device_users: DeviceUsers::Open,
            stopped: Vec::new(),
        });
        record.to = to.clone();
        record.enter(Phase::Cordoned.name(), now);
        self.journal.cordon = Some(record);
        self.record_allocatable().await;
        self.save().await?;
        let name = to.name;
        let result = self
            .retry_until_answered(stop, |node, _| node.cordon(name.clone()))
            .await?;
        Ok(result.map(|()| PhaseEvent::Cordoned))
    }

    /// Disables device allocation before the drain.
    pub(super) async fn disable_devices(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        let result = self.set_device_users(DeviceUsers::Disabled, stop).await?;
        Ok(result.map(|()| PhaseEvent::DevicesDisabled))
    }

    /// Drains the node, waits as long as necessary, and publishes the blockers.
    pub(super) async fn drain(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        let (Some(node), Some(cordon)) = (self.node.port(), &self.journal.cordon) else {
            return Ok(Some(PhaseEvent::Withdrawn));
        };
        let spent = Duration::from_secs(cordon.drained_for);
        let blocked = Duration::from_secs(cordon.blocked_for);
        self.node.begin_drain(blocked);
        let (progress, mut reported) = watch::channel(DrainProgress {
            spent,
            ..DrainProgress::default()
        });
        let drain_stop = stop.child_token();
        let order = DrainOrder {
            to: cordon.to.name.clone(),
            spent,
            progress,
            stop: drain_stop.clone(),
        };
        let mut drain = std::pin::pin!(node.drain(order));
        let mut saved_at = Instant::now();
        let mut tick = tokio::time::interval(self.hooks.tick());
        let mut has_ended = false;
        let event = loop {
            tokio::select! {
                result = &mut drain => {
                    has_ended = true;
                    break self.event_for_drain(result);
                }
                // Safe to drop: the next start continues the drain.
                () = stop.cancelled() => break None,
                // Safe to drop: a change that is missed here is still marked unseen.
                Ok(()) = self.desired.changed() => {
                    if let Some(event) = self.event_for_desired() {
                        break Some(event);
                    }
                }
                // Safe to drop: the latest progress is read again at the end.
                Ok(()) = reported.changed() => {
                    self.report_progress(&reported);
                    if saved_at.elapsed() >= SPENT_TIME_SAVE_INTERVAL {
                        saved_at = Instant::now();
                        self.save().await?;
                    }
                }
                // Safe to drop, both: ticks recur, and a probe stays pending.
                _ = tick.tick() => self.hooks.record_beat(),
                () = self.hooks.probe_requested() => self.hooks.record_beat(),
            }
        };
        drain_stop.cancel();
        if !has_ended {
            // Wait for its final progress; its requests to the cluster stay in effect.
            let _ = tokio::time::timeout(FINAL_PROGRESS_TIMEOUT, &mut drain).await;
        }
        self.report_progress(&reported);
        self.node.end_drain();
        self.save().await?;
        Ok(event)
    }

    /// Returns the event that the end of the drain causes; `None` on a stop.
    fn event_for_drain(&mut self, result: Result<DrainResult, NodeError>) -> Option<PhaseEvent> {
        match result {
            Ok(DrainResult::Complete) => Some(PhaseEvent::Drained),
            Ok(DrainResult::Stopped) => None,
            Err(error) => {
                self.record_failure(&error, error.reason, error.retryable);
                Some(PhaseEvent::StepFailed)
            }
        }
    }

    fn report_progress(&mut self, progress: &watch::Receiver<DrainProgress>) {
        self.node
            .record_progress(&progress.borrow(), Instant::now());
        if let Some(cordon) = &mut self.journal.cordon {
            cordon.drained_for = self.node.spent().as_secs();
            cordon.blocked_for = self.node.blocked().as_secs();
        }
        self.publish();
    }

    /// Waits until the drained devices are released, stops the units that use devices, and checks the cluster.
    pub(super) async fn quiesce(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        if let Some(ended) = self.wait_for_device_release(stop).await? {
            return Ok(ended);
        }
        if let Some(ended) = self.stop_units(stop).await? {
            return Ok(ended);
        }
        let result = self.set_device_users(DeviceUsers::Quiesced, stop).await?;
        let NodeCallResult::Done(()) = result else {
            return Ok(result.map(|()| PhaseEvent::Permitted));
        };
        let step = IrreversibleStep::Stage { drained: true };
        let result = self.check_step(step, stop).await?;
        Ok(result.map(|permit| match permit {
            StepDecision::DrainAgain => PhaseEvent::Refilled,
            StepDecision::Proceed => PhaseEvent::Permitted,
        }))
    }

    async fn check_step(
        &mut self,
        step: IrreversibleStep,
        stop: &CancellationToken,
    ) -> Result<NodeCallResult<StepDecision>, UpdateError> {
        // The name may change while there is no answer.
        self.retry_until_answered(stop, |node, this| {
            let to = this.plan.config_name();
            node.check_step(step, Some(to.unwrap_or_else(|| this.config_name())))
        })
        .await
    }

    /// Enables device allocation and uncordons the node.
    pub(super) async fn uncordon(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        let config = self.config_name();
        if self.is_drain_to_be_cancelled() {
            let result = self
                .retry_until_answered(stop, |node, _| node.cancel_drain(config.clone()))
                .await?;
            let NodeCallResult::Done(()) = result else {
                return Ok(result.map(|()| PhaseEvent::Uncordoned { failed: false }));
            };
        }
        if let Some(ended) = self.reenable_devices(stop).await? {
            return Ok(ended);
        }
        let result = self
            .retry_until_answered(stop, |node, _| node.uncordon(config.clone()))
            .await?;
        let failed = self.journal.failure.is_some();
        let event = result.map(|()| PhaseEvent::Uncordoned { failed });
        if let Some(PhaseEvent::Uncordoned { .. }) = event {
            self.close_cordon().await?;
        }
        Ok(event)
    }

    /// Returns whether the node was drained for a config that has changed nothing.
    fn is_drain_to_be_cancelled(&self) -> bool {
        let base = self.journal.base_digest();
        let cordon = self.journal.cordon.as_ref().map(|cordon| cordon.to.digest);
        self.journal.failure.is_none() && cordon.is_some() && cordon != base
    }

    /// Deletes the cordon from the journal after uncordoning, and adds its blocked time and last phase to the history.
    async fn close_cordon(&mut self) -> Result<(), UpdateError> {
        let now = Timestamp::now();
        if let Some(cordon) = self.journal.cordon.take()
            && let Some(update) = self.journal.history.last_mut()
            && update.digest == cordon.to.digest
        {
            update.blocked_for = cordon.blocked_for;
            update.phases.push(PhaseRecord {
                name: Phase::Uncordoning.name().to_owned(),
                started: self.progress.since(),
                finished: Some(now),
            });
        }
        self.save().await?;
        tracing::info!("node released after the update");
        Ok(())
    }
}
