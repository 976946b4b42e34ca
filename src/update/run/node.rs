//! Cordons and drains the node before the first change, and uncordons it after the last.
//!
//! Each request to the cluster is recorded before it is sent, so that the next start continues or reverts it. Every
//! step is idempotent.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Audience, UpdateError, Updater, ask::Answer, plan::Planned};
use crate::update::{
    journal::{ConfigName, CordonRecord, Lending, PhaseRecord},
    node::{DrainOrder, DrainProgress, Emptied, Node, Permit, Step},
    phase::{Effect, Event, Phase},
    ports::Services,
};

/// Interval at which the time spent on a drain is saved; a crash loses at most this much.
const WRITTEN_DOWN: Duration = Duration::from_secs(60);

/// How long a stopped drain may take to report its final progress.
const LAST_WORD: Duration = Duration::from_millis(200);

impl<S: Services, A: Audience> Updater<S, A> {
    /// Enables draining for updates that need it. Must be called before [`Updater::run`].
    #[must_use]
    pub fn on_node(mut self, node: Arc<dyn Node>) -> Self {
        self.node = Some(node);
        if !self.is_beside_the_guard() {
            self.next = self.next.or_else(|| self.resume_cordon());
        }
        self.publish();
        self
    }

    /// Returns the remaining effect of a cordon if no update is open.
    pub(super) fn resume_cordon(&mut self) -> Option<Effect> {
        let cordon = self.journal.cordon.as_ref()?;
        let base = self.journal.base.as_ref().map(|base| base.digest);
        let over = base == Some(cordon.to.digest) || self.journal.failure.is_some();
        if !over || !self.is_to_be_lifted() {
            // It continues, or is reverted, once the desired config is known.
            return None;
        }
        self.enter(Phase::Uncordoning);
        Some(Effect::Uncordon)
    }

    /// Returns whether the node is cordoned for an update that no longer exists, neither on the disk nor as a
    /// retry.
    pub(super) fn is_to_be_lifted(&self) -> bool {
        let failure = self.journal.failure.as_ref();
        self.node.is_some()
            && self.trouble.is_none()
            && self.journal.cordon.is_some()
            && self.journal.transactions.is_empty()
            && !failure.is_some_and(|failure| failure.again)
    }

    /// Returns whether the planned update drains the node first. The repair of a drifted path does not.
    pub(super) fn drains(&self) -> bool {
        let drains = |planned: &Planned| planned.plan.drain;
        self.node.is_some() && self.repair.is_none() && self.planned.as_ref().is_some_and(drains)
    }

