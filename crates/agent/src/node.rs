//! Implements the reconciler's Node interface, independent of which component drains.

mod agent_drain;
mod allocatable_wait;
mod controller_drain;
mod device_holders;
mod drain_backend;
mod drain_events;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

pub(super) use agent_drain::AgentDrain;
pub(super) use controller_drain::ControllerDrain;
pub(super) use drain_backend::DrainBackend;

use super::{
    grant_gate::GrantGate,
    mcd_detect::{McdDetector, McdStatus},
    pinned_images::UpdateWait,
};
use machinist_base::{
    backoff::{Backoff, jitter},
    error_chain::chain,
    reason::Reason,
};
use machinist_cluster::{
    ClusterError, ClusterErrorKind,
    events::{EventSubject, Events},
    node::OwnNode,
};
use machinist_device_plugins::device_service::DevicesHandle;
use machinist_kube_api::{EventReason, NodeView};
use machinist_status::{
    PinStatus, Status,
    readiness::{Gate, GateEffect, GateName, Gates},
    settings,
};
use machinist_update::node_port::{DeviceUsers, IrreversibleStep, NodeError};

/// The reason for disabled devices, as shown to the kubelet and users.
pub(super) const UPDATE_DISABLE_REASON: &str = "an update of this node";

/// Backoff between reads of the UpgradeConfig.
const UPGRADE_CONFIG_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(10));

/// After this many error responses (outages do not count) the UpgradeConfig counts as unreadable.
const UPGRADE_CONFIG_MAX_ERRORS: u32 = 3;

fn is_outage(error: &ClusterError) -> bool {
    matches!(
        error.why,
        ClusterErrorKind::Unreachable(_) | ClusterErrorKind::TimedOut(_)
    )
}

/// Whether the step runs on a drained node.
pub(super) fn drained(step: IrreversibleStep) -> bool {
    match step {
        IrreversibleStep::Stage { drained } | IrreversibleStep::Reboot { drained } => drained,
    }
}

/// The state shared by all implementations of the Node interface.
#[derive(Clone, Debug)]
pub(super) struct NodeContext {
    /// Our Node.
    pub(super) node: OwnNode,
    /// None if devices are not managed by this agent.
    pub(super) devices: Option<DevicesHandle>,
    /// Statuses, whose gates must be open before the node is uncordoned.
    pub(super) statuses: watch::Receiver<Arc<Status>>,
    /// Emits events.
    pub(super) events: Events,
    /// Checks for another daemon before the first change.
    pub(super) lookout: McdDetector,
    /// Notified when such a daemon was found.
    pub(super) suspect: Arc<Notify>,
    /// Settings, for the timeout of returning devices.
    pub(super) settings: watch::Receiver<Arc<settings::Settings>>,
    /// The config of an operator override, which the Node does not name as desired.
    pub(super) held: watch::Receiver<Option<PinStatus>>,
    /// Whether a controller has to grant updates.
    pub(super) grants: GrantGate,
    /// Images for which an update waits.
    pub(super) images: UpdateWait,
}

impl NodeContext {
    /// Emits an event about the Node.
    pub(super) fn emit_node_event(&self, reason: EventReason, note: impl Into<String>) {
        self.events.emit(EventSubject::Node, reason, note);
    }

    pub(super) fn name(&self) -> &str {
        self.node.name()
    }

    pub(super) fn refused(&self, what: &str, error: ClusterError) -> NodeError {
        NodeError {
            what: format!("{what} {}", self.name()),
            node: self.name().to_owned(),
            reason: error.reason(),
            retryable: true,
            unanswered: is_outage(&error),
            source: Some(Box::new(error)),
        }
    }

    pub(super) fn other(&self, what: &str, reason: Reason, retryable: bool) -> NodeError {
        NodeError {
            what: format!("{what} {}", self.name()),
            node: self.name().to_owned(),
            reason,
            retryable,
            unanswered: false,
            source: None,
        }
    }

