//! Handles a desired config with unchanged content and a new name, because the renderer may rename a config at any
//! time. The new name is adopted in every phase of an update, and nothing on the machine changes.

use super::{DesiredConfig, Reconciler, ReconcilerHooks, UpdateError};
use crate::{
    journal::{ConfigName, Direction},
    service_port::Services,
};

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Renames the update in progress to the desired name.
    ///
    /// The journal stores the new name with its next record. After a restart before that, the journal has the old
    /// name, and it is renamed again.
    pub(super) fn rename_update(&mut self) {
        let desired = self.desired.current();
        let Some((config, digest)) = desired.config() else {
            return;
        };
        self.plan.rename(config, digest);
        let cordon = self.journal.cordon.as_mut().map(|cordon| &mut cordon.to);
        let open = self.journal.transactions.last_mut();
        // No desired config matches an undo.
        let open = open.filter(|tx| tx.direction == Direction::Forward);
        for recorded in cordon.into_iter().chain(open.map(|tx| &mut tx.to)) {
            if recorded.digest == digest && recorded.name != config.name {
                tracing::info!("{} was renamed to {}", recorded.name, config.name);
                recorded.name.clone_from(&config.name);
            }
        }
    }

    /// Renames the base if it has the same content as the desired config.
    pub(super) async fn rename_base(&mut self) -> Result<(), UpdateError> {
        // While the desired config is blocked, nothing is changed, not even the name.
        let DesiredConfig::Config(config, digest) = self.desired.current() else {
            return Ok(());
        };
        let name = ConfigName::new(config.name.clone(), digest);
        let base = self.journal.base.as_mut();
        let Some(base) = base.filter(|base| base.digest == digest && **base != name) else {
            return Ok(());
        };
        tracing::info!("{} was renamed to {}", base.name, name.name);
        *base = name;
        self.save().await?;
        self.publish();
        Ok(())
    }
}
