//! Installs recovery on the host before an update may need it.

use std::{error::Error, sync::Arc};

use super::{Reconciler, ReconcilerHooks, UpdateError};
use crate::service_port::{RecoveryInstaller, Services};
use machinist_base::{error_chain::chain, reason::Reason};
use machinist_ignition::Refusal;

/// Installation of the recovery units and their program.
#[derive(Default)]
pub(super) struct HostInstall {
    /// `None` if a package or an administrator installs recovery.
    installer: Option<Arc<dyn RecoveryInstaller>>,
    /// Why the last installation failed.
    error: Option<String>,
}

impl HostInstall {
    /// Records the result of an installation, and returns whether the service manager must read the units again.
    fn record(&mut self, installed: Result<bool, Box<dyn Error + Send + Sync>>) -> bool {
        self.error = installed.as_ref().err().map(|error| chain(&**error));
        installed.unwrap_or(false)
    }

    /// Adds the installation error to a plan's refusal for missing recovery.
    pub(super) fn explain(&self, mut refusals: Vec<Refusal>) -> Vec<Refusal> {
        let Some(cause) = &self.error else {
            return refusals;
        };
        let first = |refusal: &&mut Refusal| {
            refusal.reason == Reason::RecoveryMissing && refusal.expected.is_some()
        };
        if let Some(refusal) = refusals.iter_mut().find(first) {
            refusal.message = format!("{}: {cause}", refusal.message).into();
        }
        refusals
    }
}

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Enables installation of the recovery units before each plan, if `installer` is given.
    #[must_use]
    pub fn with_recovery_install(mut self, installer: Option<Arc<dyn RecoveryInstaller>>) -> Self {
        self.host.installer = installer;
        self
    }

    /// Installs recovery. An error is reported with the plan that needs recovery.
    pub(super) async fn install_recovery(&mut self) -> Result<(), UpdateError> {
        let Some(installer) = self.host.installer.clone() else {
            return Ok(());
        };
        let installing = tokio::task::spawn_blocking(move || installer.install());
        let installed = self
            .run_responsive(installing)
            .await
            .map_err(UpdateError::Lost)?;
        if self.host.record(installed) {
            self.reload_units().await;
        }
        Ok(())
    }

    async fn reload_units(&self) {
        let Some(services) = self.services.clone() else {
            return;
        };
        // The next boot reads the units in any case.
        if let Err(error) = self.run_responsive(services.daemon_reload()).await {
            tracing::warn!(reason = %error.reason, "{}", chain(&error));
        }
    }
}
