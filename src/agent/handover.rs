//! Taking a machine over from machine-config-daemon and giving it back: what the command line asks of the
//! root, the service manager and the cluster.

use super::{once, setup};
use crate::{
    cluster::{
        Access, Cluster, ClusterError,
        cancel::{Standing, standing},
        configs, handed_over,
        node::{OwnNode, Uncordon},
    },
    config::Settings,
    plan::{Capabilities, Policies},
    root::Root,
    systemd::Systemd,
    update::{
        handover::{self, Adoption, Found, HandoverError, MachineConfigText},
        journal::Journal,
        look,
        remembered::Remembered,
        store,
    },
};

/// What taking over would mean; the machine is looked at and not changed.
pub async fn adoption(
    root: &Root,
    found: Found,
    capabilities: Capabilities,
    policies: &Policies,
) -> Result<Adoption, HandoverError> {
    let journal = store::peek(root)?;
    let remembered = Remembered::default();
    let config = &found.config;
    let units = once::units(root, &journal, config, capabilities, policies, &remembered).await?;
    let how = look::How {
        policies,
        capabilities,
        units: units.as_ref(),
        only: None,
        remembered: &remembered,
    };
    handover::look_before_adoption(root, &journal, found, how)
}

/// Units that have failed by now, so that nobody blames the next update for them; none where nobody can
/// tell.
pub async fn failed_units(root: &Root) -> Vec<String> {
    if !root.is_live() {
        return Vec::new();
    }
    let failed = Systemd::of(root).failed_units().await;
    failed.unwrap_or_else(|error| {
        tracing::warn!("{}", crate::telemetry::chain(&error));
        Vec::new()
    })
}

/// What giving back would mean.
pub fn giving(
    root: &Root,
    journal: &Journal,
    capabilities: Capabilities,
) -> Result<handover::Giving, HandoverError> {
    handover::look_before_release(root, journal, capabilities)
}

/// The users and groups that configs may manage here.
pub fn rules(settings: &Settings) -> crate::machine_config::Rules {
    setup::rules(settings)
}

/// This machine's Node, for a hand-over.
#[derive(Debug)]
pub struct HandedNode {
    cluster: Cluster,
    name: String,
}

impl HandedNode {
    /// Nothing is asked yet.
    pub async fn of(access: Access, settings: &Settings) -> Result<Self, super::AgentError> {
        Ok(Self {
            cluster: Cluster::connect(access).await?,
            name: super::cluster::node_name(settings)?,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it says of its configs.
    pub async fn standing(&self) -> Result<Standing, ClusterError> {
        standing(&self.cluster, &self.name).await
    }

    /// The pod of machine-config-daemon on it.
    pub async fn other_daemon(&self) -> Result<Option<String>, ClusterError> {
        self.cluster.machine_config_daemon_on(&self.name).await
    }

    /// A MachineConfig as the API server has it; none where it is gone.
    pub async fn machine_config(
        &self,
        name: &str,
    ) -> Result<Option<MachineConfigText>, ClusterError> {
        match configs::text_of(&self.cluster, name).await {
            Ok(text) => Ok(Some(text.into_bytes())),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lifts our cordon, and says that the machine is on `config` and nothing is under way.
    pub async fn give_back(&self, config: &str) -> Result<Uncordon, ClusterError> {
        let node = OwnNode::new(self.cluster.clone(), &self.name);
        let lifted = node.uncordon().await?;
        handed_over(&self.cluster, &self.name, config).await?;
        Ok(lifted)
    }
}
