//! Node implementation that drains by itself: cordon, evict, final check, uncordon.

mod cordon_state;
mod drain_run;
mod evicted_holders;
mod force_drain;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use super::{NodeContext, device_holders::HolderWait};
use machinist_base::{clock::Clock, error_chain::chain, reason::Reason};
use machinist_cluster::node::{Cordon, Uncordon};
use machinist_drain::{
    LossPolicy as Leave, PodId,
    eviction::{Drain, DrainError, Options, PodApi},
};
use machinist_kube_api::{EventReason, NodeView, keys::annotation};
use machinist_status::settings::{self, DataLossPolicy, Settings};
use machinist_update::node_port::{
    Blocker, DeviceHolderCounts, DeviceUsers, DrainOrder, DrainResult, IrreversibleStep, NodeError,
    NodeFuture, NodePort, StepDecision,
};

/// How long the watch may take to deliver our own write.
const WATCH_ECHO_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// This machine as a node whose pods the agent evicts itself.
#[derive(Debug)]
pub(crate) struct AgentDrain<P> {
    ours: NodeContext,
    pods: Arc<P>,
    /// Drain settings; read again for each drain.
    settings: watch::Receiver<Arc<Settings>>,
    /// UID of the pod that this process runs in.
    own: Option<String>,
    clock: Clock,
    /// The Node that was cordoned, and whether another client has uncordoned it.
    cordoned: Mutex<cordon_state::CordonMemo>,
    /// The drain for which an operator requested force.
    heard: Mutex<force_drain::ForceRequest>,
    /// Ended pods that the last drain stopped waiting for.
    left_behind: Mutex<Vec<PodId>>,
    waiting: HolderWait,
}

impl<P: PodApi> AgentDrain<P> {
    pub(crate) fn new(
        ours: NodeContext,
        pods: P,
        settings: watch::Receiver<Arc<Settings>>,
        own: Option<String>,
    ) -> Self {
        Self {
            ours,
            pods: Arc::new(pods),
            settings,
            own,
            clock: Clock::system(),
            cordoned: Mutex::default(),
            heard: Mutex::default(),
            left_behind: Mutex::default(),
            waiting: HolderWait::default(),
        }
    }

    async fn cordon_now(&self, to: &str) -> Result<(), NodeError> {
        let what = "cordon node";
        let view = self.ours.live(what).await?;
        let known = locked(&self.cordoned).clone();
        if known.required_action(&view) == cordon_state::NodeRequests::Patience {
            return Err(self.accept_second_uncordon(&view).await);
        }
        let needs_grant = self.ours.needs_grant(what).await?;
        let cordoned = self.ours.node.cordon(to, needs_grant).await;
        let cordoned = cordoned.map_err(|e| self.ours.refused(what, e))?;
        match cordoned {
            Cordon::NoNode => return Err(self.ours.other(what, Reason::NodeMissing, true)),
            Cordon::NotGranted => return Err(self.ours.other(what, Reason::AwaitingGrant, true)),
            Cordon::ByMachinist | Cordon::ByAnother => {}
        }
        locked(&self.cordoned).cordoned(&view);
        if cordoned == Cordon::ByMachinist && !view.is_cordoned() {
            let reason = match known.is_recorded() {
                true => EventReason::Recordoned,
                false => EventReason::Cordon,
            };
            self.ours
                .emit_node_event(reason, format!("cordoned for update to {to}"));
        }
        Ok(())
    }

    /// A second uncordon by another client is respected.
    async fn accept_second_uncordon(&self, view: &NodeView) -> NodeError {
        self.release_cordon(view).await;
        let what = "override the second uncordon of node";
        self.ours.other(what, Reason::NodeUncordoned, true)
    }

    async fn recheck_preconditions(
        &self,
        step: IrreversibleStep,
        to: Option<String>,
    ) -> Result<StepDecision, NodeError> {
        let view = self.ours.check_still_desired(to.clone()).await?;
        self.ours.final_check(step, &view, to.as_deref()).await?;
        let drained = super::drained(step);
        if !drained {
            return Ok(StepDecision::Proceed);
        }
        let asks = locked(&self.cordoned).required_action(&view);
        match asks {
            cordon_state::NodeRequests::Nothing => {}
            cordon_state::NodeRequests::Cordon => return Ok(StepDecision::DrainAgain),
            cordon_state::NodeRequests::Patience => {
                return Err(self.accept_second_uncordon(&view).await);
            }
        }
        let drain = self.as_configured(None);
        let rehearsal = drain
            .rehearse(false)
            .await
            .map_err(|e| self.not_drained(e))?;
        let left = locked(&self.left_behind);
        let stays = rehearsal.evict.iter().all(|pod| left.contains(&pod.pod));
        Ok(match stays && rehearsal.refuse.is_empty() {
            true => StepDecision::Proceed,
            false => StepDecision::DrainAgain,
        })
    }

    /// Removes our ownership annotation, so that a later cordon of another client is not ours.
    async fn release_cordon(&self, view: &NodeView) {
        if !view.has_cordon_mark() {
            return;
        }
        if let Err(error) = self.ours.node.remove_annotation(annotation::CORDONED).await {
            tracing::warn!(reason = %error.reason(), "{}", chain(&error));
        }
    }

