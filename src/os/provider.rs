//! What the update needs of whoever changes the operating system, and nothing more.

use std::{error::Error, fmt, future::Future, time::Duration};

use super::{DeploymentId, Deployments, Wanted};
use crate::{
    plan::{Image, OsCapabilities},
    reason::Reason,
};

/// How long one step may take. Images are gigabytes: twenty minutes over a slow line are no failure.
pub const STEP_LIMIT: Duration = Duration::from_secs(60 * 60);

/// One thing that a provider does, as errors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// [`Provider::observe`].
    Observe,
    /// [`Provider::fetch`].
    Fetch,
    /// [`Provider::stage`].
    Stage,
    /// [`Provider::unlock`].
    Unlock,
    /// [`Provider::discard`].
    Discard,
    /// [`Provider::roll_back`].
    RollBack,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Observe => "look at the deployments",
            Self::Fetch => "fetch the OS image",
            Self::Stage => "stage a deployment",
            Self::Unlock => "unlock the staged deployment",
            Self::Discard => "discard the staged deployment",
            Self::RollBack => "roll back to the deployment before",
        })
    }
}

/// Why a step was not done. Whatever it was, the booted deployment and the fallback are as they were.
#[derive(Debug, thiserror::Error)]
pub enum OsError {
    /// The image is not to be had, or not now.
    #[error("cannot fetch the OS image {image}")]
    Unreachable {
        /// Which.
        image: Image,
        /// Whether the registry may have it later: not when it says that there is no such image.
        again: bool,
        /// What the registry or the way there answered.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// It took longer than it may.
    #[error("cannot {step}: it took longer than {} seconds", .limit.as_secs())]
    TimedOut {
        /// What.
        step: Step,
        /// How long it may take.
        limit: Duration,
    },
    /// No deployment of that name is where the step needs it.
    #[error("cannot {step}: {id} is not there")]
    Gone {
        /// What.
        step: Step,
        /// Which.
        id: DeploymentId,
    },
    /// The host's program refused or failed.
    #[error("cannot {step}")]
    Failed {
        /// What.
        step: Step,
        /// Whether the same may succeed later.
        again: bool,
        /// What it answered.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl OsError {
    /// Whether the same may succeed later.
    pub fn again(&self) -> bool {
        match self {
            Self::Unreachable { again, .. } | Self::Failed { again, .. } => *again,
            Self::TimedOut { .. } => true,
            Self::Gone { .. } => false,
        }
    }

    /// The code that status and metrics carry.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Unreachable { .. } => Reason::ImageUnreachable,
            Self::TimedOut { .. } => Reason::OSStepTimeout,
            Self::Gone { .. } | Self::Failed { .. } => Reason::OSStepFailed,
        }
    }
}

/// What is known of an image once it is on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Its version, where it has one; a plan refuses a lower one than the booted.
    pub version: Option<String>,
}

/// Who changes the operating system of one kind of host.
///
/// Every step may be repeated, and by another process than the one that began: what was done is read from the host
/// and never remembered. A step that fails or is broken off has left the booted deployment and the fallback alone.
/// `tests/os/contract.rs` says all of this as facts that each provider is held against.
pub trait Provider: Send + Sync + 'static {
    /// What it can change, and of which kind of host.
    const CAN: OsCapabilities;

    /// The deployments as they are.
    fn observe(&self) -> impl Future<Output = Result<Deployments, OsError>> + Send;

    /// Brings an image onto the host, so that staging needs no network any more: before anything is drained.
    fn fetch(
        &self,
        image: &Image,
        limit: Duration,
    ) -> impl Future<Output = Result<Fetched, OsError>> + Send;

    /// Makes a deployment for the next boot, locked, in the place of any that was staged before, and says its
    /// name; none where the booted one is as asked: then nothing is staged afterwards. One that is staged already
    /// as asked stays as it is, its lock included.
    fn stage(
        &self,
        wanted: &Wanted,
        limit: Duration,
    ) -> impl Future<Output = Result<Option<DeploymentId>, OsError>> + Send;

    /// Lets the next orderly boot lead into the staged deployment, which must be this one.
    fn unlock(&self, staged: &DeploymentId) -> impl Future<Output = Result<(), OsError>> + Send;

    /// Drops what is staged, locked or not. Nothing staged is no error.
    fn discard(&self) -> impl Future<Output = Result<(), OsError>> + Send;

    /// Lets the next boot lead into `to`, which is the fallback, or the booted one, which takes a rollback back. What
    /// is staged is dropped.
    fn roll_back(&self, to: &DeploymentId) -> impl Future<Output = Result<(), OsError>> + Send;
}
