//! Retries requests to the node until there is an answer, and reports an unreachable API server as a blocker.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{RETRY_BACKOFF, Reconciler, ReconcilerHooks, UpdateError};
use crate::{
    journal::{Direction, Transaction},
    node_port::{Blocker, IrreversibleStep, NodeError, NodeFuture, NodePort, StepDecision},
    phase::PhaseEvent,
    service_port::Services,
};
use machinist_base::backoff::jitter;

/// How long a reboot waits for an unreachable API server, which has approved the drain before. Does not apply to
/// control-plane nodes, on which the API server itself may depend.
const API_OUTAGE_TIMEOUT: Duration = Duration::from_secs(600);

/// Result of a request to the node.
pub(super) enum NodeCallResult<T> {
    Done(T),
    /// The desired config has changed, or waiting cannot help.
    Event(PhaseEvent),
    Stopped,
}

impl<T> NodeCallResult<T> {
    /// Converts the result into an event; `None` on a stop.
    pub(super) fn map(self, done: impl FnOnce(T) -> PhaseEvent) -> Option<PhaseEvent> {
        match self {
            Self::Done(answer) => Some(done(answer)),
            Self::Event(event) => Some(event),
            Self::Stopped => None,
        }
    }
}

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Checks the cluster before a reboot. Evicts pods that were scheduled in the meantime. Returns `None` if the
    /// reboot may proceed.
    pub(super) async fn permit_reboot(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<Option<PhaseEvent>>, UpdateError> {
        let Some(node) = self.node.clone() else {
            return Ok(None);
        };
        // No desired config matches an undo.
        let back = |tx: &Transaction| tx.direction == Direction::Undo;
        let back = self.journal.top().is_some_and(back);
        let drained = self.journal.cordon.is_some();
        // Since when the API server has not answered.
        let mut away: Option<Instant> = None;
        let mut attempt = 0;
        loop {
            // Its name may have changed since the last attempt.
            let to = self.config_name();
            let towards = (!back).then(|| to.clone());
            let asked = node.check_step(IrreversibleStep::Reboot { drained }, towards);
            let answered = tokio::select! {
                // Safe to drop: the check changes nothing.
                () = stop.cancelled() => return Ok(Some(None)),
                answered = self.run_responsive(asked) => answered,
            };
            let refused = match answered {
                Ok(StepDecision::Refilled) => match self.empty_again(&*node, &to, stop).await? {
                    Some(ended) => return Ok(Some(ended)),
                    None => {
                        away = None;
                        continue;
                    }
                },
                Ok(StepDecision::Go) => {
                    self.forget_refusal();
                    return Ok(None);
                }
                Err(error) => error,
            };
            match refused.unanswered {
                true => away = Some(away.unwrap_or_else(Instant::now)),
                false => away = None,
            }
            let waited = away.map_or(Duration::ZERO, |away| away.elapsed());
            match node.is_control_plane() {
                // The outage may be a lost quorum, of which this machine is a member.
                true if waited >= self.options.current().verify_timeout => {
                    self.failed(&refused, refused.reason, false);
                    return Ok(Some(Some(PhaseEvent::Withdrawn)));
                }
                false if waited >= API_OUTAGE_TIMEOUT => {
                    tracing::warn!("API server unreachable for {waited:.0?}: rebooting without it");
                    return Ok(None);
                }
                _ => {}
            }
            self.note_refusal(&refused);
            let pause = RETRY_BACKOFF.wait(attempt, jitter());
            attempt += 1;
            if let Some(event) = self.pause(pause, stop).await? {
                return Ok(Some(event));
            }
        }
    }

    /// Cordons and drains the node again during an update.
    async fn empty_again(
        &mut self,
        node: &dyn NodePort,
        to: &str,
        stop: &CancellationToken,
    ) -> Result<Option<Option<PhaseEvent>>, UpdateError> {
        tracing::warn!("pods may have been scheduled before the reboot; draining again");
        if let Err(error) = self.run_responsive(node.cordon(to.to_owned())).await {
            self.note_refusal(&error);
            return self.pause(RETRY_BACKOFF.wait(0, jitter()), stop).await;
        }
        Ok(match self.drain(stop).await? {
            Some(PhaseEvent::Drained) => None,
            ended => Some(ended),
        })
    }

    /// Publishes the error as a blocker, like a pod that cannot be evicted.
    pub(super) fn note_refusal(&mut self, error: &NodeError) {
        let message = machinist_base::error_chain::chain(error);
        tracing::warn!(reason = %error.reason, "retrying: {message}");
        let known = self.draining.blockers.first();
        let since = known.map_or_else(Timestamp::now, |blocker| blocker.since);
        self.draining.blockers = vec![Blocker {
            kind: "Node".to_owned(),
            namespace: String::new(),
            name: error.node.clone(),
            reason: error.reason,
            message,
            since,
        }];
        self.publish();
    }

    /// Publishes blockers. A known blocker keeps its start time.
    pub(super) fn note_blockers(&mut self, mut blockers: Vec<Blocker>) {
        let known = std::mem::take(&mut self.draining.blockers);
        for blocker in &mut blockers {
            let same = |other: &&Blocker| {
                (&other.kind, &other.namespace, &other.name)
                    == (&blocker.kind, &blocker.namespace, &blocker.name)
            };
            if let Some(known) = known.iter().find(same) {
                blocker.since = known.since;
            }
        }
        let news = known != blockers;
        self.draining.blockers = blockers;
        if news {
            self.publish();
        }
    }

    pub(super) fn forget_refusal(&mut self) {
        if !self.draining.blockers.is_empty() {
            self.draining.blockers.clear();
            self.publish();
        }
    }

    /// Queries when the cluster allows the planned update to begin. Returns `Some` if another event comes first.
    pub(super) async fn query_earliest_start(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<Option<PhaseEvent>>, UpdateError> {
        if self.node.is_none() || !self.is_time_limited() {
            return Ok(None);
        }
        let asked = self
            .retry_until_answered(stop, |node, _| node.earliest_start())
            .await?;
        let NodeCallResult::Done(earliest) = asked else {
            return Ok(Some(asked.map(|_| PhaseEvent::Withdrawn)));
        };
        self.earliest = earliest;
        Ok(None)
    }

    /// Repeats a request until it is answered. Waits for an unreachable API server with growing delays, until the
    /// desired config changes or a stop comes.
    pub(super) async fn retry_until_answered<T>(
        &mut self,
        stop: &CancellationToken,
        what: impl for<'a> Fn(&'a dyn NodePort, &Self) -> NodeFuture<'a, T>,
    ) -> Result<NodeCallResult<T>, UpdateError> {
        let Some(node) = self.node.clone() else {
            return Ok(NodeCallResult::Event(PhaseEvent::Withdrawn));
        };
        let mut desired = self.desired.receiver();
        for attempt in 0.. {
            // Each arm may be dropped, because the request can be repeated.
            let asked = tokio::select! {
                () = stop.cancelled() => return Ok(NodeCallResult::Stopped),
                Ok(()) = desired.changed() => match self.event_for_desired() {
                    Some(event) => return Ok(NodeCallResult::Event(event)),
                    None => continue,
                },
                asked = self.run_responsive(what(&*node, self)) => asked,
            };
            let error = match asked {
                Ok(answer) => {
                    self.forget_refusal();
                    return Ok(NodeCallResult::Done(answer));
                }
                Err(error) if !error.retryable => {
                    self.failed(&error, error.reason, false);
                    return Ok(NodeCallResult::Event(PhaseEvent::StepFailed));
                }
                Err(error) => error,
            };
            self.note_refusal(&error);
            let pause = RETRY_BACKOFF.wait(attempt, jitter());
            match self.pause(pause, stop).await? {
                None => {}
                Some(None) => return Ok(NodeCallResult::Stopped),
                Some(Some(event)) => return Ok(NodeCallResult::Event(event)),
            }
        }
        Ok(NodeCallResult::Stopped)
    }
}
