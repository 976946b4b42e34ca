//! Installs recovery on the host before an update may need it.

use std::sync::Arc;

use super::{Reconciler, ReconcilerHooks, UpdateError};
use crate::{recovery_installer::RecoveryInstaller, service_port::Services};
use machinist_base::{error_chain::chain, reason::Reason};
use machinist_ignition::Refusal;

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Enables installation of the recovery units before each plan, if `host` is given.
    #[must_use]
    pub fn with_recovery_install(mut self, host: Option<Arc<dyn RecoveryInstaller>>) -> Self {
        self.host = host;
        self
    }

    /// Installs recovery. An error is reported with the plan that needs recovery.
    pub(super) async fn install_recovery(&mut self) -> Result<(), UpdateError> {
        let Some(host) = self.host.clone() else {
            return Ok(());
        };
        let bringing = tokio::task::spawn_blocking(move || host.install());
        let brought = self
            .run_responsive(bringing)
            .await
            .map_err(UpdateError::Lost)?;
        self.not_brought = None;
        match brought {
            Ok(false) => {}
            Ok(true) => self.reload_units().await,
            Err(error) => self.not_brought = Some(chain(&*error)),
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

    /// Adds the installation error to a plan's refusal for missing recovery.
    pub(super) fn with_cause(&self, mut refusals: Vec<Refusal>) -> Vec<Refusal> {
        let Some(cause) = &self.not_brought else {
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
