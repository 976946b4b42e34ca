//! Chooses which component drains the node (`drain.by`), once, when it is first needed.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tokio::sync::OnceCell;

use super::{ByAgent, ByController, Ours};
use crate::{
    cluster::Cluster,
    config::DrainBy,
    drain::evict::Pods,
    update::node::{
        Asked, Blocker, DrainOrder, Emptied, Holders, Lending, Node, NodeError, Permit, Step,
    },
};

/// This machine as a node, with the chosen drain implementation.
#[derive(Debug)]
pub(in crate::agent) struct Chosen<P> {
    by: DrainBy,
    cluster: Cluster,
    agent: ByAgent<P>,
    controller: ByController,
    /// Whether OpenShift's controllers run in this cluster.
    controllers: OnceCell<bool>,
}

impl<P: Pods> Chosen<P> {
    pub(in crate::agent) fn new(
        by: DrainBy,
        cluster: Cluster,
        agent: ByAgent<P>,
        controller: ByController,
    ) -> Self {
        Self {
            by,
            cluster,
            agent,
            controller,
            controllers: OnceCell::new(),
        }
    }

    async fn node(&self) -> Result<&dyn Node, NodeError> {
        let by_controller = match self.by {
            DrainBy::Agent => false,
            DrainBy::Controller => true,
            DrainBy::Auto => *self.controllers.get_or_try_init(|| self.look()).await?,
        };
        Ok(match by_controller {
            true => &self.controller,
            false => &self.agent,
        })
    }

    async fn look(&self) -> Result<bool, NodeError> {
        let found = self.cluster.has_openshift_controllers().await;
        let found = found.map_err(|error| {
            self.ours()
                .refused("choose the drain implementation for", error)
        })?;
        let by = if found {
            "machine-config-controller"
        } else {
            "the agent"
        };
        tracing::info!("this node is drained by {by} (drain.by: auto)");
        Ok(found)
    }

    fn ours(&self) -> &Ours {
        self.controller.ours()
    }
}

impl<P: Pods> Node for Chosen<P> {
    fn cordon(&self, to: String) -> Asked<'_, ()> {
        Box::pin(async move { self.node().await?.cordon(to).await })
    }

    fn lend(&self, lending: Lending) -> Asked<'_, ()> {
        Box::pin(self.ours().lend(lending))
    }

    fn holders(&self) -> Asked<'_, Option<Holders>> {
        Box::pin(async { Ok(self.ours().holders().await) })
    }

    fn held(&self) -> Asked<'_, Vec<Blocker>> {
        Box::pin(self.agent.held_now())
    }

    fn stop_units(&self) -> BTreeSet<String> {
        self.ours().stop_units()
    }

    fn drain(&self, order: DrainOrder) -> Asked<'_, Emptied> {
        Box::pin(async move { self.node().await?.drain(order).await })
    }

    fn permit(&self, step: Step, to: Option<String>) -> Asked<'_, Permit> {
        Box::pin(async move { self.node().await?.permit(step, to).await })
    }

    fn take_back(&self, on: String) -> Asked<'_, ()> {
        Box::pin(async move { self.node().await?.take_back(on).await })
    }

    fn uncordon(&self, on: String) -> Asked<'_, ()> {
        Box::pin(async move { self.node().await?.uncordon(on).await })
    }

    fn earliest(&self) -> Asked<'_, Option<Timestamp>> {
        Box::pin(self.ours().earliest())
    }

    fn is_control_plane(&self) -> bool {
        self.ours().is_control_plane()
    }
}
