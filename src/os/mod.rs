//! The operating system as a whole: image, kernel arguments, the kernel's type, extensions.
//!
//! Hosts differ in who changes these: bootc, rpm-ostree, packages. Each kind has a [`Provider`]; what all of
//! them must keep is in `tests/os/contract.rs`, and a new one is shown by running that suite over it. None is
//! built in yet, so that [`capabilities`] names the kind of host and a plan refuses the rest by name.
//!
//! The words are the field's: a *deployment* is one bootable tree with its kernel and arguments; *booted* is the one
//! that runs, *staged* the one made ready for the next boot, *fallback* the one before. A staged deployment is
//! *finalisation-locked* until it is unlocked: no boot leads into it, whoever orders that boot and why.

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

/// What can be changed of the operating system below `root`. The one place that says it: a provider that is
/// built in answers here for its kind of host, by its [`Provider::CAN`].
pub fn capabilities(root: &Root) -> OsCapabilities {
    OsCapabilities::without_provider(host_kind(root))
}
