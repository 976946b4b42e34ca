//! The state directory as the reconciler uses it: open or not, and why not.

use std::sync::Arc;

use super::UpdateError;
use crate::{
    boot_id,
    crash_recovery::{self, RecoverError},
    journal::{Journal, UpdateFailure},
    store::{self, StateStore, StoreError},
};
use machinist_base::{digest::Digest, error_chain::chain, reason::Reason};
use machinist_rootfs::Root;

/// The state directory of one root.
#[derive(Debug)]
pub(super) struct StateDirectory {
    root: Root,
    /// `None` while the directory cannot be opened, or while the guard judges the boot.
    store: Option<Arc<StateStore>>,
    /// The state cannot be read or written: nothing is planned, and the machine is not changed.
    error: Option<StateError>,
    /// The config that has a valid copy in the directory.
    stored_config: Option<Digest>,
}

/// Why the state cannot be written or read.
#[derive(Clone, Debug)]
pub(super) struct StateError {
    failure: UpdateFailure,
    /// The machine's config is unknown.
    unknown: bool,
}

/// The state that was read from the disk, or why it could not be read.
pub(super) struct OpenedState {
    pub(super) store: Option<Arc<StateStore>>,
    pub(super) journal: Journal,
    pub(super) error: Option<StateError>,
}

impl StateDirectory {
    pub(super) fn new(
        root: &Root,
        store: Option<Arc<StateStore>>,
        error: Option<StateError>,
    ) -> Self {
        Self {
            root: root.clone(),
            store,
            error,
            stored_config: None,
        }
    }

    pub(super) const fn root(&self) -> &Root {
        &self.root
    }

    pub(super) const fn store(&self) -> Option<&Arc<StateStore>> {
        self.store.as_ref()
    }

    /// Returns the open directory, for work that changes it.
    pub(super) fn open_store(&self) -> Result<Arc<StateStore>, UpdateError> {
        self.store.clone().ok_or(UpdateError::NoState)
    }

    /// Returns whether the guard has the lock, to judge this boot.
    pub(super) const fn is_held_by_guard(&self) -> bool {
        self.store.is_none() && self.error.is_none()
    }

    pub(super) const fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Returns why the state cannot be read or written.
    pub(super) fn failure(&self) -> Option<&UpdateFailure> {
        self.error.as_ref().map(|error| &error.failure)
    }

    /// Returns whether the journal cannot be read, so that the machine's config is unknown.
    pub(super) fn is_journal_unknown(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.unknown)
    }

    /// Records that the state could not be written.
    pub(super) fn fail(&mut self, error: &RecoverError) {
        self.error = Some(StateError::of(error, false));
    }

    /// Hands over the open directory to an attempt to recover it.
    pub(super) const fn take_store(&mut self) -> Option<Arc<StateStore>> {
        self.store.take()
    }

    /// Uses the result of opening the directory, and returns its journal.
    pub(super) fn use_opened(&mut self, opened: OpenedState) -> Journal {
        self.store = opened.store;
        self.error = opened.error;
        opened.journal
    }

    /// Returns whether the directory has a valid copy of the config.
    pub(super) fn has_stored(&self, config: Digest) -> bool {
        self.stored_config == Some(config)
    }

    /// Records that the directory has a valid copy of the config.
    pub(super) const fn set_stored(&mut self, config: Option<Digest>) {
        self.stored_config = config;
    }

    /// Returns the boot ID of the root; `None` if it cannot be read.
    pub(super) fn boot_id(&self) -> Option<String> {
        boot_id::current(&self.root).ok().flatten()
    }
}

/// Opens the state unless it is already open, and recovers from a crash. Returns an error only if another process
/// has locked it: then this process is not the agent of this machine.
pub(super) fn open(root: &Root, store: Option<Arc<StateStore>>) -> Result<OpenedState, StoreError> {
    let store = match store.map_or_else(|| StateStore::open(root).map(Arc::new), Ok) {
        Ok(store) => store,
        Err(error @ StoreError::Locked { .. }) => return Err(error),
        Err(error) => return Ok(OpenedState::failed(root, None, &error.into())),
    };
    Ok(match crash_recovery::recover(&store) {
        Ok((journal, recovered)) => {
            if !recovered.is_empty() {
                tracing::info!(?recovered, "recovered from an interrupted update");
            }
            OpenedState {
                store: Some(store),
                journal,
                error: None,
            }
        }
        Err(error) => OpenedState::failed(root, Some(store), &error),
    })
}

impl OpenedState {
    /// The journal can still be read without write access.
    pub(super) fn failed(
        root: &Root,
        store: Option<Arc<StateStore>>,
        error: &RecoverError,
    ) -> Self {
        let journal = store::peek(root);
        Self {
            store,
            error: Some(StateError::of(error, journal.is_err())),
            journal: journal.unwrap_or_default(),
        }
    }
}

impl StateError {
    fn of(error: &RecoverError, unknown: bool) -> Self {
        let (code, message) = (error.reason(), chain(error));
        tracing::error!(reason = %code, "{message}; no changes on this machine until it is fixed");
        let failure = UpdateFailure {
            code,
            message: crate::bounded(message),
            retryable: !matches!(code, Reason::JournalUnreadable | Reason::JournalTooNew),
            digest: None,
            refusals: Vec::new(),
        };
        Self { failure, unknown }
    }
}
