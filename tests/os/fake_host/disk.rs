//! The disk of the fake host: what survives every process and determines the next boot.

use std::time::Duration;

use machinist_plan::ImageRef;
use machinist_update::os::{
    Deployment, DeploymentId, DesiredDeployment, ProviderStep, StagedDeployment,
};

/// The state that survives every process and determines the next boot.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) booted: Deployment,
    pub(super) selection: Selection,
    /// The selection that a power loss leaves.
    pub(super) durable: Selection,
    pub(super) staged: Option<Held>,
    /// The deployment that never reaches userspace.
    pub(super) panics: Option<DeploymentId>,
    pub(super) made: u32,
    pub(super) agents: u32,
    pub(super) images: Vec<(ImageRef, String)>,
    /// The images that were pulled.
    pub(super) fetched: Vec<ImageRef>,
    pub(super) fails: Option<ProviderStep>,
    pub(super) takes: Duration,
}

/// The deployments that boots enter.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    pub(super) selected: Deployment,
    pub(super) previous: Option<Deployment>,
}

impl Selection {
    /// Selects the previous deployment.
    pub(super) fn swap(&mut self) {
        if let Some(previous) = self.previous.take() {
            self.previous = Some(std::mem::replace(&mut self.selected, previous));
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) staged: StagedDeployment,
    pub(super) by: u32,
    /// The state that was requested for it.
    pub(super) wanted: DesiredDeployment,
}

impl Disk {
    pub(super) fn fallback(&self) -> Option<Deployment> {
        let Selection { selected, previous } = &self.selection;
        match selected.id == self.booted.id {
            true => previous.clone(),
            false => Some(selected.clone()),
        }
    }

    /// Makes the selection durable, unless this host is broken in that way.
    pub(super) fn sync(&mut self, durable: bool) {
        if durable {
            self.durable = self.selection.clone();
        }
    }
}
