//! Manages the operating system as a whole: image, kernel arguments, kernel type, and extensions.
//!
//! Hosts differ in their boot loader and in who makes their tree. There is an [`OsProvider`] for packages with GRUB,
//! for packages with systemd-boot, and for OSTree with GRUB, which includes hosts with bootc and rpm-ostree. The
//! contract of all providers is in `tests/os/contract.rs`, and a new provider must pass that suite. Hosts without a
//! provider report only their kind, and a plan refuses every change of the operating system with a named reason.
//!
//! The terms are ostree's: a *deployment* is a bootable tree with its kernel and arguments; *booted* is the running
//! one, *staged* the one prepared for the next boot, *fallback* the previous one. A staged deployment is *locked* until
//! it is unlocked: no boot enters it, whatever triggers the boot. Once unlocked, one boot enters it; it stays only if it
//! is *kept* in that boot.

mod boot_entry;
mod deployment;
mod grub;
mod host_command;
mod host_detection;
mod kept_arguments;
mod kernel_argument_edit;
mod kernel_install_cmdline;
mod ostree;
mod provider;
mod rpm_ostree;
mod systemd_boot;
mod trial_arguments;

pub use self::{
    deployment::{Deployment, DeploymentId, Deployments, DesiredDeployment, StagedDeployment},
    grub::GrubProvider,
    host_command::{BackgroundError, HostCommand, OutputFiles, UNKILLABLE_LIMIT},
    host_detection::host_kind,
    kernel_argument_edit::KernelArgumentEdit,
    ostree::OstreeProvider,
    provider::{FetchProgress, FetchedImage, OsError, OsProvider, ProviderStep},
    rpm_ostree::{PackageChange, RpmOstree, TransactionKind},
    systemd_boot::SystemdBootProvider,
};
use std::{collections::BTreeSet, sync::Arc};

use machinist_base::{abs_path::AbsPath, error_chain::chain, reason::Reason};
use machinist_ignition::{KernelCommandLine, Refusal};
use machinist_plan::{HostKind, KernelType, OsCapabilities, OsFacts, OsUpdate, ProviderObstacle};
use machinist_rootfs::{Root, RootError};

/// Maximum length of /proc/cmdline; the kernel limits it to 4 KiB on most architectures.
const MAX_COMMAND_LINE_BYTES: u64 = 64 << 10;

/// Only aarch64 has kernels with 64 KiB pages.
const HAS_LARGE_PAGES: bool = cfg!(target_arch = "aarch64");

/// The built-in providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BuiltIn {
    Grub,
    SystemdBoot,
    Ostree,
}

impl BuiltIn {
    /// The provider for a kind of host; `None` if there is none.
    fn of(host: HostKind, root: &Root) -> Option<Self> {
        match host {
            HostKind::Packages if systemd_boot::is_booted(root) => Some(Self::SystemdBoot),
            HostKind::Packages => Some(Self::Grub),
            HostKind::Ostree | HostKind::Bootc | HostKind::RpmOstree => Some(Self::Ostree),
            HostKind::Unknown => None,
        }
    }
}

/// Returns what can be changed in the operating system below `root`, the only place that decides it. An offline root has no
/// boot loader that runs, so nothing can be changed there.
pub fn capabilities(root: &Root) -> OsCapabilities {
    let none = OsCapabilities::without_provider(host_kind(root));
    if !root.is_live() {
        let obstacle = Some(ProviderObstacle::OfflineRoot);
        return OsCapabilities { obstacle, ..none };
    }
    let (obstacle, capabilities) = match BuiltIn::of(none.host, root) {
        Some(BuiltIn::SystemdBoot) => (systemd_boot::obstacle(root), systemd_boot::CAPABILITIES),
        Some(BuiltIn::Grub) => (grub::obstacle(root), grub::CAPABILITIES),
        Some(BuiltIn::Ostree) => (ostree::obstacle(root), ostree::capabilities(root)),
        None => return none,
    };
    match obstacle {
        None => capabilities,
        obstacle => OsCapabilities { obstacle, ..none },
    }
}

/// Returns what can be changed now on a host where `known` could be changed when the process started: an administrator may
/// have removed an obstacle since. Returns `known` if the deployments can no longer be read, since another program may be
/// writing their files; [`refusal`] then refuses the plan for a while.
pub fn current_capabilities(root: &Root, known: OsCapabilities) -> OsCapabilities {
    let now = capabilities(root);
    let is_unreadable = matches!(
        now.obstacle,
        Some(ProviderObstacle::OtherMenu | ProviderObstacle::UnusualBootEntry)
    );
    match is_unreadable && known.has_provider() {
        true => known,
        false => now,
    }
}

