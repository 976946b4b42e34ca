//! Records the units that had failed before any update, because no update can be their cause.

use super::{Reconciler, ReconcilerHooks, UpdateError};
use crate::service_port::{ServiceError, Services};
use machinist_base::error_chain::chain;

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Records the failed units of a machine that no update has changed yet, because no update can be their cause.
    pub(super) async fn record_failed_units(&mut self) -> Result<(), UpdateError> {
        let has_config = self.journal.base.is_some() || !self.journal.transactions.is_empty();
        if has_config || self.state.has_failed() || !self.journal.failed_units.is_empty() {
            return Ok(());
        }
        match self.failed_units().await {
            Ok(units) if !units.is_empty() => {
                self.journal.failed_units = units;
                self.publish();
                match self.save().await {
                    Err(error) => self.record_state_error(error),
                    Ok(()) => Ok(()),
                }
            }
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::debug!("{}", chain(&error));
                Ok(())
            }
        }
    }

    /// Returns the failed units; empty without a service manager.
    pub(super) async fn failed_units(&self) -> Result<Vec<String>, ServiceError> {
        match &self.services {
            Some(services) => self.run_responsive(services.failed_units()).await,
            None => Ok(Vec::new()),
        }
    }
}
