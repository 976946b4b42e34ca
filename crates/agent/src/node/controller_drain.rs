//! Node implementation that delegates draining to OpenShift's machine-config-controller. One
//! annotation of the Node makes a request (`desiredDrain`) and another confirms it
//! (`lastAppliedDrain`; both are described in the reference). The controller acts when the two
//! differ, and reads only the part of a request before the first `-`.
//!
//! The controller cordons, evicts and uncordons; machinist does not. It respects disruption budgets
//! without a time limit and never forces, so `drain.forceAfter` has no effect here.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::NodeContext;
use machinist_base::{clock::Clock, reason::Reason};
use machinist_kube_api::{DrainRequest, NodeView};
use machinist_update::node_port::{
    Blocker, DeviceUsers, DrainOrder, DrainProgress, DrainResult, IrreversibleStep, NodeError,
    NodeFuture, NodePort, StepDecision,
};

/// This machine as a node whose pods the controller evicts.
#[derive(Debug)]
pub(crate) struct ControllerDrain {
    ours: NodeContext,
    /// The drain request to publish; the task that maintains the annotations writes it.
    asks: watch::Sender<Option<DrainRequest>>,
    /// The node was cordoned before the drain: that cordon belongs to an operator.
    cordoned_before: AtomicBool,
}

impl ControllerDrain {
    pub(crate) fn new(ours: NodeContext, asks: watch::Sender<Option<DrainRequest>>) -> Self {
        Self {
            ours,
            asks,
            cordoned_before: AtomicBool::new(false),
        }
    }

    pub(super) fn context(&self) -> &NodeContext {
        &self.ours
    }

    /// Publishes a request, and waits until the controller confirms it.
    async fn fulfilled(&self, request: DrainRequest) {
        let mut snapshots = self.ours.node.snapshots();
        self.ask(request.clone());
        let done = snapshots.wait_for(|snapshot| {
            let Some(node) = &snapshot.node else {
                return false;
            };
            // After an uncordon, a later cordon is not the one that existed before the drain.
            self.cordoned_before.fetch_and(node.is_cordoned(), Relaxed);
            node.last_applied_drain().as_ref() == Some(&request)
        });
        if done.await.is_err() {
            // The sender is dropped when the agent ends.
            std::future::pending().await
        }
    }

    fn ask(&self, request: DrainRequest) {
        self.asks.send_if_modified(|asks| {
            let news = asks.as_ref() != Some(&request);
            *asks = Some(request);
            news
        });
    }

    /// The current request, of this process or of the previous one.
    fn asked(&self, view: &NodeView) -> Option<DrainRequest> {
        self.asks.borrow().clone().or_else(|| view.desired_drain())
    }

    /// The drain request. If the controller's last request has the same name and the node is
    /// schedulable again, a different name is used, because the controller ignores a request that
    /// it has fulfilled.
    fn drain_request(&self, to: &str) -> DrainRequest {
        let plain = DrainRequest::Drain(to.to_owned());
        let Some(view) = self.seen() else {
            return plain;
        };
        let last = view.last_applied_drain();
        match self.asked(&view) {
            Some(asked) if asked.is_again(&plain) && last.as_ref() != Some(&asked) => asked,
            _ if last.as_ref() == Some(&plain) && !view.is_cordoned() => plain.with_retry_name(),
            _ => plain,
        }
    }

    /// The uncordon request. After a drain that was rolled back, the controller's last request may
    /// have this very name; then a different one is used. To keep an operator's cordon, the last
    /// fulfilled request is repeated, which the controller ignores.
    fn uncordon_request(&self, on: &str) -> DrainRequest {
        let plain = DrainRequest::Uncordon(on.to_owned());
        let Some(view) = self.seen() else {
            return plain;
        };
        let (asked, last) = (self.asked(&view), view.last_applied_drain());
        match asked {
            Some(asked) if asked.is_again(&plain) => asked,
            _ if self.keeps_cordon(&view) => last.unwrap_or(plain),
            asked if last.as_ref() == Some(&plain) && asked != last => plain.with_retry_name(),
            _ => plain,
        }
    }

    fn seen(&self) -> Option<Arc<NodeView>> {
        self.ours.node.snapshots().borrow().node.clone()
    }