    async fn live(&self, what: &str) -> Result<Arc<NodeView>, NodeError> {
        let read = self.node.read().await.map_err(|e| self.refused(what, e))?;
        read.ok_or_else(|| self.other(what, Reason::NodeMissing, true))
    }

    /// Waits until every blocking gate is open, so that the node is fit for pods.
    pub(super) async fn wait_until_fit(&self) {
        let mut statuses = self.statuses.clone();
        let fit = statuses
            .wait_for(|status| is_fit(&status.gates))
            .await
            .is_ok();
        if !fit {
            // The sender is dropped when the agent ends.
            std::future::pending().await
        }
    }

    pub(super) async fn set_device_users(&self, users: DeviceUsers) -> Result<(), NodeError> {
        let Some(devices) = &self.devices else {
            return Ok(());
        };
        let asked = match users {
            DeviceUsers::Open => devices.enable_allocation().await,
            DeviceUsers::Disabled => devices.disable_allocation(UPDATE_DISABLE_REASON).await,
            DeviceUsers::Quiesced => devices.quiesce(UPDATE_DISABLE_REASON).await,
        };
        let what = match users {
            DeviceUsers::Open => "enable the devices of",
            DeviceUsers::Disabled | DeviceUsers::Quiesced => "disable the devices of",
        };
        asked.map_err(|error| NodeError {
            source: Some(Box::new(error)),
            ..self.other(what, Reason::DevicesMissing, true)
        })?;
        if users == DeviceUsers::Open {
            device_holders::wait_for_allocatable(devices).await;
        }
        Ok(())
    }

    /// Units that device declarations want stopped.
    pub(super) fn stop_units(&self) -> BTreeSet<String> {
        let devices = self.devices.as_ref();
        let inventory = devices.map(|devices| devices.inventory().borrow().clone());
        inventory
            .map(|all| all.stop_units.clone())
            .unwrap_or_default()
    }

    /// The earliest start of an update, from the cluster's UpgradeConfig.
    pub(super) async fn earliest(&self) -> Result<Option<Timestamp>, NodeError> {
        let read = self.node.cluster().upgrade_config().await;
        let read = read.map_err(|e| self.refused("check whether updates may start on node", e))?;
        Ok(read.and_then(|config| config.not_before))
    }

    /// `drain.forceAfter`; if unset, the value of the cluster's UpgradeConfig. While the API server
    /// is unreachable it retries, as the drain itself would; if the server returns errors, no pod
    /// is forced out.
    pub(super) async fn force_after(&self, drain: &settings::DrainSettings) -> Option<Duration> {
        if drain.force_chosen {
            return drain.force_after;
        }
        let (mut failures, mut answers) = (0, 0);
        loop {
            let error = match self.node.cluster().upgrade_config().await {
                Ok(found) => return found.and_then(|config| config.force_after),
                Err(error) => error,
            };
            tracing::warn!(reason = %error.reason(), "{}", chain(&error));
            answers += u32::from(!is_outage(&error));
            if answers == UPGRADE_CONFIG_MAX_ERRORS {
                return None;
            }
            sleep(UPGRADE_CONFIG_BACKOFF.wait(failures, jitter())).await;
            failures += 1;
        }
    }

    /// True if unknown, since the extra caution only costs time.
    pub(super) fn is_control_plane(&self) -> bool {
        let snapshot = self.node.snapshots().borrow().node.clone();
        snapshot.is_none_or(|node| node.is_control_plane())
    }

    /// Whether an update needs a grant now. One to a config that an operator of this machine wants needs none.
    pub(super) async fn needs_grant(&self, what: &str) -> Result<bool, NodeError> {
        if self.held.borrow().is_some() {
            return Ok(false);
        }
        self.grants
            .refresh()
            .await
            .map_err(|e| self.refused(what, e))
    }