    /// The last observed Node.
    fn seen(&self) -> Option<Arc<NodeView>> {
        self.ours.node.snapshots().borrow().node.clone()
    }

    fn is_cordoned(&self) -> bool {
        self.seen().is_some_and(|node| node.is_cordoned())
    }

    /// Removes the force-drain annotation when the forced drain is over, whatever its result: it
    /// applies to one drain only.
    async fn forget_force(&self) -> Result<(), NodeError> {
        let stands = |node: &NodeView| node.annotations.contains_key(annotation::FORCE_DRAIN);
        if !self.seen().is_some_and(|node| stands(&node)) {
            return Ok(());
        }
        let what = "remove the force-drain annotation from node";
        match self
            .ours
            .node
            .remove_annotation(annotation::FORCE_DRAIN)
            .await
        {
            Err(error) if !error.is_not_found() => Err(self.ours.refused(what, error)),
            _ => {
                let mut snapshots = self.ours.node.snapshots();
                let gone =
                    snapshots.wait_for(|snapshot| !snapshot.node.as_deref().is_some_and(stands));
                // Once its removal is observed, the same text counts as a new request.
                if tokio::time::timeout(WATCH_ECHO_TIMEOUT, gone).await.is_ok() {
                    locked(&self.heard).annotation_removed();
                }
                Ok(())
            }
        }
    }

    fn as_configured(&self, force_after: Option<Duration>) -> Drain<P> {
        let options = options(&self.settings.borrow().drain, force_after, self.own.clone());
        let (pods, clock) = (Arc::clone(&self.pods), self.clock.clone());
        Drain::new(pods, self.ours.name(), options, clock)
    }

    fn not_drained(&self, error: DrainError) -> NodeError {
        // The drain error is the source and describes the details.
        NodeError {
            what: format!("drain node {}", self.ours.name()),
            node: self.ours.name().to_owned(),
            reason: error.reason(),
            // A blocking pod may disappear later.
            retryable: error.is_retryable() || matches!(error, DrainError::Refused(_)),
            unanswered: matches!(&error, DrainError::Unreachable { source, .. } if source.is_outage()),
            source: Some(Box::new(error)),
        }
    }
}

impl<P: PodApi> NodePort for AgentDrain<P> {
    fn cordon(&self, to: String) -> NodeFuture<'_, ()> {
        Box::pin(async move { self.cordon_now(&to).await })
    }

    fn set_device_users(&self, users: DeviceUsers) -> NodeFuture<'_, ()> {
        Box::pin(self.ours.set_device_users(users))
    }

    fn holders(&self) -> NodeFuture<'_, Option<DeviceHolderCounts>> {
        Box::pin(async { Ok(self.ours.holders().await) })
    }

    fn evicted_holders(&self) -> NodeFuture<'_, Vec<Blocker>> {
        Box::pin(self.evicted_holders())
    }

    fn stop_units(&self) -> BTreeSet<String> {
        self.ours.stop_units()
    }

    fn drain(&self, order: DrainOrder) -> NodeFuture<'_, DrainResult> {
        Box::pin(self.drain_now(order))
    }

    fn check_step(
        &self,
        step: IrreversibleStep,
        to: Option<String>,
    ) -> NodeFuture<'_, StepDecision> {
        Box::pin(self.recheck_preconditions(step, to))
    }

    fn uncordon(&self, _: String) -> NodeFuture<'_, ()> {
        Box::pin(async move {
            self.ours.wait_until_fit().await;
            let missing = self.ours.wait_for_node_allocatable().await;
            self.forget_force().await?;
            let what = "uncordon node";
            match self
                .ours
                .node
                .uncordon()
                .await
                .map_err(|e| self.ours.refused(what, e))?
            {
                Uncordon::NoNode => {}
                Uncordon::Done => {
                    let but = |missing| format!("; the Node reports only {missing}");
                    let but = missing.map(but).unwrap_or_default();
                    let note = format!("uncordoned{but}");
                    self.ours.emit_node_event(EventReason::Uncordon, note);
                }
                Uncordon::KeptByOperator => self.ours.emit_node_event(
                    EventReason::UncordonSkipped,
                    "not uncordoned: annotation machinist.dev/keep-cordoned is set",
                ),
                Uncordon::NotOurs if !self.is_cordoned() => {}
                Uncordon::NotOurs => self.ours.emit_node_event(
                    EventReason::UncordonSkipped,
                    "not uncordoned: cordoned by another client",
                ),
            }
            *locked(&self.cordoned) = cordon_state::CordonMemo::default();
            Ok(())
        })
    }

    fn is_control_plane(&self) -> bool {
        self.ours.is_control_plane()
    }
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drain options for an update of this node.
fn options(
    settings: &settings::DrainSettings,
    force_after: Option<Duration>,
    own: Option<String>,
) -> Options {
    let permit = |losing| match losing {
        DataLossPolicy::Evict => Leave::Evict,
        DataLossPolicy::Block => Leave::Refuse,
    };
    let mut options = Options::unattended(own, force_after);
    options.rules.unmanaged = permit(settings.unmanaged);
    options.rules.local_data = permit(settings.empty_dir);
    options.at_once = usize::try_from(settings.parallel).unwrap_or(1);
    options
}

#[cfg(test)]
pub(super) mod tests;
