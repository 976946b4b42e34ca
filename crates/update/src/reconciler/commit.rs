//! Commits the staged objects.

use super::{Reconciler, ReconcilerHooks, UpdateError};
use crate::{
    boot_id,
    journal::{Journal, TransactionState},
    phase::PhaseEvent,
    service_port::{InhibitGuard, Services},
    store::{StateStore, StoreError},
    transaction::{self, TransactionError},
};
use jiff::Timestamp;
use machinist_base::reason::Reason;

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Exchanges old and new objects.
    pub(super) async fn commit(&mut self) -> Result<PhaseEvent, UpdateError> {
        let inhibitor = self.inhibit_shutdown().await;
        let committed = self.blocking(commit).await?;
        drop(inhibitor);
        match committed {
            Ok(()) => Ok(PhaseEvent::Committed),
            Err(error) => {
                self.note_changed_target(&error);
                let code = match error.reason() {
                    // The I/O error is only known to have happened during the commit.
                    Reason::Io => Reason::CommitFailed,
                    known => known,
                };
                self.record_failure(&error, code, error.is_retryable());
                Ok(PhaseEvent::StepFailed)
            }
        }
    }

    /// Remembers the target that another writer has changed. The next plan leaves it alone if it may.
    pub(super) fn note_changed_target(&mut self, error: &TransactionError) {
        if let Some(target) = error.changed_target() {
            let now = Timestamp::now();
            self.journal.note_changed_target(target.clone(), now);
        }
    }

    /// Inhibits shutdown while old and new objects are exchanged.
    pub(super) async fn inhibit_shutdown(&self) -> Option<InhibitGuard> {
        let services = self.services.clone()?;
        let why = format!("applying {}", self.config_name());
        self.run_responsive(services.hold_off_shutdown(&why)).await
    }
}

fn commit(store: &StateStore, journal: &mut Journal) -> Result<(), TransactionError> {
    let boot = boot_id::current(store.root()).map_err(StoreError::from)?;
    let Some(tx) = journal.top_mut() else {
        return Ok(());
    };
    transaction::commit(store.root(), tx)?;
    tx.mark = TransactionState::Committed;
    tx.committed_boot = boot;
    Ok(store.save(journal)?)
}
