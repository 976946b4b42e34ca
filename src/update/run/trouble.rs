//! When the state cannot be read or written: the agent lives, says so, changes nothing, and goes on from
//! what the disk says once it can.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{Audience, RETRY, UpdateError, Updater};
use crate::{
    backoff::jitter,
    reason::Reason,
    root::Root,
    telemetry::chain,
    update::{
        journal::{Failure, Journal},
        phase::{Effect, Phase},
        ports::Services,
        recover::{self, RecoverError},
        store::{self, Store, StoreError},
    },
};

/// Why nothing can be recorded, or read back.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub(super) failure: Failure,
    /// Nobody can tell which config the machine is on.
    pub(super) unknown: bool,
}

/// What the disk says of the state, or why it says nothing.
pub(super) struct Opened {
    pub(super) store: Option<Arc<Store>>,
    pub(super) journal: Journal,
    pub(super) trouble: Option<Trouble>,
}

/// How a time of trouble ended.
pub(super) enum Regained {
    /// By a stop.
    Stopped,
    /// The journal could be read and what was open settled; this comes next.
    At(Option<Effect>),
}

/// Opens the state unless it is open, and settles what was left. The only error is that somebody else
/// has it: then this is not the agent of this machine.
pub(super) fn open(root: &Root, store: Option<Arc<Store>>) -> Result<Opened, StoreError> {
    let store = match store.map_or_else(|| Store::open(root).map(Arc::new), Ok) {
        Ok(store) => store,
        Err(error @ StoreError::Locked { .. }) => return Err(error),
        Err(error) => return Ok(Opened::in_trouble(root, None, &error.into())),
    };
    Ok(match recover::recover(&store) {
        Ok((journal, recovered)) => {
            if !recovered.is_empty() {
                tracing::info!(?recovered, "settled what an interrupted update left");
            }
            let (store, trouble) = (Some(store), None);
            Opened {
                store,
                journal,
                trouble,
            }
        }
        Err(error) => Opened::in_trouble(root, Some(store), &error),
    })
}

impl Opened {
    /// Without the right to write, what stands in the journal can still be told.
    fn in_trouble(root: &Root, store: Option<Arc<Store>>, error: &RecoverError) -> Self {
        let seen = store::peek(root);
        Self {
            store,
            trouble: Some(Trouble::of(error, seen.is_err())),
            journal: seen.unwrap_or_default(),
        }
    }
}

impl Trouble {
    fn of(error: &RecoverError, unknown: bool) -> Self {
        let (code, message) = (error.reason(), chain(error));
        tracing::error!(reason = %code, "{message}; nothing is changed on this machine meanwhile");
        let failure = Failure {
            code,
            message: super::super::bounded(message),
            again: !matches!(code, Reason::JournalUnreadable | Reason::JournalTooNew),
            digest: None,
        };
        Self { failure, unknown }
    }
}

impl<S: Services, A: Audience> Updater<S, A> {
    /// Takes note of an error that is no step's own. What was done and could not be recorded is found
    /// on the disk again, as after a crash. A lost task ends the loop.
    pub(super) fn troubled(&mut self, error: UpdateError) -> Result<(), UpdateError> {
        let error = match error {
            UpdateError::Recover(error) => error,
            UpdateError::Store(error) => error.into(),
            error @ (UpdateError::NoState | UpdateError::Lost(_)) => return Err(error),
        };
        self.planned = None;
        self.failures = self.failures.saturating_add(1);
        self.trouble = Some(Trouble::of(&error, false));
        self.enter(Phase::Failed);
        Ok(())
    }

    /// Waits, then reads the state anew and settles what is open; once, or until a stop.
    pub(super) async fn regain(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Regained, UpdateError> {
        let wait = RETRY.wait(self.failures.saturating_sub(1), jitter());
        tokio::select! {
            () = stop.cancelled() => return Ok(Regained::Stopped),
            // Safe to drop: nothing was begun.
            () = self.while_turning(tokio::time::sleep(wait)) => {}
        }
        let (root, store) = (self.root.clone(), self.store.take());
        let opening = tokio::task::spawn_blocking(move || {
            open(&root, store).unwrap_or_else(|held| Opened::in_trouble(&root, None, &held.into()))
        });
        let opened = self
            .while_turning(opening)
            .await
            .map_err(UpdateError::Lost)?;
        self.store = opened.store;
        self.journal = opened.journal;
        self.trouble = opened.trouble;
        if self.trouble.is_some() {
            self.failures = self.failures.saturating_add(1);
            self.publish();
            return Ok(Regained::At(None));
        }
        tracing::info!("the state can be read and written again");
        let next = self.resume();
        self.publish();
        Ok(Regained::At(next))
    }
}
