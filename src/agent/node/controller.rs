//! OpenShift's machine-config-controller takes the pods away: it is asked by one annotation of the Node
//! and answers by another (reference: `desiredDrain`, `lastAppliedDrain`).
//!
//! It cordons, evicts and uncordons; we never do. It asks budgets for ever and forces nothing, so
//! `drain.forceAfter` means nothing here.

use std::time::Duration;

use tokio::{sync::watch, time::Instant};

use super::Ours;
use crate::{
    clock::Clock,
    crd::DrainRequest,
    reason::Reason,
    update::node::{
        Asked, Blocker, DrainOrder, DrainProgress, Emptied, Lending, Node, NodeError, Permit, Step,
    },
};

/// This machine as a node whose pods the controller evicts.
#[derive(Debug)]
pub(in crate::agent) struct ByController {
    ours: Ours,
    /// What the Node is to ask for; written by whoever keeps its annotations.
    asks: watch::Sender<Option<DrainRequest>>,
}

impl ByController {
    pub(in crate::agent) fn new(ours: Ours, asks: watch::Sender<Option<DrainRequest>>) -> Self {
        Self { ours, asks }
    }

    pub(super) fn ours(&self) -> &Ours {
        &self.ours
    }

    /// Asks, and waits until that is what the controller did last.
    async fn fulfilled(&self, request: DrainRequest) {
        let mut sights = self.ours.node.sights();
        self.asks.send_if_modified(|asks| {
            let news = asks.as_ref() != Some(&request);
            *asks = Some(request.clone());
            news
        });
        let done = sights.wait_for(|sight| {
            let node = sight.node.as_ref();
            node.is_some_and(|node| node.last_applied_drain().as_ref() == Some(&request))
        });
        if done.await.is_err() {
            // Nobody looks any more: the agent ends.
            std::future::pending().await
        }
    }

    async fn drained(&self, order: DrainOrder) -> Emptied {
        let (begun, since) = (Instant::now(), Clock::system().now());
        let told = || DrainProgress {
            spent: order.spent + begun.elapsed(),
            blockers: vec![Blocker {
                kind: "Node".to_owned(),
                namespace: String::new(),
                name: self.ours.name().to_owned(),
                reason: Reason::DrainByController,
                message: format!(
                    "machine-config-controller is asked to drain for {}; its log and events say what it waits for",
                    order.to
                ),
                since,
            }],
        };
        let mut fulfilled = std::pin::pin!(self.fulfilled(DrainRequest::Drain(order.to.clone())));
        loop {
            order.progress.send_replace(told());
            tokio::select! {
                () = &mut fulfilled => return Emptied::Wholly,
                () = order.stop.cancelled() => return Emptied::Stopped,
                // Safe to drop: only time passes.
                () = tokio::time::sleep(TOLD) => {}
            }
        }
    }

    /// The controller cordons anew by itself when somebody lifted its cordon.
    async fn look_afresh(&self, step: Step, to: Option<String>) -> Result<Permit, NodeError> {
        let view = self.ours.still_wanted(to).await?;
        self.ours.may_go_on(step, &view).await?;
        let held = matches!(view.last_applied_drain(), Some(DrainRequest::Drain(_)));
        let away = view.is_cordoned() && held;
        Ok(match away || !super::drained(step) {
            true => Permit::Go,
            false => Permit::Refilled,
        })
    }
}

/// How often the time that passes is told.
const TOLD: Duration = Duration::from_secs(60);

impl Node for ByController {
    fn cordon(&self, _: String) -> Asked<'_, ()> {
        // The controller does, when it is asked to drain.
        Box::pin(async { Ok(()) })
    }

    fn lend(&self, lending: Lending) -> Asked<'_, ()> {
        Box::pin(self.ours.lend(lending))
    }

    fn drain(&self, order: DrainOrder) -> Asked<'_, Emptied> {
        Box::pin(async move { Ok(self.drained(order).await) })
    }

    fn permit(&self, step: Step, to: Option<String>) -> Asked<'_, Permit> {
        Box::pin(self.look_afresh(step, to))
    }

    fn uncordon(&self, on: String) -> Asked<'_, ()> {
        Box::pin(async move {
            self.ours.fit().await;
            // Whatever it does not count in time is in the log.
            let _ = self.ours.counted_by_the_node().await;
            self.fulfilled(DrainRequest::Uncordon(on)).await;
            Ok(())
        })
    }

    fn is_control_plane(&self) -> bool {
        self.ours.is_control_plane()
    }
}
