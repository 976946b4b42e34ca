//! Manages the operating system as a whole: image, kernel arguments, kernel type, and extensions.
//!
//! Hosts differ in the program that changes these: bootc, rpm-ostree, or a package manager. Each kind of host has a
//! [`Provider`]. The contract of all providers is in `tests/os/contract.rs`, and a new provider must pass that
//! suite. No provider is built in yet, so [`capabilities`] reports only the kind of host, and a plan refuses
//! everything else with a named reason.
//!
//! The terms are ostree's: a *deployment* is a bootable tree with its kernel and arguments; *booted* is the running
//! one, *staged* the one prepared for the next boot, *fallback* the previous one. A staged deployment is
//! *finalisation-locked* until it is unlocked: no boot enters it, whatever triggers the boot.

mod arguments;
mod deployment;
mod detect;
mod provider;

pub use self::{
    arguments::KernelArguments,
    deployment::{Deployment, DeploymentId, Deployments, KernelType, Staged, Wanted},
    detect::host_kind,
    provider::{Fetched, OsError, Provider, STEP_LIMIT, Step},
};
use crate::{plan::OsCapabilities, root::Root};

/// Returns what can be changed in the operating system below `root`. This is the only place that decides it: a
/// built-in provider is registered here for its kind of host, with its [`Provider::CAN`].
pub fn capabilities(root: &Root) -> OsCapabilities {
    OsCapabilities::without_provider(host_kind(root))
}
