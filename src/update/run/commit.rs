//! Commits the staged objects.

use super::{Audience, UpdateError, Updater};
use crate::{
    reason::Reason,
    update::{
        journal::{Journal, Mark},
        phase::Event,
        ports::{Held, Services},
        store::{self, Store, StoreError},
        transaction::{self, TransactionError},
    },
};

impl<S: Services, A: Audience> Updater<S, A> {
    pub(super) async fn commit(&mut self) -> Result<Event, UpdateError> {
        let held = self.hold_off_shutdown().await;
        let committed = self.blocking(commit).await?;
        drop(held);
        match committed {
            Ok(()) => Ok(Event::Committed),
            Err(error) => {
                let code = match error.reason() {
                    // The I/O error is only known to have happened during the commit.
                    Reason::Io => Reason::CommitFailed,
                    known => known,
                };
                self.failed(&error, code, error.again());
                Ok(Event::StepFailed)
            }
        }
    }

    /// Inhibits shutdown while old and new objects are exchanged.
    pub(super) async fn hold_off_shutdown(&self) -> Option<Held> {
        let services = self.services.clone()?;
        let why = format!("applying {}", self.config_name());
        self.while_turning(services.hold_off_shutdown(&why)).await
    }
}

fn commit(store: &Store, journal: &mut Journal) -> Result<(), TransactionError> {
    let boot = store::boot_id(store.root()).map_err(StoreError::from)?;
    let Some(tx) = journal.top_mut() else {
        return Ok(());
    };
    transaction::commit(store.root(), tx)?;
    tx.mark = Mark::Committed;
    tx.committed_boot = boot;
    Ok(store.save(journal)?)
}
