//! Runs one drain: evicts the pods, and keeps the node cordoned meanwhile.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::watch;

use super::{AgentDrain, cordon_state::NodeRequests, force_drain::ForceAnnotation, locked};
use crate::node::drain_events::ReportedDrainState;
use machinist_base::{error_chain::chain, reason::Reason};
use machinist_drain::{
    PodWait,
    eviction::{DrainError, DrainSummary, EvictionProgress, ForceState, PodApi},
};
use machinist_kube_api::{EventReason, NodeView, keys::annotation};
use machinist_update::node_port::{Blocker, DrainOrder, DrainProgress, DrainResult, NodeError};

/// How one part of a drain ended.
enum DrainRunEnd {
    Ended(Result<DrainSummary, DrainError>),
    /// Another client uncordoned the node a second time.
    Lifted,
}

/// Blockers that concern the Node itself rather than pods.
#[derive(Default)]
struct NodeBlockers {
    unexplained: Option<Timestamp>,
    lifted: Option<Timestamp>,
}

impl<P: PodApi> AgentDrain<P> {
    pub(super) async fn drain_now(&self, mut order: DrainOrder) -> Result<DrainResult, NodeError> {
        self.ours.emit_node_event(
            EventReason::Drain,
            format!("draining node for update to {}", order.to),
        );
        let mut told = ReportedDrainState::default();
        loop {
            match self.drain_on(&mut order, &mut told).await {
                DrainRunEnd::Ended(ended) => return self.after(ended),
                DrainRunEnd::Lifted if self.is_cordoned_again(&order).await => {}
                DrainRunEnd::Lifted => return Ok(DrainResult::Stopped),
            }
        }
    }

    /// Drains until it ends, or until the cordon is lifted by another client a second time.
    async fn drain_on(
        &self,
        order: &mut DrainOrder,
        reported: &mut ReportedDrainState,
    ) -> DrainRunEnd {
        let settings = self.settings.borrow().drain.clone();
        let drain = self.as_configured(self.ours.force_after(&settings).await);
        let mut told = drain.progress();
        let mut snapshots = self.ours.node.snapshots();
        snapshots.mark_changed();
        let (ordered, orders) = watch::channel(None);
        let force = ForceState {
            spent: order.spent,
            ordered: orders,
        };
        let mut of_node = NodeBlockers::default();
        let over = order.stop.child_token();
        let mut running = std::pin::pin!(drain.run(force, over.clone()));
        loop {
            tokio::select! {
                ended = &mut running => {
                    let end = told.borrow().clone();
                    self.show(order, &end, &of_node);
                    reported.emit_drain_events(&self.ours, &end);
                    order.spent = end.spent;
                    if ended.is_ok() && end.ordered.is_some() {
                        self.clear_force_request().await;
                    }
                    *locked(&self.left_behind) = end.left_behind;
                    return match of_node.lifted.is_some() && !order.stop.is_cancelled() {
                        true => DrainRunEnd::Lifted,
                        false => DrainRunEnd::Ended(ended),
                    };
                }
                // Both are cancel-safe: a change stays marked as unseen.
                Ok(()) = told.changed() => {
                    let now = told.borrow_and_update().clone();
                    self.show(order, &now, &of_node);
                    reported.emit_drain_events(&self.ours, &now);
                }
                Ok(()) = snapshots.changed() => {
                    let view = snapshots.borrow_and_update().node.clone();
                    self.apply_force_request(view.as_deref(), order, &ordered, &mut of_node).await;
                    if let Some(view) = view && self.keep_cordoned(&view, order).await == NodeRequests::Patience {
                        of_node.lifted.get_or_insert_with(|| self.clock.now());
                        over.cancel();
                    }
                    self.show(order, &told.borrow().clone(), &of_node);
                }
            }
        }
    }

    /// Passes an operator's force request to the drain, and reports an invalid one.
    async fn apply_force_request(
        &self,
        view: Option<&NodeView>,
        order: &DrainOrder,
        ordered: &watch::Sender<Option<String>>,
        of_node: &mut NodeBlockers,
    ) {
        let word = locked(&self.heard).of(view, &order.to);
        let unexplained = word == ForceAnnotation::Unexplained;
        if unexplained && of_node.unexplained.is_none() {
            self.ours
                .emit_node_event(EventReason::DrainBlocked, missing_reason_note());
        }
        let since = of_node.unexplained.unwrap_or_else(|| self.clock.now());
        of_node.unexplained = unexplained.then_some(since);
        if word == ForceAnnotation::Stale {
            self.clear_force_request().await;
        }
        let why = match word {
            ForceAnnotation::Force(why) => Some(why),
            ForceAnnotation::None | ForceAnnotation::Stale | ForceAnnotation::Unexplained => None,
        };
        ordered.send_if_modified(|known| {
            let differs = *known != why;
            *known = why;
            differs
        });
    }

