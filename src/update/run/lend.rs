//! Devices during an update: withheld before the pods leave, in nobody's hands before anything changes,
//! lent again before the machine is judged.
//!
//! To whom they are lent, and which units were stopped, is recorded before it is asked for.

use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{Audience, RETRY, UpdateError, Updater, ask::Answer};
use crate::{
    backoff::{Backoff, jitter},
    plan::{ActionKind, UnitFacts},
    telemetry::chain,
    update::{
        journal::{Lending, LentBefore},
        node::Blocker,
        phase::{Event, Phase},
        ports::{ServiceError, Services},
    },
};

/// Between two looks at who still has a device. Pods are gone from the cluster before the kubelet lets go
/// of what they had, as a rule by less than a second.
const HELD: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(2));

/// How a wait of this file ended: none to go on, else what the loop is told.
type Ended = Option<Option<Event>>;

impl<S: Services, A: Audience> Updater<S, A> {
    /// To whom devices are lent at the start of this process.
    pub(super) fn lending(&self) -> Lending {
        let cordon = self.journal.cordon.as_ref();
        match self.phase {
            // The machine is judged, or has been.
            Phase::Booted | Phase::Verifying | Phase::Uncordoning => Lending::Open,
            _ => cordon.map(|cordon| cordon.lending).unwrap_or_default(),
        }
    }

    /// What is lent and to whom, before anything is withheld: once for each cordon. Not saved here.
    pub(super) async fn know_what_is_lent(&mut self) {
        let known = self.journal.cordon.as_ref();
        let (Some(node), true) = (
            self.node.clone(),
            known.is_some_and(|cordon| cordon.lent.is_none()),
        ) else {
            return;
        };
        let counts = self.audience.allocatable();
        // Who has what is for people; an update does not depend on it.
        let holders = self.while_turning(node.holders()).await.ok().flatten();
        if let Some(cordon) = &mut self.journal.cordon {
            cordon.lent = Some(LentBefore { counts, holders });
        }
    }

    /// Records to whom devices are lent, then asks for it.
    pub(super) async fn lend(
        &mut self,
        lending: Lending,
        stop: &CancellationToken,
    ) -> Result<Answer<()>, UpdateError> {
        if let Some(cordon) = &mut self.journal.cordon
            && cordon.lending != lending
        {
            cordon.lending = lending;
            self.save().await?;
        }
        self.answer(stop, |node, _| node.lend(lending)).await
    }

