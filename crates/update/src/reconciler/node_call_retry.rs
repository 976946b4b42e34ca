//! Retries requests to the node until there is an answer, and reports an unreachable API server as a blocker.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{RETRY_BACKOFF, Reconciler, ReconcilerHooks, UpdateError};
use crate::{
    journal::{Direction, Transaction},
    node_port::{Blocker, IrreversibleStep, NodeError, NodeFuture, NodePort, StepDecision},
    phase::PhaseEvent,
    service_port::Services,
};
use machinist_base::{backoff::jitter, error_chain::chain};

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

/// Result of a wait during an effect: `None` to continue, else the event for the loop, without one on a stop.
pub(super) type WaitEnd = Option<Option<PhaseEvent>>;

impl NodeCallResult<()> {
    pub(super) fn into_wait_end(self) -> WaitEnd {
        match self {
            Self::Done(()) => None,
            Self::Event(event) => Some(Some(event)),
            Self::Stopped => Some(None),
        }
    }
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
    pub(super) async fn check_reboot(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<WaitEnd, UpdateError> {
        let Some(node) = self.node.port() else {
            return Ok(None);
        };
        // No desired config matches an undo.
        let is_rollback = |tx: &Transaction| tx.direction == Direction::Undo;
        let is_rollback = self.journal.top().is_some_and(is_rollback);
        let drained = self.journal.cordon.is_some();
        let mut unreachable_since: Option<Instant> = None;
        let mut attempt = 0;
        loop {
            // Its name may have changed since the last attempt.
            let to = self.config_name();
            let desired = (!is_rollback).then(|| to.clone());
            let check = node.check_step(IrreversibleStep::Reboot { drained }, desired);
            let checked = tokio::select! {
                // Safe to drop: the check changes nothing.
                () = stop.cancelled() => return Ok(Some(None)),
                checked = self.run_responsive(check) => checked,
            };
            let error = match checked {
                Ok(StepDecision::DrainAgain) => match self.drain_again(&*node, &to, stop).await? {
                    Some(ended) => return Ok(Some(ended)),
                    None => {
                        unreachable_since = None;
                        continue;
                    }
                },
                Ok(StepDecision::Proceed) => {
                    self.clear_blockers();
                    return Ok(None);
                }
                Err(error) => error,
            };
            unreachable_since = error
                .unanswered
                .then(|| unreachable_since.unwrap_or_else(Instant::now));
            let outage = unreachable_since.map_or(Duration::ZERO, |since| since.elapsed());
            if let Some(ended) = self.end_of_outage(&*node, &error, outage) {
                return Ok(ended);
            }
            self.report_node_error(&error);
            // The desired config is another one, which could not begin. A plan for it would restart the limit of the outage.
            let newer = self
                .newer_config_retry()
                .filter(|_| unreachable_since.is_none());
            let mut pause = RETRY_BACKOFF.wait(attempt, jitter());
            if let Some(at) = newer {
                pause = pause.min(at.saturating_duration_since(Instant::now()));
            }
            attempt += 1;
            if let Some(ended) = self.pause(pause, stop).await? {
                return Ok(Some(ended));
            }
            if newer.is_some_and(|at| at <= Instant::now()) {
                return Ok(Some(Some(PhaseEvent::Desired)));
            }
        }
    }

    /// Returns whether an outage of the API server has lasted too long: then the reboot proceeds without it, or, on a
    /// control-plane node, the update is withdrawn.
    fn end_of_outage(
        &mut self,
        node: &dyn NodePort,
        error: &NodeError,
        outage: Duration,
    ) -> Option<WaitEnd> {
        match node.is_control_plane() {
            // The outage may be a lost quorum, of which this machine is a member.
            true if outage >= self.options.current().verify_timeout => {
                self.record_failure(error, error.reason, false);
                Some(Some(Some(PhaseEvent::Withdrawn)))
            }
            false if outage >= API_OUTAGE_TIMEOUT => {
                tracing::warn!("API server unreachable for {outage:.0?}: rebooting without it");
                Some(None)
            }
            _ => None,
        }
    }

    /// Cordons and drains the node again during an update.
    async fn drain_again(
        &mut self,
        node: &dyn NodePort,
        to: &str,
        stop: &CancellationToken,
    ) -> Result<WaitEnd, UpdateError> {
        tracing::warn!("pods may have been scheduled before the reboot; draining again");
        if let Err(error) = self.run_responsive(node.cordon(to.to_owned())).await {
            self.report_node_error(&error);
            return self.pause(RETRY_BACKOFF.wait(0, jitter()), stop).await;
        }
        Ok(match self.drain(stop).await? {
            Some(PhaseEvent::Drained) => None,
            ended => Some(ended),
        })
    }

    /// Publishes the error as a blocker, like a pod that cannot be evicted.
    pub(super) fn report_node_error(&mut self, error: &NodeError) {
        tracing::warn!(reason = %error.reason, "retrying: {}", chain(error));
        self.node.block_on_error(error);
        self.publish();
    }

    /// Publishes blockers. A known blocker keeps its start time.
    pub(super) fn report_blockers(&mut self, blockers: Vec<Blocker>) {
        if self.node.set_blockers(blockers) {
            self.publish();
        }
    }

    pub(super) fn clear_blockers(&mut self) {
        if self.node.clear_blockers() {
            self.publish();
        }
    }

    /// Repeats a request until it is answered. Waits for an unreachable API server with growing delays, until the
    /// desired config changes or a stop comes.
    pub(super) async fn retry_until_answered<T>(
        &mut self,
        stop: &CancellationToken,
        request: impl for<'a> Fn(&'a dyn NodePort, &Self) -> NodeFuture<'a, T>,
    ) -> Result<NodeCallResult<T>, UpdateError> {
        let Some(node) = self.node.port() else {
            return Ok(NodeCallResult::Event(PhaseEvent::Withdrawn));
        };
        let mut desired = self.desired.receiver();
        for attempt in 0.. {
            // Each arm may be dropped, because the request can be repeated.
            let result = tokio::select! {
                () = stop.cancelled() => return Ok(NodeCallResult::Stopped),
                Ok(()) = desired.changed() => match self.event_for_desired() {
                    Some(event) => return Ok(NodeCallResult::Event(event)),
                    None => continue,
                },
                result = self.run_responsive(request(&*node, self)) => result,
            };
            let error = match result {
                Ok(answer) => {
                    self.clear_blockers();
                    return Ok(NodeCallResult::Done(answer));
                }
                Err(error) if !error.retryable => {
                    self.record_failure(&error, error.reason, false);
                    return Ok(NodeCallResult::Event(PhaseEvent::StepFailed));
                }
                Err(error) => error,
            };
            self.report_node_error(&error);
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
