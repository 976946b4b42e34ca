//! What is observed of the operating system, and what is asked of it.

use std::{collections::BTreeSet, fmt};

use super::KernelArguments;
use crate::{
    machine_config::KernelCommandLine,
    plan::{Image, OsFacts},
};

/// The name that a provider gives a deployment: the same from the staging until it is gone, across boots.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeploymentId(String);

impl DeploymentId {
    /// Whatever the provider calls it.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// As the journal keeps it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeploymentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which build of the kernel runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelType {
    /// The image's own.
    #[default]
    Default,
    /// `PREEMPT_RT`.
    Realtime,
    /// With pages of 64 KiB.
    LargePages,
}

/// One bootable tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// Its name.
    pub id: DeploymentId,
    /// The image it was made from; none for one made from packages.
    pub image: Option<Image>,
    /// The image's version, where it has one.
    pub version: Option<String>,
    /// The arguments that its kernel is or would be given, in order.
    pub kernel_arguments: KernelCommandLine,
    /// Its kernel.
    pub kernel_type: KernelType,
    /// The extensions in it.
    pub extensions: BTreeSet<String>,
}

/// A deployment that is ready for the next boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// The deployment.
    pub deployment: Deployment,
    /// Whether it is finalisation-locked: as long as it is, no boot leads into it.
    pub locked: bool,
}

/// The deployments of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployments {
    /// The one that runs.
    pub booted: Deployment,
    /// The one that was made ready.
    pub staged: Option<Staged>,
    /// The one that [`Provider::roll_back`](super::Provider::roll_back) leads to: what ran before.
    pub fallback: Option<Deployment>,
}

impl Deployments {
    /// What a plan must know of the booted one. Its arguments are not among it: those in force are the
    /// running kernel's own (`/proc/cmdline`).
    pub fn facts(&self, offered: Option<&str>) -> OsFacts {
        OsFacts {
            image: self.booted.image.as_ref().map(ToString::to_string),
            version: self.booted.version.clone(),
            offered: offered.map(str::to_owned),
            ..OsFacts::default()
        }
    }
}

/// What is asked of the operating system, always as seen from the booted deployment: asking the same twice is
/// asking once, whatever was staged in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The image; none stays on the booted one's.
    pub image: Option<Image>,
    /// What changes of the booted one's arguments.
    pub kernel_arguments: KernelArguments,
    /// The kernel.
    pub kernel_type: KernelType,
    /// All extensions that are to be there.
    pub extensions: BTreeSet<String>,
}
