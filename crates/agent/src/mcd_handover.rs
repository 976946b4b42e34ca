//! Takes a machine over from machine-config-daemon and hands it back: the operations on the root,
//! the service manager and the cluster that the command line needs.

use super::{one_shot, settings_mapping};
use machinist_cluster::{
    Cluster, ClusterAccess, ClusterError, handover_annotations, machine_config_source,
    node::{OwnNode, Uncordon},
    update_cancel::{UpdateAnnotations, read_annotations},
};
use machinist_plan::{Capabilities, Policies};
use machinist_rootfs::Root;
use machinist_status::settings::Settings;
use machinist_systemd::Systemd;
use machinist_update::{
    cache::ObservationCache,
    handover::{self, Adoption, HandoverError, MachineConfigText, McdConfigState},
    journal::Journal,
    observe_and_plan, store,
};

/// Computes what taking over would change; the machine is only read.
pub async fn adoption(
    root: &Root,
    found: McdConfigState,
    capabilities: Capabilities,
    policies: &Policies,
) -> Result<Adoption, HandoverError> {
    let journal = store::peek(root)?;
    let remembered = ObservationCache::default();
    let config = &found.config;
    let units =
        one_shot::units(root, &journal, config, capabilities, policies, &remembered).await?;
    let how = observe_and_plan::PlanOptions {
        policies,
        capabilities,
        units: units.as_ref(),
        only: None,
        remembered: &remembered,
    };
    handover::check_adoption(root, &journal, found, how)
}

/// Units that have already failed, so that they are not attributed to the next update; empty if the
/// state is unknown.
pub async fn failed_units(root: &Root) -> Vec<String> {
    if !root.is_live() {
        return Vec::new();
    }
    let failed = Systemd::of(root).failed_units().await;
    failed.unwrap_or_else(|error| {
        tracing::warn!("{}", machinist_base::error_chain::chain(&error));
        Vec::new()
    })
}

/// Computes what handing back would change.
pub fn release_plan(
    root: &Root,
    journal: &Journal,
    capabilities: Capabilities,
) -> Result<handover::ReleasePlan, HandoverError> {
    handover::check_release(root, journal, capabilities)
}

/// The users and groups that configs may manage on this machine.
pub fn rules(settings: &Settings) -> machinist_ignition::ConfigRules {
    settings_mapping::rules(settings)
}

/// This machine's Node during a hand-over.
#[derive(Debug)]
pub struct HandoverNode {
    cluster: Cluster,
    name: String,
}

impl HandoverNode {
    /// Loads credentials; no request is sent.
    pub async fn of(access: ClusterAccess, settings: &Settings) -> Result<Self, super::AgentError> {
        Ok(Self {
            cluster: Cluster::connect(access).await?,
            name: super::cluster::node_name(settings)?,
        })
    }

    /// The Node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The update state from the Node's annotations.
    pub async fn update_annotations(&self) -> Result<UpdateAnnotations, ClusterError> {
        read_annotations(&self.cluster, &self.name).await
    }

    /// The pod of machine-config-daemon on the Node, if any.
    pub async fn other_daemon(&self) -> Result<Option<String>, ClusterError> {
        self.cluster.machine_config_daemon_on(&self.name).await
    }

    /// A MachineConfig as the API server returns it; none if it does not exist.
    pub async fn machine_config(
        &self,
        name: &str,
    ) -> Result<Option<MachineConfigText>, ClusterError> {
        match machine_config_source::fetch_config_text(&self.cluster, name).await {
            Ok(text) => Ok(Some(text.into_bytes())),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes machinist's cordon, and marks the machine as done on `config`.
    pub async fn return_node(&self, config: &str) -> Result<Uncordon, ClusterError> {
        let node = OwnNode::new(self.cluster.clone(), &self.name);
        let lifted = node.uncordon().await?;
        handover_annotations(&self.cluster, &self.name, config).await?;
        Ok(lifted)
    }
}
