//! Downloads the OS image and the packages of a plan before the start time of the update and before the node is cordoned.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Reconciler, ReconcilerHooks, UpdateError, os_trial::StepFailure};
use crate::{
    os::{DesiredDeployment, OsProvider},
    phase::{Phase, PhaseEvent},
    service_port::Services,
};
use machinist_base::error_chain::chain;

/// How often the progress of a download is read and published. The liveness tick is much longer.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Returns the deployment of the plan, if that changes the operating system.
    fn planned_deployment(&self) -> Option<DesiredDeployment> {
        let update = self.plan.planned()?.plan.os.as_ref()?;
        Some(DesiredDeployment::from(update.clone()))
    }

    /// Returns whether the plan needs an OS image or packages that are not on the host. A host whose images cannot be
    /// listed has none.
    pub(super) async fn is_download_needed(&self) -> bool {
        let (Some(wanted), Some(provider)) = (self.planned_deployment(), self.os.clone()) else {
            return false;
        };
        match self.run_responsive(provider.fetched(&wanted)).await {
            Ok(fetched) => fetched.is_none(),
            Err(error) => {
                tracing::warn!(reason = %error.reason(), "{}", chain(&error));
                true
            }
        }
    }

    /// Downloads what the plan needs. Returns `None` on a stop.
    pub(super) async fn fetch(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PhaseEvent>, UpdateError> {
        let Some(wanted) = self.planned_deployment() else {
            return Ok(Some(PhaseEvent::Withdrawn));
        };
        let ended = self.download(&wanted, stop).await;
        self.progress.set_download(None);
        let failure = match ended {
            DownloadEnd::Stopped => {
                self.cancel_download().await;
                return Ok(None);
            }
            DownloadEnd::NewDesired(event) => {
                self.cancel_download().await;
                return Ok(Some(event));
            }
            DownloadEnd::Failed(failure) => Some(failure),
            DownloadEnd::Done => None,
        };
        if let Some(failure) = failure {
            self.record_failure(&*failure.error, failure.reason, failure.retryable);
            return Ok(Some(PhaseEvent::StepFailed));
        }
        // Only now is the version of the image known, which may be lower than the installed one.
        Ok(Some(match self.revalidate_plan().await? {
            Ok((planned, _)) => {
                self.plan.set(planned);
                PhaseEvent::Fetched
            }
            Err(event) => event,
        }))
    }

    /// Ends the program that a dropped download has left.
    async fn cancel_download(&self) {
        if let Some(provider) = self.os.clone()
            && let Err(error) = self.run_responsive(provider.cancel_fetch()).await
        {
            tracing::warn!(reason = %error.reason(), "{}", chain(&error));
        }
    }

    /// Removes images that were downloaded for updates which were withdrawn, and repairs the boot menu.
    pub(super) async fn clean_up(&self) {
        let is_idle = self.progress.phase() == Phase::Idle && self.journal.transactions.is_empty();
        // Otherwise the image may be needed by the next update, after a restart of the agent.
        let needs_none = is_idle && self.is_base_desired() && self.can_change_os();
        if let Some(provider) = self.os.clone().filter(|_| needs_none)
            && let Err(error) = self.run_responsive(provider.clean_up()).await
        {
            tracing::warn!(reason = %error.reason(), "{}", chain(&error));
        }
    }

    fn can_change_os(&self) -> bool {
        let known = self.options.current().capabilities.os;
        let now = self.hooks.os_capabilities(self.state.root(), known);
        now.has_provider()
    }

    /// Publishes the progress of the download.
    async fn report_download(&mut self, provider: &dyn OsProvider) {
        let progress = provider.fetch_progress().await;
        if self.progress.set_download(progress) {
            self.publish();
        }
    }

    /// Downloads image and packages until they are there, or until the desired config changes.
    async fn download(
        &mut self,
        wanted: &DesiredDeployment,
        stop: &CancellationToken,
    ) -> DownloadEnd {
        let provider = match self.provider() {
            Ok(provider) => provider,
            Err(failure) => return DownloadEnd::Failed(failure),
        };
        if let Err(error) = self.run_responsive(provider.check_fetch()).await {
            return DownloadEnd::Failed(error.into());
        }
        match &wanted.image {
            Some(image) => tracing::info!("downloading the OS image {image}"),
            None => tracing::info!("downloading packages of the operating system"),
        }
        let download = provider.fetch(wanted, self.options.current().os_step_timeout);
        tokio::pin!(download);
        let mut tick = tokio::time::interval(self.hooks.tick());
        let mut progress = tokio::time::interval(PROGRESS_INTERVAL);
        loop {
            tokio::select! {
                () = stop.cancelled() => return DownloadEnd::Stopped,
                fetched = &mut download => {
                    return match fetched {
                        Ok(_) => DownloadEnd::Done,
                        Err(error) => DownloadEnd::Failed(error.into()),
                    };
                }
                // Safe to drop: a change that is missed here is still marked unseen.
                Ok(()) = self.desired.changed() => {
                    if let Some(event) = self.event_for_desired() {
                        return DownloadEnd::NewDesired(event);
                    }
                }
                // Safe to drop, all: ticks recur, and a probe stays pending.
                _ = tick.tick() => self.hooks.record_beat(),
                _ = progress.tick() => {
                    self.report_download(&*provider).await;
                    if let Err(error) = provider.check_fetch().await {
                        return DownloadEnd::Failed(error.into());
                    }
                }
                () = self.hooks.probe_requested() => self.hooks.record_beat(),
            }
        }
    }
}

/// How a download ended.
enum DownloadEnd {
    Stopped,
    NewDesired(PhaseEvent),
    Failed(StepFailure),
    Done,
}
