//! The same content under another name: whoever renders configs may name one anew at any time. The name is
//! followed wherever an update stands, and nothing of the machine changes for it.

use std::sync::Arc;

use super::{Audience, Desired, UpdateError, Updater};
use crate::update::{
    journal::{ConfigName, Direction},
    ports::Services,
};

impl<S: Services, A: Audience> Updater<S, A> {
    /// What is under way goes on under the name that is desired now.
    ///
    /// The journal learns of it with what it records next. A start before that finds the old name there,
    /// and follows the new one again.
    pub(super) fn go_by_the_desired_name(&mut self) {
        let desired = self.desired.borrow().clone();
        let Some((config, digest)) = desired.config() else {
            return;
        };
        let planned = self.planned.as_mut();
        if let Some(planned) = planned.filter(|planned| planned.digest == digest) {
            planned.to = Arc::clone(config);
        }
        let cordon = self.journal.cordon.as_mut().map(|cordon| &mut cordon.to);
        let open = self.journal.transactions.last_mut();
        // What goes back is desired by nobody.
        let open = open.filter(|tx| tx.direction == Direction::Forward);
        for known in cordon.into_iter().chain(open.map(|tx| &mut tx.to)) {
            if known.digest == digest && known.name != config.name {
                tracing::info!("{} is called {} by now", known.name, config.name);
                known.name.clone_from(&config.name);
            }
        }
    }

    /// The machine is on what is desired, but for the name: that is taken on.
    pub(super) async fn take_on_the_desired_name(&mut self) -> Result<(), UpdateError> {
        // While a bar stands nothing is begun, not even this.
        let Desired::Config(config, digest) = self.desired.borrow().clone() else {
            return Ok(());
        };
        let name = ConfigName::new(config.name.clone(), digest);
        let base = self.journal.base.as_mut();
        let Some(base) = base.filter(|base| base.digest == digest && **base != name) else {
            return Ok(());
        };
        tracing::info!("{} is called {} by now", base.name, name.name);
        *base = name;
        self.save().await?;
        self.publish();
        Ok(())
    }
}