/// Returns what a plan needs to know about image and extensions of the booted deployment, and about the desired image if
/// it has been fetched. The other facts are empty.
pub(crate) fn facts(
    root: &Root,
    can: OsCapabilities,
    desired: Option<&str>,
    adopted_packages: BTreeSet<String>,
) -> OsFacts {
    if !(can.image || can.extensions) || BuiltIn::of(can.host, root) != Some(BuiltIn::Ostree) {
        return OsFacts::default();
    }
    let facts = ostree::facts(root, desired, adopted_packages);
    OsFacts {
        extensions: facts.extensions.filter(|_| can.extensions),
        ..facts
    }
}

/// Returns why the deployment of a plan cannot be staged on this host, which the plan must know before the node is
/// drained.
pub fn refusal(root: &Root, can: OsCapabilities, update: &OsUpdate) -> Option<Refusal> {
    if !can.has_provider() {
        return None;
    }
    let kernel_type = update.packages.as_ref().map(|all| all.kernel_type);
    if kernel_type == Some(KernelType::LargePages) && !HAS_LARGE_PAGES {
        let message = format!("kernelType {} needs aarch64", KernelType::LargePages);
        let refusal = Refusal::new(Reason::NoProviderForOSImage, message);
        return Some(refusal.field("kernelType"));
    }
    let wanted = update.clone().into();
    let checked = match BuiltIn::of(can.host, root)? {
        BuiltIn::SystemdBoot => systemd_boot::check(root, &wanted),
        BuiltIn::Grub => grub::check(root, &wanted),
        BuiltIn::Ostree => ostree::check(root, &wanted),
    };
    let error = checked.err()?;
    let has_same_arguments = update.remove_arguments == update.append_arguments;
    let (reason, field) = match (&update.image, &update.packages) {
        (Some(_), _) => (Reason::NoProviderForOSImage, "osImageURL"),
        (None, Some(_)) if has_same_arguments => (Reason::NoProviderForExtensions, "extensions"),
        (None, _) => (Reason::NoProviderForKernelArguments, "kernelArguments"),
    };
    // Another program may be writing the boot loader's files.
    let reason = match error.is_retryable() {
        true => Reason::OSStepFailed,
        false => reason,
    };
    Some(Refusal::new(reason, chain(&error)).field(field))
}

/// Reads the running kernel's arguments, without those that a trial of a deployment adds; empty if the root has no /proc.
pub(crate) fn running_arguments(root: &Root) -> Result<KernelCommandLine, RootError> {
    Ok(trial_arguments::without_trial(&command_line(root)?).0)
}

/// Whether the machine runs on a trial.
pub(crate) fn is_trial_running(root: &Root) -> bool {
    command_line(root).is_ok_and(|running| trial_arguments::without_trial(&running).1)
}

/// Whether the machine runs on the trial with this identifier, also with arguments that a person has edited in the menu
/// of the boot loader.
pub(crate) fn is_running(root: &Root, trial: &str) -> bool {
    command_line(root).is_ok_and(|running| trial_arguments::trial_id(&running) == Some(trial))
}

fn command_line(root: &Root) -> Result<KernelCommandLine, RootError> {
    let Ok(path) = AbsPath::new("/proc/cmdline") else {
        return Ok(KernelCommandLine::default());
    };
    match root.read(&path, MAX_COMMAND_LINE_BYTES) {
        Ok(bytes) => Ok(KernelCommandLine::parse(&String::from_utf8_lossy(&bytes))),
        Err(error) if error.is_not_found() => Ok(KernelCommandLine::default()),
        Err(error) => Err(error),
    }
}

/// Discards the staged deployment, if there is one. A boot loader that cannot be read has none.
pub async fn discard_staged(provider: &dyn OsProvider) -> Result<(), OsError> {
    match provider.observe().await {
        Ok(seen) if seen.staged.is_some() => provider.discard().await,
        _ => Ok(()),
    }
}

/// Discards the staged deployment and removes what no deployment needs, before machinist leaves the host. A host is usable
/// without machinist even if images or files of the boot loader stay.
pub async fn leave_host(provider: &dyn OsProvider) -> Result<(), OsError> {
    discard_staged(provider).await?;
    if let Err(error) = provider.clean_up().await {
        tracing::warn!(reason = %error.reason(), "{}", chain(&error));
    }
    Ok(())
}

/// Returns the built-in provider of the host below `root`; `None` if this kind of host has none. A host with an obstacle
/// has one too: a trial may come up without /boot, and the machine must be able to return from it.
pub fn provider(
    root: &Root,
    commands: impl HostCommand + RpmOstree,
) -> Option<Arc<dyn OsProvider>> {
    let root = root.clone();
    Some(match BuiltIn::of(host_kind(&root), &root)? {
        BuiltIn::SystemdBoot => Arc::new(SystemdBootProvider::new(root, commands)),
        BuiltIn::Grub => Arc::new(GrubProvider::new(root, commands)),
        BuiltIn::Ostree => Arc::new(OstreeProvider::new(root, commands)),
    })
}
