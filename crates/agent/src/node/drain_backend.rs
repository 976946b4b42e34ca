//! Chooses which component drains the node (`drain.by`), once, when it is first needed.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tokio::sync::OnceCell;

use super::{AgentDrain, ControllerDrain, NodeContext};
use machinist_cluster::Cluster;
use machinist_drain::eviction::PodApi;
use machinist_status::settings::DrainBy;
use machinist_update::node_port::{
    Blocker, DeviceHolderCounts, DeviceUsers, DrainOrder, DrainResult, IrreversibleStep, NodeError,
    NodeFuture, NodePort, StepDecision,
};

/// This machine as a node, with the chosen drain implementation.
#[derive(Debug)]
pub(crate) struct DrainBackend<P> {
    by: DrainBy,
    cluster: Cluster,
    agent: AgentDrain<P>,
    controller: ControllerDrain,
    /// Whether OpenShift's controllers run in this cluster.
    controllers: OnceCell<bool>,
}

impl<P: PodApi> DrainBackend<P> {
    pub(crate) fn new(
        by: DrainBy,
        cluster: Cluster,
        agent: AgentDrain<P>,
        controller: ControllerDrain,
    ) -> Self {
        Self {
            by,
            cluster,
            agent,
            controller,
            controllers: OnceCell::new(),
        }
    }

    async fn node(&self) -> Result<&dyn NodePort, NodeError> {
        let by_controller = match self.by {
            DrainBy::Agent => false,
            DrainBy::Controller => true,
            DrainBy::Auto => {
                *self
                    .controllers
                    .get_or_try_init(|| self.detect_controllers())
                    .await?
            }
        };
        Ok(match by_controller {
            true => &self.controller,
            false => &self.agent,
        })
    }

    async fn detect_controllers(&self) -> Result<bool, NodeError> {
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

    fn ours(&self) -> &NodeContext {
        self.controller.context()
    }
}

impl<P: PodApi> NodePort for DrainBackend<P> {
    fn cordon(&self, to: String) -> NodeFuture<'_, ()> {
        Box::pin(async move { self.node().await?.cordon(to).await })
    }

    fn set_device_users(&self, users: DeviceUsers) -> NodeFuture<'_, ()> {
        Box::pin(self.ours().set_device_users(users))
    }

    fn holders(&self) -> NodeFuture<'_, Option<DeviceHolderCounts>> {
        Box::pin(async { Ok(self.ours().holders().await) })
    }

    fn evicted_holders(&self) -> NodeFuture<'_, Vec<Blocker>> {
        Box::pin(self.agent.evicted_holders())
    }

    fn stop_units(&self) -> BTreeSet<String> {
        self.ours().stop_units()
    }

    fn drain(&self, order: DrainOrder) -> NodeFuture<'_, DrainResult> {
        Box::pin(async move { self.node().await?.drain(order).await })
    }

    fn check_step(
        &self,
        step: IrreversibleStep,
        to: Option<String>,
    ) -> NodeFuture<'_, StepDecision> {
        Box::pin(async move { self.node().await?.check_step(step, to).await })
    }

    fn cancel_drain(&self, on: String) -> NodeFuture<'_, ()> {
        Box::pin(async move { self.node().await?.cancel_drain(on).await })
    }

    fn uncordon(&self, on: String) -> NodeFuture<'_, ()> {
        Box::pin(async move { self.node().await?.uncordon(on).await })
    }

    fn earliest_start(&self) -> NodeFuture<'_, Option<Timestamp>> {
        Box::pin(self.ours().earliest())
    }

    fn cordon_delay(&self) -> Option<Blocker> {
        self.ours().images.blocker()
    }

    fn wait_before_cordon(&self) -> NodeFuture<'_, ()> {
        Box::pin(async {
            self.ours().images.ended().await;
            Ok(())
        })
    }

    fn is_control_plane(&self) -> bool {
        self.ours().is_control_plane()
    }
}