    /// Acknowledges the grant of an update that disturbs no pod, before its first change.
    async fn acknowledge_grant(&self, what: &str, to: &str) -> Result<(), NodeError> {
        let needs_grant = self.needs_grant(what).await?;
        let granted = self.node.acknowledge_grant(to).await;
        match granted.map_err(|e| self.refused(what, e))? {
            Some(false) if needs_grant => Err(self.other(what, Reason::AwaitingGrant, true)),
            Some(_) => Ok(()),
            None => Err(self.other(what, Reason::NodeMissing, true)),
        }
    }

    /// Final check before the first change of an update to `to`: it was not cancelled, no other daemon has
    /// started, and the grant is acknowledged. The reconciler is notified of the first two, and ends the update.
    pub(super) async fn final_check(
        &self,
        step: IrreversibleStep,
        view: &NodeView,
        to: Option<&str>,
    ) -> Result<(), NodeError> {
        let IrreversibleStep::Stage { drained } = step else {
            return Ok(());
        };
        let what = "apply changes on node";
        let cancelled = view.cancel().is_some() && view.cancel() == view.desired_config();
        if cancelled && self.held.borrow().is_none() {
            return Err(self.other(what, Reason::Cancelled, true));
        }
        match self.lookout.detect().await {
            McdStatus::Seen(_) => {
                self.suspect.notify_one();
                Err(self.other(what, Reason::OtherDaemon, true))
            }
            // The cordon has acknowledged it already.
            McdStatus::Absent if drained => Ok(()),
            McdStatus::Absent => match to {
                Some(to) => self.acknowledge_grant(what, to).await,
                None => Ok(()),
            },
            McdStatus::Unknown(error) => Err(self.refused(what, error)),
        }
    }

    /// Reads the Node, and checks that the step's config is still desired, by the Node or by the
    /// operator override.
    pub(super) async fn check_still_desired(
        &self,
        to: Option<String>,
    ) -> Result<Arc<NodeView>, NodeError> {
        let what = "continue the update on node";
        let view = self.live(what).await?;
        let held = self.held.borrow().as_ref().map(|held| held.config.clone());
        let wanted = to.is_none() || to == held || view.desired_config() == to.as_deref();
        match wanted {
            true => Ok(view),
            false => Err(self.other(what, Reason::DesiredConfigChanged, true)),
        }
    }
}

/// Whether the node is fit for pods: every blocking gate is open, and the kubelet's gate is open
/// because the kubelet reported ready, not because its state is unknown.
pub(super) fn is_fit(gates: &Gates) -> bool {
    let kubelet = gates.get(GateName::Kubelet);
    let passes = |gate: &Gate| gate.effect != GateEffect::Hold || gate.reason == Reason::Ok;
    gates.ready() && kubelet.is_some_and(passes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinist_status::readiness::GateId;

    fn gate(name: GateId, open: bool, effect: GateEffect, reason: Reason) -> Gate {
        Gate {
            name,
            open,
            effect,
            since: Timestamp::UNIX_EPOCH,
            reason,
            message: String::new(),
        }
    }

    #[test]
    fn node_is_fit_only_without_a_closed_hold_gate_and_with_a_known_kubelet() {
        let kubelet = |reason| gate(GateName::Kubelet.into(), true, GateEffect::Hold, reason);
        let fit = |gates: Vec<Gate>| is_fit(&gates.into_iter().collect());
        assert!(fit(vec![kubelet(Reason::Ok)]));
        // The kubelet's state is unknown.
        assert!(!fit(vec![kubelet(Reason::SignalMissing)]));
        assert!(!fit(Vec::new()));
        for (name, reason) in [
            (GateName::Devices.into(), Reason::DevicesMissing),
            (
                GateId::Custom("Storage".to_owned()),
                Reason::CustomGateClosed,
            ),
        ] {
            let other = |effect| gate(GateId::clone(&name), false, effect, reason);
            assert!(!fit(vec![kubelet(Reason::Ok), other(GateEffect::Hold)]));
            assert!(fit(vec![kubelet(Reason::Ok), other(GateEffect::Warn)]));
        }
    }
}
