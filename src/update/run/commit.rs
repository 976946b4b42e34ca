//! Committing what is staged.

use super::{Audience, UpdateError, Updater};
use crate::{
    reason::Reason,
    update::{
        journal::{Journal, Mark},
        phase::Event,
        ports::Services,
        store::{self, Store, StoreError},
        transaction::{self, TransactionError},
    },
};

impl<S: Services, A: Audience> Updater<S, A> {
    pub(super) async fn commit(&mut self) -> Result<Event, UpdateError> {
        match self.blocking(commit).await? {
            Ok(()) => Ok(Event::Committed),
            Err(error) => {
                let code = match error.reason() {
                    // Nothing more is known than that it happened here.
                    Reason::Io => Reason::CommitFailed,
                    known => known,
                };
                self.failed(&error, code, error.again());
                Ok(Event::StepFailed)
            }
        }
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
