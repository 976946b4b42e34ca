//! Handles an unreadable or unwritable state directory: the agent keeps running, reports the error, changes
//! nothing, and resumes from the journal once it is accessible.

use tokio_util::sync::CancellationToken;

use super::{
    Reconciler, ReconcilerHooks, UpdateError,
    state_directory::{self, OpenedState},
};
use crate::{
    phase::{Phase, PhaseEffect},
    service_port::Services,
};

/// Result of an attempt to access the state again.
pub(super) enum StateRecovery {
    /// A stop came first.
    Stopped,
    /// The attempt is over, with the next effect. The error is still set if it failed.
    At(Option<PhaseEffect>),
}

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Records an error of the state directory. Work that was done and could not be recorded is detected on the
    /// disk later, as after a crash. A lost task ends the loop.
    pub(super) fn record_state_error(&mut self, error: UpdateError) -> Result<(), UpdateError> {
        let error = match error {
            UpdateError::Recover(error) => error,
            UpdateError::Store(error) => error.into(),
            error @ (UpdateError::NoState | UpdateError::Lost(_)) => return Err(error),
        };
        self.plan.discard();
        self.progress.add_failure();
        self.state.fail(&error);
        self.enter(Phase::Failed);
        Ok(())
    }

    /// Waits, then opens the state again and recovers. Tries once, unless a stop comes first.
    pub(super) async fn reopen_state(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<StateRecovery, UpdateError> {
        let wait = self.progress.retry_delay();
        tokio::select! {
            () = stop.cancelled() => return Ok(StateRecovery::Stopped),
            // Safe to drop: nothing was begun.
            () = self.run_responsive(tokio::time::sleep(wait)) => {}
        }
        let (root, store) = (self.state.root().clone(), self.state.take_store());
        let opening = tokio::task::spawn_blocking(move || {
            state_directory::open(&root, store)
                .unwrap_or_else(|locked| OpenedState::failed(&root, None, &locked.into()))
        });
        let opened = self
            .run_responsive(opening)
            .await
            .map_err(UpdateError::Lost)?;
        self.journal = self.state.use_opened(opened);
        if self.state.has_failed() {
            self.progress.add_failure();
            self.publish();
            return Ok(StateRecovery::At(None));
        }
        tracing::info!("the state directory is usable again");
        let next = self.resume();
        self.publish();
        Ok(StateRecovery::At(next))
    }
}