    /// Whether removal of the cordon was already requested.
    fn is_uncordon_requested(&self, on: &str) -> bool {
        let plain = DrainRequest::Uncordon(on.to_owned());
        let Some(view) = self.seen() else {
            return false;
        };
        self.asked(&view).is_some_and(|asked| {
            let other = matches!(asked, DrainRequest::Uncordon(_)) && self.keeps_cordon(&view);
            other || asked.is_again(&plain)
        })
    }

    /// Whether the node stays cordoned after this update, because an operator cordoned it.
    fn keeps_cordon(&self, view: &NodeView) -> bool {
        self.cordoned_before.load(Relaxed) || view.keeps_cordon()
    }

    fn note_cordon_before(&self) {
        if let Some(view) = self.seen() {
            let drains = matches!(self.asked(&view), Some(DrainRequest::Drain(_)));
            let cordoned = view.is_cordoned();
            if !drains || !cordoned {
                self.cordoned_before.store(cordoned, Relaxed);
            }
        }
    }

    async fn drained(&self, order: DrainOrder) -> DrainResult {
        let (begun, since) = (Instant::now(), Clock::system().now());
        let progress = || DrainProgress {
            spent: order.spent + begun.elapsed(),
            blockers: vec![Blocker {
                kind: "Node".to_owned(),
                namespace: String::new(),
                name: self.ours.name().to_owned(),
                reason: Reason::DrainByController,
                message: format!(
                    "waiting for machine-config-controller to drain the node for {}; see its log and events",
                    order.to
                ),
                since,
            }],
        };
        self.note_cordon_before();
        let mut fulfilled = std::pin::pin!(self.fulfilled(self.drain_request(&order.to)));
        loop {
            order.progress.send_replace(progress());
            tokio::select! {
                () = &mut fulfilled => return DrainResult::Complete,
                () = order.stop.cancelled() => return DrainResult::Stopped,
                // Cancel-safe: it only waits.
                () = tokio::time::sleep(WAIT_REPORT_INTERVAL) => {}
            }
        }
    }

    /// Checks the state before a step. If another client uncordons the node, the controller cordons
    /// it again by itself.
    async fn recheck_preconditions(
        &self,
        step: IrreversibleStep,
        to: Option<String>,
    ) -> Result<StepDecision, NodeError> {
        let view = self.ours.check_still_desired(to.clone()).await?;
        self.ours.final_check(step, &view, to.as_deref()).await?;
        let held = matches!(view.last_applied_drain(), Some(DrainRequest::Drain(_)));
        let away = view.is_cordoned() && held;
        Ok(match away || !super::drained(step) {
            true => StepDecision::Proceed,
            false => StepDecision::DrainAgain,
        })
    }
}

/// Interval at which the waiting time is reported.
const WAIT_REPORT_INTERVAL: Duration = Duration::from_secs(60);

impl NodePort for ControllerDrain {
    fn cordon(&self, _: String) -> NodeFuture<'_, ()> {
        // The controller cordons when a drain is requested.
        Box::pin(async { Ok(()) })
    }

    fn set_device_users(&self, users: DeviceUsers) -> NodeFuture<'_, ()> {
        Box::pin(self.ours.set_device_users(users))
    }

    fn drain(&self, order: DrainOrder) -> NodeFuture<'_, DrainResult> {
        Box::pin(async move { Ok(self.drained(order).await) })
    }

    fn check_step(
        &self,
        step: IrreversibleStep,
        to: Option<String>,
    ) -> NodeFuture<'_, StepDecision> {
        Box::pin(self.recheck_preconditions(step, to))
    }

    fn cancel_drain(&self, on: String) -> NodeFuture<'_, ()> {
        Box::pin(async move {
            let asked = self.seen().and_then(|view| self.asked(&view));
            if let Some(DrainRequest::Drain(_)) = asked {
                self.ask(self.uncordon_request(&on));
            }
            Ok(())
        })
    }

    fn uncordon(&self, on: String) -> NodeFuture<'_, ()> {
        Box::pin(async move {
            if !self.is_uncordon_requested(&on) {
                self.ours.wait_until_fit().await;
                // Devices that the Node does not count in time are logged.
                let _ = self.ours.wait_for_node_allocatable().await;
            }
            self.fulfilled(self.uncordon_request(&on)).await;
            Ok(())
        })
    }

    fn is_control_plane(&self) -> bool {
        self.ours.is_control_plane()
    }
}

#[cfg(test)]
mod tests;
