//! Handles an unreadable or unwritable state directory: the agent keeps running, reports the error, changes
//! nothing, and resumes from the journal once it is accessible.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{RETRY_BACKOFF, Reconciler, ReconcilerHooks, UpdateError};
use crate::{
    crash_recovery::{self, RecoverError},
    journal::{Journal, UpdateFailure},
    phase::{Phase, PhaseEffect},
    service_port::Services,
    store::{self, StateStore, StoreError},
};
use machinist_base::{backoff::jitter, error_chain::chain, reason::Reason};
use machinist_rootfs::Root;

/// Why the state cannot be written or read.
#[derive(Clone, Debug)]
pub(super) struct StateError {
    pub(super) failure: UpdateFailure,
    /// The machine's config is unknown.
    pub(super) unknown: bool,
}

/// The state that was read from the disk, or why it could not be read.
pub(super) struct StateOpen {
    pub(super) store: Option<Arc<StateStore>>,
    pub(super) journal: Journal,
    pub(super) trouble: Option<StateError>,
}

/// Result of an attempt to access the state again.
pub(super) enum StateRecovery {
    /// A stop came first.
    Stopped,
    /// The attempt is over, with the next effect. `trouble` is still set if it failed.
    At(Option<PhaseEffect>),
}

/// Opens the state unless it is already open, and recovers from a crash. Returns an error only if another process
/// has locked it: then this process is not the agent of this machine.
pub(super) fn open(root: &Root, store: Option<Arc<StateStore>>) -> Result<StateOpen, StoreError> {
    let store = match store.map_or_else(|| StateStore::open(root).map(Arc::new), Ok) {
        Ok(store) => store,
        Err(error @ StoreError::Locked { .. }) => return Err(error),
        Err(error) => return Ok(StateOpen::in_trouble(root, None, &error.into())),
    };
    Ok(match crash_recovery::recover(&store) {
        Ok((journal, recovered)) => {
            if !recovered.is_empty() {
                tracing::info!(?recovered, "recovered from an interrupted update");
            }
            let (store, trouble) = (Some(store), None);
            StateOpen {
                store,
                journal,
                trouble,
            }
        }
        Err(error) => StateOpen::in_trouble(root, Some(store), &error),
    })
}

impl StateOpen {
    /// The journal can still be read without write access.
    fn in_trouble(root: &Root, store: Option<Arc<StateStore>>, error: &RecoverError) -> Self {
        let seen = store::peek(root);
        Self {
            store,
            trouble: Some(StateError::of(error, seen.is_err())),
            journal: seen.unwrap_or_default(),
        }
    }
}

impl StateError {
    fn of(error: &RecoverError, unknown: bool) -> Self {
        let (code, message) = (error.reason(), chain(error));
        tracing::error!(reason = %code, "{message}; no changes on this machine until it is fixed");
        let failure = UpdateFailure {
            code,
            message: super::super::bounded(message),
            retryable: !matches!(code, Reason::JournalUnreadable | Reason::JournalTooNew),
            digest: None,
            refusals: Vec::new(),
        };
        Self { failure, unknown }
    }
}

impl<S: Services, A: ReconcilerHooks> Reconciler<S, A> {
    /// Records an error of the state directory. Work that was done and could not be recorded is detected on the
    /// disk later, as after a crash. A lost task ends the loop.
    pub(super) fn record_state_error(&mut self, error: UpdateError) -> Result<(), UpdateError> {
        let error = match error {
            UpdateError::Recover(error) => error,
            UpdateError::Store(error) => error.into(),
            error @ (UpdateError::NoState | UpdateError::Lost(_)) => return Err(error),
        };
        self.planned = None;
        self.failures = self.failures.saturating_add(1);
        self.trouble = Some(StateError::of(&error, false));
        self.enter(Phase::Failed);
        Ok(())
    }

    /// Waits, then opens the state again and recovers. Tries once, unless a stop comes first.
    pub(super) async fn reopen_state(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<StateRecovery, UpdateError> {
        let wait = RETRY_BACKOFF.wait(self.failures.saturating_sub(1), jitter());
        tokio::select! {
            () = stop.cancelled() => return Ok(StateRecovery::Stopped),
            // Safe to drop: nothing was begun.
            () = self.run_responsive(tokio::time::sleep(wait)) => {}
        }
        let (root, store) = (self.root.clone(), self.store.take());
        let opening = tokio::task::spawn_blocking(move || {
            open(&root, store)
                .unwrap_or_else(|held| StateOpen::in_trouble(&root, None, &held.into()))
        });
        let opened = self
            .run_responsive(opening)
            .await
            .map_err(UpdateError::Lost)?;
        self.store = opened.store;
        self.journal = opened.journal;
        self.trouble = opened.trouble;
        if self.trouble.is_some() {
            self.failures = self.failures.saturating_add(1);
            self.publish();
            return Ok(StateRecovery::At(None));
        }
        tracing::info!("the state directory is usable again");
        let next = self.resume();
        self.publish();
        Ok(StateRecovery::At(next))
    }
}
