//! Removes deployments that another program stages with the arguments of a trial while an update waits.

use machinist_base::error_chain::chain;
use machinist_rootfs::Watch;

use super::{Reconciler, ReconcilerHooks};
use crate::{os::OsProvider, service_port::Services};

/// An inotify watch on the directory in which other programs stage deployments.
#[derive(Debug, Default)]
pub(super) struct StagingWatch {
    watch: Option<Watch>,
}

impl StagingWatch {
    /// Waits until something is staged or removed. Waits forever if nothing is watched.
    ///
    /// Cancel-safe: what inotify has queued is read by the next call.
    pub(super) async fn changed(&mut self) {
        let Some(watch) = &mut self.watch else {
            return std::future::pending().await;
        };
        if let Err(error) = watch.next().await {
            tracing::debug!("{}", chain(&error));
        }
    }
}

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Removes a copy of the trial that another program has staged, and watches for further ones until the trial ends.
    pub(super) async fn remove_trial_copy(&mut self) {
        let Some(provider) = self.os.clone() else {
            return;
        };
        if self.journal.os_trial.is_none() {
            self.staging.watch = None;
            return;
        }
        // Before the look, so that it misses nothing.
        self.staging.watch = self.watch_staging(&*provider);
        if let Err(error) = self.run_responsive(provider.remove_copy()).await {
            tracing::warn!(reason = %error.reason(), "{}", chain(&error));
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