    /// Waits until nobody has a device in hand whom the drain takes away, and says who has.
    pub(super) async fn await_return(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Ended, UpdateError> {
        let Some(node) = self.node.clone() else {
            return Ok(None);
        };
        for look in 0.. {
            let asked = tokio::select! {
                // Safe to drop: a look changes nothing.
                () = stop.cancelled() => return Ok(Some(None)),
                asked = self.while_turning(node.held()) => asked,
            };
            let pause = match asked {
                Ok(held) if held.is_empty() => break,
                Ok(held) => {
                    self.note_blockers(held);
                    HELD.step(look)
                }
                Err(error) if !error.again => {
                    self.failed(&error, error.reason, false);
                    return Ok(Some(Some(Event::StepFailed)));
                }
                Err(error) => {
                    self.note_refusal(&error);
                    RETRY.wait(look, jitter())
                }
            };
            if let Some(ended) = self.pause(pause, stop).await? {
                return Ok(Some(ended));
            }
        }
        self.forget_refusal();
        Ok(None)
    }

    /// Stops what uses devices on the host, as far as it runs.
    pub(super) async fn stop_units(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Ended, UpdateError> {
        let (Some(node), Some(services)) = (self.node.clone(), self.services.clone()) else {
            return Ok(None);
        };
        let units: Vec<String> = node.stop_units().into_iter().collect();
        for attempt in 0.. {
            let fault = match self.stop_running(&*services, &units, stop).await? {
                None => return Ok(Some(None)),
                Some(Ok(())) => break,
                Some(Err(fault)) => fault,
            };
            let (reason, message) = (fault.error.reason, chain(&fault));
            if !fault.error.again {
                self.failed(&fault, reason, false);
                return Ok(Some(Some(Event::StepFailed)));
            }
            tracing::warn!(%reason, "trying again: {message}");
            self.note_blockers(vec![Blocker {
                kind: "Unit".to_owned(),
                namespace: String::new(),
                name: fault.unit,
                reason,
                message,
                since: Timestamp::now(),
            }]);
            let pause = RETRY.wait(attempt, jitter());
            if let Some(ended) = self.pause(pause, stop).await? {
                return Ok(Some(ended));
            }
        }
        self.forget_refusal();
        Ok(None)
    }

    /// Each is recorded before it is stopped, so that whoever comes next starts it again. One that stops
    /// already is waited for: it may still have the device open. Who asked for that is not known here, an
    /// earlier life of the agent has recorded what it asked for. None: asked to stop.
    async fn stop_running(
        &mut self,
        services: &S,
        units: &[String],
        stop: &CancellationToken,
    ) -> Result<Option<Result<(), NotStopped>>, UpdateError> {
        for unit in units {
            let failed = |error| NotStopped {
                unit: unit.clone(),
                error,
            };
            let facts = match self.while_turning(facts(services, unit)).await {
                Ok(facts) => facts,
                Err(error) => return Ok(Some(Err(failed(error)))),
            };
            // One that waits to be started anew is stopped, too.
            if is_down(&facts) && !is_stopping(&facts) {
                continue;
            }
            if !is_stopping(&facts)
                && let Some(cordon) = &mut self.journal.cordon
                && !cordon.stopped.contains(unit)
            {
                cordon.stopped.push(unit.clone());
                self.save().await?;
            }
            tracing::info!(unit, "stopping {unit}: it uses a device that is taken back");
            let (limit, settle) = (self.conduct.job_timeout, self.conduct.settle);
            let stopping = services.act(ActionKind::Stop, unit, limit, settle);
            let stopped = tokio::select! {
                // The job goes on; whoever starts next finds the unit in the record.
                () = stop.cancelled() => return Ok(None),
                stopped = self.while_turning(stopping) => stopped,
            };
            if let Err(error) = stopped {
                return Ok(Some(Err(failed(error))));
            }
        }
        Ok(Some(Ok(())))
    }

    /// Starts what this update stopped and lends devices again: before anything asks whether the machine is
    /// as it was. Nothing happens the second time.
    pub(super) async fn lend_again(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Ended, UpdateError> {
        let cordon = self.journal.cordon.as_ref();
        let Some(cordon) = cordon.filter(|_| self.node.is_some()) else {
            return Ok(None);
        };
        let (lending, stopped) = (cordon.lending, cordon.stopped.clone());
        for unit in stopped {
            tokio::select! {
                // The next start begins with this unit again.
                () = stop.cancelled() => return Ok(Some(None)),
                () = self.while_turning(self.start_again(&unit)) => {}
            }
            if let Some(cordon) = &mut self.journal.cordon {
                cordon.stopped.retain(|stopped| *stopped != unit);
            }
            self.save().await?;
        }
        if lending == Lending::Open {
            return Ok(None);
        }
        // From now on they are waited for.
        if let Some((_, since)) = &mut self.journal.devices_before {
            *since = Timestamp::now();
        }
        Ok(match self.lend(Lending::Open, stop).await? {
            Answer::Done(()) => None,
            Answer::Event(event) => Some(Some(event)),
            Answer::Stopped => Some(None),
        })
    }

    /// A unit that does not start again is told of, and a failed unit; pods wait for neither.
    async fn start_again(&self, unit: &str) {
        let Some(services) = self.services.as_ref() else {
            return;
        };
        let (limit, settle) = (self.conduct.job_timeout, self.conduct.settle);
        let started = async {
            let facts = facts(&**services, unit).await?;
            let gone = matches!(facts.load.as_deref(), Some("not-found" | "masked"));
            if gone || !is_down(&facts) {
                return Ok(!gone);
            }
            let started = services.act(ActionKind::Restart, unit, limit, settle);
            started.await.map(|()| true)
        };
        match started.await {
            Ok(true) => tracing::info!(unit, "{unit} runs again"),
            Ok(false) => tracing::info!(unit, "{unit} is not there any more"),
            Err(error) => tracing::error!(
                unit,
                reason = %error.reason,
                "{unit} was stopped for this update and does not start again: {}",
                chain(&error)
            ),
        }
    }

    /// Before a reboot: an action may have started what was stopped, and a boot starts what is enabled. One
    /// that is not well had its devices lent again.
    pub(super) async fn quiesce_again(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Ended, UpdateError> {
        let Some(cordon) = &self.journal.cordon else {
            return Ok(None);
        };
        let open = cordon.lending == Lending::Open;
        if let (Some(node), Some(services)) = (self.node.clone(), self.services.clone()) {
            let units: Vec<String> = node.stop_units().into_iter().collect();
            match self.stop_running(&*services, &units, stop).await? {
                None => return Ok(Some(None)),
                Some(Ok(())) => {}
                // The machine is not well as it is: nothing holds up its reboot.
                Some(Err(fault)) => tracing::warn!("{}", chain(&fault)),
            }
        }
        if !open || self.node.is_none() {
            return Ok(None);
        }
        Ok(match self.lend(Lending::Quiesced, stop).await? {
            Answer::Done(()) => None,
            Answer::Event(event) => Some(Some(event)),
            Answer::Stopped => Some(None),
        })
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot stop {unit}, which uses a device that is taken back")]
struct NotStopped {
    unit: String,
    #[source]
    error: ServiceError,
}

async fn facts<S: Services>(services: &S, unit: &str) -> Result<UnitFacts, ServiceError> {
    let mut facts = services.unit_facts(&[unit.to_owned()]).await?;
    Ok(facts.remove(unit).unwrap_or_default())
}

/// Down, or on the way there: for who would start it again.
fn is_down(facts: &UnitFacts) -> bool {
    let active = facts.active.as_deref();
    matches!(active, None | Some("inactive" | "failed" | "deactivating"))
}

/// On the way down: its processes may still be there.
fn is_stopping(facts: &UnitFacts) -> bool {
    facts.active.as_deref() == Some("deactivating")
}