    /// Cordons a node that was uncordoned or recreated meanwhile. If this fails it is retried when
    /// the Node changes, and before the first change of the machine.
    async fn keep_cordoned(&self, view: &NodeView, order: &DrainOrder) -> NodeRequests {
        let asks = locked(&self.cordoned).required_action(view);
        if asks == NodeRequests::Cordon {
            let cordoned = tokio::select! {
                // Cancel-safe: the patch applies only to this version of the Node.
                () = order.stop.cancelled() => return asks,
                cordoned = self.cordon_now(&order.to) => cordoned,
            };
            if let Err(error) = cordoned {
                tracing::warn!(reason = %error.reason, "{}", chain(&error));
            }
        }
        asks
    }

    /// Reports the missing cordon and waits until the node is cordoned. False if stopped.
    async fn is_cordoned_again(&self, order: &DrainOrder) -> bool {
        self.ours
            .emit_node_event(EventReason::DrainBlocked, second_uncordon_note());
        if let Some(view) = self.seen() {
            self.release_cordon(&view).await;
        }
        let mut snapshots = self.ours.node.snapshots();
        let stands = snapshots.wait_for(|snapshot| {
            let asks = |node: &Arc<NodeView>| locked(&self.cordoned).required_action(node);
            snapshot.node.as_ref().map(asks) != Some(NodeRequests::Patience)
        });
        tokio::select! {
            // Both are cancel-safe: they only wait.
            () = order.stop.cancelled() => false,
            stands = stands => stands.is_ok(),
        }
    }

    fn show(&self, order: &DrainOrder, told: &EvictionProgress, of_node: &NodeBlockers) {
        let name = self.ours.name();
        order.progress.send_replace(progress(told, name, of_node));
    }

    /// Removes the operator's force request, which applied to this drain only.
    async fn clear_force_request(&self) {
        if let Err(error) = self
            .ours
            .node
            .remove_annotation(annotation::FORCE_DRAIN)
            .await
        {
            tracing::warn!(reason = %error.reason(), "{}", chain(&error));
        }
    }

    fn after(&self, ended: Result<DrainSummary, DrainError>) -> Result<DrainResult, NodeError> {
        match ended {
            Ok(_) => {
                self.ours
                    .emit_node_event(EventReason::Drained, "node drained");
                Ok(DrainResult::Complete)
            }
            Err(DrainError::Stopped) => Ok(DrainResult::Stopped),
            Err(error) => {
                self.ours
                    .emit_node_event(EventReason::FailedToDrain, chain(&error));
                Err(self.not_drained(error))
            }
        }
    }
}

fn missing_reason_note() -> String {
    let name = annotation::FORCE_DRAIN;
    format!("annotation {name} has no reason and is ignored; set {name}=REASON")
}

fn second_uncordon_note() -> String {
    "drain paused: the node was uncordoned a second time; cordon it to resume".to_owned()
}

fn progress(told: &EvictionProgress, node: &str, of_node: &NodeBlockers) -> DrainProgress {
    let of_the_node = |reason, message, since| Blocker {
        kind: "Node".to_owned(),
        namespace: String::new(),
        name: node.to_owned(),
        reason,
        message,
        since,
    };
    let away = told.away_since.map(|since| {
        let message = "drain paused: API server unreachable".to_owned();
        of_the_node(Reason::ApiServerUnreachable, message, since)
    });
    let lifted = of_node.lifted;
    let lifted =
        lifted.map(|since| of_the_node(Reason::NodeUncordoned, second_uncordon_note(), since));
    let unexplained = of_node.unexplained;
    let unexplained = unexplained
        .map(|since| of_the_node(Reason::ForceReasonMissing, missing_reason_note(), since));
    let blockers = away
        .into_iter()
        .chain(lifted)
        .chain(unexplained)
        .chain(told.waits.iter().map(blocker))
        .collect();
    DrainProgress {
        spent: told.spent,
        blockers,
    }
}

fn blocker(wait: &PodWait) -> Blocker {
    Blocker {
        kind: "Pod".to_owned(),
        namespace: wait.pod.namespace.clone(),
        name: wait.pod.name.clone(),
        reason: wait.what.reason(),
        message: wait.sentence(),
        since: wait.since,
    }
}
