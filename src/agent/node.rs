//! Our Node as the update loop's port needs it, whoever takes the pods away.

mod agent;
mod chosen;
mod controller;
mod telling;

use std::sync::Arc;

use tokio::sync::watch;

pub(super) use agent::ByAgent;
pub(super) use chosen::Chosen;
pub(super) use controller::ByController;

use crate::{
    cluster::{
        ClusterError, Why,
        events::{Events, Subject},
        node::OwnNode,
    },
    crd::{EventReason, NodeView},
    device::service::DevicesHandle,
    readiness::{Effect, Gate, GateName, Gates},
    reason::Reason,
    status::Status,
    update::node::{Lending, NodeError},
};

/// Why devices are withheld, as the kubelet and people see it.
const WITHHELD: &str = "an update of this node";

/// What a step is, in messages.
pub(super) fn drained(step: crate::update::node::Step) -> bool {
    use crate::update::node::Step;
    match step {
        Step::Stage { drained } | Step::Reboot { drained } => drained,
    }
}

/// Our Node and what stands on it, whoever takes its pods away.
#[derive(Clone, Debug)]
pub(super) struct Ours {
    /// Our Node.
    pub(super) node: OwnNode,
    /// None where devices are not this agent's job.
    pub(super) devices: Option<DevicesHandle>,
    /// What is ready, before pods may come back.
    pub(super) statuses: watch::Receiver<Arc<Status>>,
    /// Who tells the cluster what happens.
    pub(super) events: Events,
}

impl Ours {
    /// Tells of something that happened to the Node.
    pub(super) fn tell(&self, reason: EventReason, note: impl Into<String>) {
        self.events.tell(Subject::Node, reason, note);
    }

    pub(super) fn name(&self) -> &str {
        self.node.name()
    }

    pub(super) fn refused(&self, what: &str, error: ClusterError) -> NodeError {
        NodeError {
            what: format!("{what} {}", self.name()),
            node: self.name().to_owned(),
            reason: error.reason(),
            again: true,
            unanswered: matches!(error.why, Why::Unreachable(_) | Why::TimedOut(_)),
            source: Some(Box::new(error)),
        }
    }

    pub(super) fn other(&self, what: &str, reason: Reason, again: bool) -> NodeError {
        NodeError {
            what: format!("{what} {}", self.name()),
            node: self.name().to_owned(),
            reason,
            again,
            unanswered: false,
            source: None,
        }
    }

    async fn live(&self, what: &str) -> Result<Arc<NodeView>, NodeError> {
        let read = self.node.read().await.map_err(|e| self.refused(what, e))?;
        read.ok_or_else(|| self.other(what, Reason::NodeMissing, true))
    }

    /// Every gate that holds is open: the machine is fit for pods.
    pub(super) async fn fit(&self) {
        let mut statuses = self.statuses.clone();
        let fit = statuses
            .wait_for(|status| is_fit(&status.gates))
            .await
            .is_ok();
        if !fit {
            // Nobody tells any more: the agent ends.
            std::future::pending().await
        }
    }

    pub(super) async fn lend(&self, lending: Lending) -> Result<(), NodeError> {
        let Some(devices) = &self.devices else {
            return Ok(());
        };
        let asked = match lending {
            Lending::Open => devices.release().await,
            Lending::Withheld | Lending::Quiesced => devices.withhold(WITHHELD).await,
        };
        let what = match lending {
            Lending::Open => "lend again the devices of",
            Lending::Withheld | Lending::Quiesced => "withhold the devices of",
        };
        asked.map_err(|_| self.other(what, Reason::DevicesMissing, true))
    }

    /// Not known is taken for yes: too much care costs time alone.
    pub(super) fn is_control_plane(&self) -> bool {
        let sight = self.node.sights().borrow().node.clone();
        sight.is_none_or(|node| node.is_control_plane())
    }

    /// The Node as it is now, with the config still desired that the step is towards.
    pub(super) async fn still_wanted(
        &self,
        to: Option<String>,
    ) -> Result<Arc<NodeView>, NodeError> {
        let what = "take the next step of the update on node";
        let view = self.live(what).await?;
        match to.is_some() && view.desired_config() != to.as_deref() {
            true => Err(self.other(what, Reason::DesiredConfigChanged, true)),
            false => Ok(view),
        }
    }
}

/// Whether pods may come: every gate that holds is open, and the kubelet's is because the kubelet has said
/// so, not because nobody could tell.
pub(super) fn is_fit(gates: &Gates) -> bool {
    let kubelet = gates.get(GateName::Kubelet);
    let told = |gate: &Gate| gate.effect != Effect::Hold || gate.reason == Reason::Ok;
    gates.ready() && kubelet.is_some_and(told)
}