    /// Checks the cluster before an update that disturbs no pod.
    pub(super) async fn permit_without_drain(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<Event>, UpdateError> {
        let step = Step::Stage { drained: false };
        let asked = self.permit(step, stop).await?;
        Ok(asked.map(|_| Event::Released { drain: false }))
    }

    pub(super) async fn cordon(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<Event>, UpdateError> {
        let Some(planned) = &self.planned else {
            return Ok(Some(Event::Withdrawn));
        };
        let (name, digest) = (planned.to.name.clone(), planned.digest);
        let to = ConfigName::new(name, digest);
        let now = Timestamp::now();
        let known = self.journal.cordon.take();
        let mut record = known.unwrap_or_else(|| CordonRecord {
            to: to.clone(),
            since: now,
            drained_for: 0,
            phases: Vec::new(),
            lent: None,
            lending: Lending::Open,
            stopped: Vec::new(),
        });
        record.to = to.clone();
        record.enter(Phase::Cordoned.name(), now);
        self.journal.cordon = Some(record);
        self.know_what_is_lent().await;
        self.save().await?;
        let name = to.name;
        let asked = self
            .answer(stop, |node, _| node.cordon(name.clone()))
            .await?;
        Ok(asked.map(|()| Event::Cordoned))
    }

    pub(super) async fn withhold(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<Event>, UpdateError> {
        let asked = self.lend(Lending::Withheld, stop).await?;
        Ok(asked.map(|()| Event::Withheld))
    }

    /// Drains the node, waits as long as necessary, and publishes the blockers.
    pub(super) async fn drain(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<Event>, UpdateError> {
        let (Some(node), Some(cordon)) = (self.node.clone(), &self.journal.cordon) else {
            return Ok(Some(Event::Withdrawn));
        };
        let spent = Duration::from_secs(cordon.drained_for);
        let begun = DrainProgress {
            spent,
            ..DrainProgress::default()
        };
        let (progress, mut told) = watch::channel(begun);
        let over = stop.child_token();
        let order = DrainOrder {
            to: cordon.to.name.clone(),
            spent,
            progress,
            stop: over.clone(),
        };
        let drain = node.drain(order);
        let mut drain = std::pin::pin!(drain);
        let mut written = Instant::now();
        let mut tick = tokio::time::interval(self.audience.tick());
        let mut ended = false;
        let event = loop {
            tokio::select! {
                drained = &mut drain => {
                    ended = true;
                    break match drained {
                    Ok(Emptied::Wholly) => Some(Event::Drained),
                    Ok(Emptied::Stopped) => None,
                    Err(error) => {
                        self.failed(&error, error.reason, error.again);
                        Some(Event::StepFailed)
                    }
                }},
                // Safe to drop: the next start continues the drain.
                () = stop.cancelled() => break None,
                // Safe to drop: a change that is missed here is still marked unseen.
                Ok(()) = self.desired.changed() => {
                    if let Some(event) = self.look_at_desired() {
                        break Some(event);
                    }
                }
                // Safe to drop: the latest progress is read again at the end.
                Ok(()) = told.changed() => {
                    self.note_progress(&told);
                    if written.elapsed() >= WRITTEN_DOWN {
                        written = Instant::now();
                        self.save().await?;
                    }
                }
                // Safe to drop, both: ticks recur, and a probe stays pending.
                _ = tick.tick() => self.audience.beat(),
                () = self.audience.asked() => self.audience.beat(),
            }
        };
        over.cancel();
        if !ended {
            // Wait for its final progress; its requests to the cluster stay in effect.
            let _ = tokio::time::timeout(LAST_WORD, &mut drain).await;
        }
        self.note_progress(&told);
        self.draining = DrainProgress::default();
        self.save().await?;
        Ok(event)
    }

    fn note_progress(&mut self, told: &watch::Receiver<DrainProgress>) {
        self.draining.clone_from(&told.borrow());
        if let Some(cordon) = &mut self.journal.cordon {
            cordon.drained_for = self.draining.spent.as_secs();
        }
        self.publish();
    }

    pub(super) async fn quiesce(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<Event>, UpdateError> {
        if let Some(ended) = self.await_return(stop).await? {
            return Ok(ended);
        }
        if let Some(ended) = self.stop_units(stop).await? {
            return Ok(ended);
        }
        let asked = self.lend(Lending::Quiesced, stop).await?;
        let Answer::Done(()) = asked else {
            return Ok(asked.map(|()| Event::Permitted));
        };
        let step = Step::Stage { drained: true };
        let asked = self.permit(step, stop).await?;
        Ok(asked.map(|permit| match permit {
            Permit::Refilled => Event::Refilled,
            Permit::Go => Event::Permitted,
        }))
    }

    async fn permit(
        &mut self,
        step: Step,
        stop: &CancellationToken,
    ) -> Result<Answer<Permit>, UpdateError> {
        // The name may change while there is no answer.
        self.answer(stop, |node, this| {
            let planned = this.planned.as_ref();
            let to = planned.map(|planned| planned.to.name.clone());
            node.permit(step, Some(to.unwrap_or_else(|| this.config_name())))
        })
        .await
    }

    /// Enables device allocation and uncordons the node.
    pub(super) async fn uncordon(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<Event>, UpdateError> {
        let on = self.config_name();
        if self.is_drain_to_be_taken_back() {
            let asked = self
                .answer(stop, |node, _| node.take_back(on.clone()))
                .await?;
            let Answer::Done(()) = asked else {
                return Ok(asked.map(|()| Event::Uncordoned { failed: false }));
            };
        }
        if let Some(ended) = self.lend_again(stop).await? {
            return Ok(ended);
        }
        let asked = self
            .answer(stop, |node, _| node.uncordon(on.clone()))
            .await?;
        let failed = self.journal.failure.is_some();
        let event = asked.map(|()| Event::Uncordoned { failed });
        if let Some(Event::Uncordoned { .. }) = event {
            self.close_cordon().await?;
        }
        Ok(event)
    }

    /// Returns whether the node was drained for a config that has changed nothing.
    fn is_drain_to_be_taken_back(&self) -> bool {
        let base = self.journal.base.as_ref().map(|base| base.digest);
        let cordon = self.journal.cordon.as_ref().map(|cordon| cordon.to.digest);
        self.journal.failure.is_none() && cordon.is_some() && cordon != base
    }

    /// Deletes the cordon from the journal after uncordoning, and adds its last phase to the history.
    async fn close_cordon(&mut self) -> Result<(), UpdateError> {
        let now = Timestamp::now();
        if let Some(cordon) = self.journal.cordon.take()
            && let Some(update) = self.journal.history.last_mut()
            && update.digest == cordon.to.digest
        {
            update.phases.push(PhaseRecord {
                name: Phase::Uncordoning.name().to_owned(),
                started: self.since,
                finished: Some(now),
            });
        }
        self.save().await?;
        tracing::info!("node released after the update");
        Ok(())
    }
}
