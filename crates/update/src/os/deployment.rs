//! Describes the deployments of the operating system and the deployment that a plan requests.

use std::{collections::BTreeSet, fmt};

use super::KernelArgumentEdit;
use machinist_ignition::KernelCommandLine;
use machinist_plan::{ImageRef, KernelType, OsPackages, OsUpdate};

/// The identifier that a provider gives a deployment. It stays the same across boots, from staging until the
/// deployment is removed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeploymentId(String);

impl DeploymentId {
    /// Wraps the provider's identifier.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// Returns the identifier as the journal stores it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeploymentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A bootable deployment: an OS tree with its kernel and arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// The provider's identifier.
    pub id: DeploymentId,
    /// The image from which it was created; `None` for a deployment that was built from packages.
    pub image: Option<ImageRef>,
    /// The image's version, if it has one.
    pub version: Option<String>,
    /// The kernel arguments with which it boots, in order.
    pub kernel_arguments: KernelCommandLine,
    /// Its kernel build.
    pub kernel_type: KernelType,
    /// The extensions that it contains.
    pub extensions: BTreeSet<String>,
}

impl Deployment {
    /// A deployment of which at most the image and the kernel arguments can be changed.
    pub(super) fn of_arguments(id: impl Into<String>, kernel_arguments: KernelCommandLine) -> Self {
        Self {
            id: DeploymentId::new(id),
            image: None,
            version: None,
            kernel_arguments,
            kernel_type: KernelType::Default,
            extensions: BTreeSet::new(),
        }
    }
}

/// A deployment that is ready for the next boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedDeployment {
    /// The deployment.
    pub deployment: Deployment,
    /// Whether it is locked: while it is, no boot enters it. Entering it locks it again, so that a staged deployment
    /// that is still unlocked after a boot means that the boot loader did not run.
    pub locked: bool,
    /// Whether another program has selected another deployment since a boot entered this one.
    pub is_deselected: bool,
}

/// The deployments of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployments {
    /// The running deployment.
    pub booted: Deployment,
    /// The deployment that is staged for the next boot.
    pub staged: Option<StagedDeployment>,
    /// The previous deployment, to which [`OsProvider::roll_back`](super::OsProvider::roll_back) returns.
    pub fallback: Option<Deployment>,
    /// The deployment that boots enter, apart from the one boot into an unlocked deployment. It differs from the
    /// booted one until that is kept, and after a rollback.
    pub next: DeploymentId,
}

/// The deployment that a plan requests, always relative to the booted one: repeating a request has the same result,
/// whatever was staged in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredDeployment {
    /// The image; `None` keeps the booted deployment's image.
    pub image: Option<ImageRef>,
    /// Changes to the booted deployment's kernel arguments.
    pub kernel_arguments: KernelArgumentEdit,
    /// The packages besides those of the image; `None` keeps those of the booted deployment.
    pub packages: Option<OsPackages>,
}

impl From<OsUpdate> for DesiredDeployment {
    fn from(update: OsUpdate) -> Self {
        Self {
            image: update.image,
            kernel_arguments: KernelArgumentEdit {
                remove: update.remove_arguments,
                append: update.append_arguments,
            },
            packages: update.packages,
        }
    }
}
