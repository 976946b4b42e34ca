//! Defines the interface between the update and the program that changes the operating system.

use std::{error::Error, fmt, time::Duration};

use super::{DeploymentId, Deployments, DesiredDeployment};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_plan::{ImageRef, OsCapabilities};

/// A provider's operation, as error messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProviderStep {
    /// [`OsProvider::observe`].
    Observe,
    /// [`OsProvider::fetch`].
    Fetch,
    /// [`OsProvider::stage`].
    Stage,
    /// [`OsProvider::unlock`].
    Unlock,
    /// [`OsProvider::lock`].
    Lock,
    /// [`OsProvider::keep`].
    Keep,
    /// [`OsProvider::discard`].
    Discard,
    /// [`OsProvider::roll_back`].
    RollBack,
    /// [`OsProvider::clean_up`].
    CleanUp,
}

impl fmt::Display for ProviderStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Observe => "list the deployments",
            Self::Fetch => "download the OS image or packages",
            Self::Stage => "stage a deployment",
            Self::Unlock => "unlock the staged deployment",
            Self::Lock => "lock the staged deployment",
            Self::Keep => "keep the booted deployment",
            Self::Discard => "discard the staged deployment",
            Self::RollBack => "roll back to the previous deployment",
            Self::CleanUp => "remove unused OS images and boot entries",
        })
    }
}

/// Reasons why a step failed. In every case the booted deployment and the fallback are unchanged.
#[derive(Debug, thiserror::Error)]
pub enum OsError {
    /// The image cannot be fetched, or cannot be fetched now.
    #[error("cannot fetch the OS image {image}")]
    Unreachable {
        /// The image.
        image: ImageRef,
        /// Whether a retry may succeed; false if the registry reports that the image does not exist.
        retryable: bool,
        /// The error from the registry or the network.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A registry or a repository of packages does not answer bootc or rpm-ostree. The next download asks it again.
    #[error("cannot {step}: a registry or a repository does not answer")]
    NoAnswer {
        /// The step.
        step: ProviderStep,
        /// The program's error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The image or the packages do not fit on the disk.
    #[error("cannot {step}: no space is left on the disk")]
    NoSpace {
        /// The step.
        step: ProviderStep,
        /// The program's error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The step exceeded its time limit.
    #[error("cannot {step}: it took longer than {} seconds", .limit.as_secs())]
    TimedOut {
        /// The step.
        step: ProviderStep,
        /// The time limit.
        limit: Duration,
    },
    /// No deployment with this identifier is where the step needs it.
    #[error("cannot {step}: deployment {id} not found")]
    DeploymentMissing {
        /// The step.
        step: ProviderStep,
        /// The deployment.
        id: DeploymentId,
    },
    /// Another program, such as a package manager, is changing the host. It may need minutes.
    #[error("cannot {step} while another program changes the host")]
    Busy {
        /// The step.
        step: ProviderStep,
        /// Why the step cannot succeed yet.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The host's program refused the step or failed.
    #[error("cannot {step}")]
    Failed {
        /// The step.
        step: ProviderStep,
        /// Whether a retry may succeed.
        retryable: bool,
        /// The program's error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl OsError {
    /// Returns whether a retry may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { retryable, .. } | Self::Failed { retryable, .. } => *retryable,
            Self::NoAnswer { .. }
            | Self::TimedOut { .. }
            | Self::NoSpace { .. }
            | Self::Busy { .. } => true,
            Self::DeploymentMissing { .. } => false,
        }
    }

    /// Returns the reason code for status and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Unreachable { .. } | Self::NoAnswer { .. } => Reason::ImageUnreachable,
            Self::NoSpace { .. } => Reason::NoSpace,
            Self::TimedOut { .. } => Reason::OSStepTimeout,
            Self::DeploymentMissing { .. } | Self::Busy { .. } | Self::Failed { .. } => {
                Reason::OSStepFailed
            }
        }
    }
}

/// Properties of an image that is stored on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchedImage {
    /// The image's version, if it has one. A plan refuses a version lower than the booted one.
    pub version: Option<String>,
}

/// The progress of a download.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchProgress {
    /// Bytes that were received; `None` if the host does not count them.
    pub received_bytes: Option<u64>,
    /// Layers of the image that are complete since the download began.
    pub layers: u64,
    /// Layers that the download needs, once the program has said so.
    pub needed_layers: Option<u64>,
    /// Their size, as the program prints it.
    pub needed_size: Option<String>,
}

