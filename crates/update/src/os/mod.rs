//! Manages the operating system as a whole: image, kernel arguments, kernel type, and extensions.
//!
//! Hosts differ in the program that changes these: bootc, rpm-ostree, or a package manager. Each kind of host has a
//! [`OsProvider`]. The contract of all providers is in `tests/os/contract.rs`, and a new provider must pass that
//! suite. The update does not stage deployments yet, so [`capabilities`] registers no provider and reports only the kind
//! of host, and a plan refuses every change of the operating system with a named reason.
//!
//! The terms are ostree's: a *deployment* is a bootable tree with its kernel and arguments; *booted* is the running
//! one, *staged* the one prepared for the next boot, *fallback* the previous one. A staged deployment is *locked* until
//! it is unlocked: no boot enters it, whatever triggers the boot. Once unlocked, one boot enters it; it stays only if it
//! is *kept* in that boot.

mod deployment;
mod grub;
mod host_command;
mod host_detection;
mod kernel_arguments;
mod provider;

pub use self::{
    deployment::{
        Deployment, DeploymentId, Deployments, DesiredDeployment, KernelType, StagedDeployment,
    },
    grub::GrubProvider,
    host_command::HostCommand,
    host_detection::host_kind,
    kernel_arguments::KernelArguments,
    provider::{FetchedImage, OsError, OsProvider, ProviderStep, STEP_TIMEOUT},
};
use machinist_plan::OsCapabilities;
use machinist_rootfs::Root;

/// Returns what can be changed in the operating system below `root`. This is the only place that decides it: a
/// built-in provider is registered here for its kind of host, with its [`OsProvider::capabilities`].
pub fn capabilities(root: &Root) -> OsCapabilities {
    OsCapabilities::without_provider(host_kind(root))
}
