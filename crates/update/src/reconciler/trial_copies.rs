//! Removes deployments that another program stages with the arguments of a trial while an update waits.

use std::time::Duration;

use machinist_base::error_chain::chain;
use machinist_rootfs::Watch;
use tokio::time::Instant;

use super::{Reconciler, ReconcilerHooks, blocking::sleep_until};
use crate::{os::OsProvider, service_port::Services};

/// Delay until a removal that failed is repeated: another program may hold libostree's lock for minutes.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// An inotify watch on the directory in which other programs stage deployments.
#[derive(Debug, Default)]
pub(super) struct StagingWatch {
    watch: Option<Watch>,
    /// When a removal that failed is repeated.
    retry: Option<Instant>,
}

impl StagingWatch {
    /// Waits until something is staged or removed, or a removal is repeated. Waits forever if nothing is watched.
    ///
    /// Cancel-safe: what inotify has queued is read by the next call.
    pub(super) async fn changed(&mut self) {
        let Some(watch) = &mut self.watch else {
            return sleep_until(self.retry).await;
        };
        tokio::select! {
            changed = watch.next() => if let Err(error) = changed {
                tracing::debug!("{}", chain(&error));
            },
            () = sleep_until(self.retry) => {}
        }
    }
}

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Removes a copy of the trial that another program has staged, and watches for further ones until the trial ends.
    pub(super) async fn remove_trial_copy(&mut self) {
        let Some(provider) = self.os.clone() else {
            return;
        };
        self.staging = StagingWatch::default();
        if self.journal.os_trial.is_none() {
            return;
        }
        // Before the look, so that it misses nothing.
        self.staging.watch = self.watch_staging(&*provider);
        if let Err(error) = self.run_responsive(provider.remove_copy()).await {
            tracing::warn!(reason = %error.reason(), "{}", chain(&error));
            self.staging.retry = Some(Instant::now() + RETRY_DELAY);
        }
    }

    fn watch_staging(&self, provider: &dyn OsProvider) -> Option<Watch> {
        let directory = provider.staging_directory()?;
        let watched = self.state.root().watch().and_then(|mut watch| {
            watch.add(&directory)?;
            Ok(watch)
        });
        match watched {
            Ok(watch) => Some(watch),
            Err(error) => {
                tracing::debug!("{}", chain(&error));
                None
            }
        }
    }
}