/// Changes the operating system of one kind of host.
///
/// A new deployment is tried first: once unlocked, it is entered by *one* boot. If it is not kept in that boot, the next
/// boot enters the previous deployment, and so does a boot that never reaches userspace. Therefore a provider unlocks
/// immediately before the reboot, and the update keeps a deployment only after it has judged its boot.
///
/// Every step is idempotent and may be repeated by another process than the one that began it: a provider reads the
/// state from the host and keeps none of its own. A step that fails or is interrupted leaves the booted deployment
/// and the fallback unchanged. `tests/os/contract.rs` checks all of this for each provider.
#[async_trait::async_trait]
pub trait OsProvider: Send + Sync + 'static {
    /// Returns the kind of host, and what the provider can change on it. This depends on versions of the host's
    /// programs and on what its boot loader can write.
    fn capabilities(&self) -> OsCapabilities;

    /// Returns whether each deployment has a /etc of its own. It is made from that of the running one at the end of the
    /// boot in which the deployment is unlocked.
    fn has_etc_per_deployment(&self) -> bool {
        false
    }

    /// Returns the current deployments.
    async fn observe(&self) -> Result<Deployments, OsError>;

    /// Returns the image of a deployment if everything that staging needs is on the host; `None` if it must be fetched
    /// first. A deployment of which only the arguments differ needs nothing.
    async fn fetched(&self, wanted: &DesiredDeployment) -> Result<Option<FetchedImage>, OsError> {
        let _ = wanted;
        Ok(Some(FetchedImage::default()))
    }

    /// Downloads the image and the packages of a deployment to the host, so that staging needs no network. The update
    /// fetches before it drains the node. Removes images that were fetched earlier and that no deployment has, and may
    /// discard a staged deployment other than `wanted`.
    async fn fetch(
        &self,
        wanted: &DesiredDeployment,
        limit: Duration,
    ) -> Result<FetchedImage, OsError> {
        let (_, _) = (wanted, limit);
        Ok(FetchedImage::default())
    }

    /// Returns the progress of a download that runs; `None` if that is unknown.
    async fn fetch_progress(&self) -> Option<FetchProgress> {
        None
    }

    /// Fails if too little space is left for a download, and ends one that runs. Called before a download and while it
    /// runs.
    async fn check_fetch(&self) -> Result<(), OsError> {
        Ok(())
    }

    /// Ends a download whose future was dropped.
    async fn cancel_fetch(&self) -> Result<(), OsError> {
        Ok(())
    }

    /// Removes images that were fetched and that no deployment has, and a boot entry without arguments of machinist;
    /// replaces a boot entry whose kernel was removed, and forgets packages that were removed. No update is open.
    async fn clean_up(&self) -> Result<(), OsError> {
        Ok(())
    }

    /// Creates a locked deployment for the next boot, replaces any that was staged before, and returns its
    /// identifier. Returns `None` if the booted deployment already matches `wanted`; then nothing remains staged. A
    /// staged deployment that already matches stays unchanged, including its lock.
    async fn stage(
        &self,
        wanted: &DesiredDeployment,
        limit: Duration,
    ) -> Result<Option<DeploymentId>, OsError>;

    /// Unlocks the staged deployment, so that the next boot, and only that one, enters it. `staged` must be its
    /// identifier.
    async fn unlock(&self, staged: &DeploymentId) -> Result<(), OsError>;

    /// Locks the staged deployment again, because the reboot does not happen now. It is not an error if none is
    /// staged.
    async fn lock(&self) -> Result<(), OsError>;

    /// Returns the directory in which another program can stage a deployment, if there is one.
    fn staging_directory(&self) -> Option<AbsPath> {
        None
    }

    /// Removes a deployment that another program has staged with the arguments of a trial that is not kept: no boot loader
    /// would leave it if its boot failed.
    async fn remove_copy(&self) -> Result<(), OsError> {
        Ok(())
    }

    /// Selects the booted deployment for every following boot, durably. `booted` must be its identifier. The
    /// deployment that was selected before becomes the fallback.
    async fn keep(&self, booted: &DeploymentId) -> Result<(), OsError>;

    /// Discards the staged deployment, locked or not, and one whose boot has failed, with the image that was fetched
    /// for it. It is not an error if there is none.
    async fn discard(&self) -> Result<(), OsError>;

    /// Selects `to` for the next boot and every following one: the fallback, or the booted deployment, which cancels
    /// a rollback. Discards the staged deployment.
    async fn roll_back(&self, to: &DeploymentId) -> Result<(), OsError>;
}
