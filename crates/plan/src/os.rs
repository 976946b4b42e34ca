//! Plans the parts of a config that only an operating-system provider can change (image, kernel,
//! extensions), and refuses those that no host supports.

mod disk_layout;
mod host_kind;
mod image;
mod image_ref;
mod kernel_arguments;
mod kubelet_package;
mod packages;
mod version;
mod warnings;

use std::collections::BTreeSet;

pub(super) use self::warnings::warnings;
pub use self::{
    host_kind::{BaseConfig, HostKind, OsCapabilities, OsFacts, OsUpdate, ProviderObstacle},
    image_ref::{ImageRef, ImageRefError, ImageTransport},
    kernel_arguments::TRIAL_ARGUMENT,
    packages::{
        KernelType, OsPackages, extension_names, extension_packages, optional_extension_packages,
    },
    version::is_lower,
};
use super::{
    ChangeKind, MachineFacts,
    desired_tree::{DesiredEntry, DesiredTree},
};
use machinist_base::reason::Reason;
use machinist_ignition::{EntryKind, EntryOrigin, MachineConfig, Refusal};

/// One difference in the operating system.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OsChange {
    pub(super) entry: DesiredEntry,
    pub(super) change: ChangeKind,
    part: OsPart,
    /// The host has it by itself: it is not from machinist, which does not remove it.
    of_host: bool,
}

/// The part of the operating system that differs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum OsPart {
    Image,
    ExtensionsImage,
    KernelArguments,
    KernelType,
    Extensions,
    /// FIPS mode is set up when a machine is installed (initramfs, keys): no provider changes it.
    Fips,
}

impl OsPart {
    const fn words(self) -> &'static str {
        match self {
            Self::Image => "the OS image",
            Self::ExtensionsImage => "the OS extensions image",
            Self::KernelArguments => "kernel arguments",
            Self::KernelType => "the kernel type",
            Self::Extensions => "OS extensions",
            Self::Fips => "FIPS mode",
        }
    }

    /// What an image-based host needs for it besides OSTree.
    const fn program(self) -> Option<&'static str> {
        match self {
            Self::Image => Some("libostree's extension for container images or skopeo"),
            Self::ExtensionsImage | Self::KernelType | Self::Extensions => Some("rpm-ostree"),
            Self::KernelArguments | Self::Fips => None,
        }
    }

    const fn kind(self) -> EntryKind {
        match self {
            Self::Image | Self::ExtensionsImage | Self::KernelType => EntryKind::OSImage,
            Self::KernelArguments | Self::Fips => EntryKind::KernelArgument,
            Self::Extensions => EntryKind::Extension,
        }
    }

    /// The kind under which a config notes its origin.
    const fn origin_kind(self) -> EntryKind {
        match self {
            Self::ExtensionsImage => EntryKind::Extension,
            other => other.kind(),
        }
    }

    const fn can_be_changed(self, by: OsCapabilities) -> bool {
        match self {
            Self::Image => by.image,
            Self::KernelArguments => by.kernel_arguments,
            Self::KernelType => by.kernel_type,
            Self::Extensions | Self::ExtensionsImage => by.extensions,
            Self::Fips => false,
        }
    }
}

impl OsChange {
    /// Whether the change would remove something that machinist has not added: a kernel argument that was already
    /// running when a config first mentioned it stays, like a file that already matched.
    fn removes_preexisting(&self, capabilities: OsCapabilities) -> bool {
        let of_host = self.of_host || !self.part.can_be_changed(capabilities);
        self.change == ChangeKind::Remove && of_host
    }

    fn new(part: OsPart, name: &str, change: ChangeKind) -> Self {
        Self {
            entry: DesiredEntry::new(part.kind(), name, &EntryOrigin::default()),
            change,
            part,
            of_host: false,
        }
    }

    /// The refusal if the host's provider does not support the change, or if there is no provider.
    fn refusal(&self, capabilities: OsCapabilities) -> Option<Refusal> {
        if self.part.can_be_changed(capabilities) {
            return self.unknown_extension();
        }
        let what = match self.part {
            // The kind of the entry is the OS image.
            OsPart::KernelType => self.entry.name.to_string(),
            OsPart::ExtensionsImage => format!("OS extensions image {}", self.entry.name),
            _ => self.entry.to_string(),
        };
        let message = match self.part {
            OsPart::Fips => {
                format!("{what}: FIPS mode can only be set when a machine is installed")
            }
            part => format!("{what}: {}", capabilities.missing(part)),
        };
        let reason = match self.entry.kind {
            EntryKind::KernelArgument => Reason::NoProviderForKernelArguments,
            EntryKind::Extension => Reason::NoProviderForExtensions,
            _ => Reason::NoProviderForOSImage,
        };
        Some(Refusal::new(reason, message).at(&self.entry.origin))
    }

    fn unknown_extension(&self) -> Option<Refusal> {
        let name = &self.entry.name;
        let is_added = self.part == OsPart::Extensions && self.change == ChangeKind::Create;
        if !is_added || extension_packages(name).is_some() {
            return None;
        }
        let message = format!("{name:?} is not a known extension");
        let known: Vec<&str> = extension_names().collect();
        let refusal = Refusal::new(Reason::NoProviderForExtensions, message);
        let refusal = refusal.at(&self.entry.origin);
        Some(refusal.expected(format!("one of {}", known.join(", "))))
    }
}

/// All refusals about the operating system, of this host or of any. `changes` are the planned ones;
/// the layouts are those of the two configs.
pub(super) fn refusals(
    changes: &[OsChange],
    [from, to]: [&MachineConfig; 2],
    layouts: [&DesiredTree; 2],
    observed: &MachineFacts,
    capabilities: OsCapabilities,
) -> Vec<Refusal> {
    let known = base(from, observed);
    let missing = changes.iter().filter_map(|c| c.refusal(capabilities));
    let mut refusals: Vec<Refusal> = missing.collect();
    refusals.extend(image::unusable_references(known, to));
    refusals.extend(disk_layout::refusals(known, to, &observed.base));
    refusals.extend(kernel_arguments::refusals(
        [known, to],
        &observed.kernel_arguments,
    ));
    refusals.extend(downgrades(changes, [from, to], &observed.os));
    if capabilities.host == HostKind::Packages {
        refusals.extend(kubelet_package::refusals(to, layouts, observed));
    }
    refusals
}

/// The config that changes are compared with.
fn base<'a>(from: &'a MachineConfig, observed: &'a MachineFacts) -> &'a MachineConfig {
    match &observed.base {
        BaseConfig::Declared(declared) => &declared.config,
        BaseConfig::Config | BaseConfig::Unknown => from,
    }
}

/// Refuses downgrades below the installed release or image. A rollback makes no plan, so this never
/// blocks a return to the base config; the config that is already applied is not checked again.
fn downgrades(changes: &[OsChange], [from, to]: [&MachineConfig; 2], os: &OsFacts) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let release = to.release.as_ref();
    if release.is_some_and(|release| release.may_be_lower) {
        return refusals;
    }
    let mut refuse = |what: &str, wanted: &str, installed: &str, origin: &EntryOrigin| {
        let message = format!("{what} {wanted} is lower than the installed {installed}");
        let refusal = Refusal::new(Reason::DowngradeRefused, message).at(origin);
        refusals.push(refusal.expected(
            "a version that is not lower, or the annotation machinist.dev/allow-downgrade: \"true\"",
        ));
    };
    if let (Some(release), Some(installed)) = (release, &os.release)
        && let Some(version) = &release.version
        && is_lower(version, installed)
        // The digest is costly, so compute it last.
        && machinist_ignition::digest(from) != machinist_ignition::digest(to)
    {
        refuse("the release", version, installed, &release.origin);
    }
    let image = changes.iter().find(|change| change.part == OsPart::Image);
    if let (Some(image), Some(offered), Some(installed)) = (image, &os.offered, &os.version)
        && is_lower(offered, installed)
    {
        refuse(
            "the OS image's version",
            offered,
            installed,
            &image.entry.origin,
        );
    }
    refusals
}

/// The origin of a part of the operating system in the config.
fn origin(config: &MachineConfig, kind: EntryKind, name: &str) -> EntryOrigin {
    let key = (kind, name.to_owned());
    config.os_origins.0.get(&key).cloned().unwrap_or_default()
}

/// The differences between the running and the desired operating system, without those that stay.
pub(super) fn changes(
    from: &MachineConfig,
    to: &MachineConfig,
    observed: &MachineFacts,
    capabilities: OsCapabilities,
) -> Vec<OsChange> {
    let mut changes = all_changes(from, to, observed, capabilities);
    changes.retain(|change| !change.removes_preexisting(capabilities));
    for change in &mut changes {
        change.entry.origin = origin(to, change.part.origin_kind(), &change.entry.name);
    }
    changes
}

fn all_changes(
    from: &MachineConfig,
    to: &MachineConfig,
    observed: &MachineFacts,
    capabilities: OsCapabilities,
) -> Vec<OsChange> {
    let from = base(from, observed);
    let running = &observed.kernel_arguments;
    let mut changes = kernel_arguments::changes(from, to, observed, capabilities);
    // If a provider reports the running image, that is authoritative.
    let runs = observed
        .os
        .image
        .as_deref()
        .or(from.os_image_url.as_deref());
    if let Some(image) = to.os_image_url.as_deref()
        && !runs.is_some_and(|runs| image::is_same(runs, image))
        // A tag does not identify the image that runs.
        && (ImageRef::parse(image).is_ok() || from.os_image_url.as_deref() != Some(image))
    {
        changes.push(OsChange::new(OsPart::Image, image, ChangeKind::Modify));
    }
    if let Some(image) = to.extensions_image.as_deref()
        && from.extensions_image.as_deref() != Some(image)
        // Otherwise the repository is not used.
        && !(capabilities.extensions && packages(to).is_empty())
    {
        let change = OsChange::new(OsPart::ExtensionsImage, image, ChangeKind::Modify);
        changes.push(change);
    }
    changes.extend(extensions(from, to, observed));
    changes.extend(kernel_type_change(from, to, observed));
    let fips_runs = observed.os.fips || running.iter().any(|one| one.as_str() == "fips=1");
    if from.fips != to.fips && to.fips != fips_runs {
        let change = if to.fips {
            ChangeKind::Create
        } else {
            ChangeKind::Remove
        };
        changes.push(OsChange::new(OsPart::Fips, "fips=1", change));
    }
    changes
}

fn kernel_type(config: &MachineConfig) -> KernelType {
    let name = config.kernel_type.as_deref().unwrap_or_default();
    KernelType::parse(name).unwrap_or_default()
}

fn kernel_type_change(
    from: &MachineConfig,
    to: &MachineConfig,
    observed: &MachineFacts,
) -> Option<OsChange> {
    let os = &observed.os;
    let (before, after) = (kernel_type(from), kernel_type(to));
    let runs = os.kernel_type.as_deref().and_then(KernelType::parse);
    if before == after || runs == Some(after) {
        return None;
    }
    let of_host = os.extensions.is_some() && !os.has_own_kernel_type;
    Some(match after {
        KernelType::Default if of_host => OsChange {
            of_host,
            ..OsChange::new(
                OsPart::KernelType,
                &format!("kernelType {before}"),
                ChangeKind::Remove,
            )
        },
        after => OsChange::new(
            OsPart::KernelType,
            &format!("kernelType {after}"),
            ChangeKind::Modify,
        ),
    })
}

/// The packages of a config.
fn packages(config: &MachineConfig) -> OsPackages {
    let repository = config.extensions_image.as_deref();
    OsPackages {
        kernel_type: kernel_type(config),
        extensions: config.extensions.iter().cloned().collect(),
        repository: repository.and_then(|image| ImageRef::parse(image).ok()),
        adopted: BTreeSet::new(),
    }
}

/// The packages that a config adds to the image, and those that its kernel replaces, each of these after `-`.
pub fn package_names(config: &MachineConfig) -> BTreeSet<String> {
    let packages = packages(config);
    let removed = packages.replaced().iter().map(|name| format!("-{name}"));
    packages.names().into_iter().chain(removed).collect()
}

/// What the provider must change for these changes; `None` if it must change nothing.
pub(super) fn update(
    changes: &[OsChange],
    to: &MachineConfig,
    observed: &MachineFacts,
    capabilities: OsCapabilities,
) -> Option<OsUpdate> {
    let is_changed = |part| changes.iter().any(|change| change.part == part);
    let image = to.os_image_url.as_deref();
    let image = image.filter(|_| is_changed(OsPart::Image));
    let image = image.and_then(|image| ImageRef::parse(image).ok());
    let others = [
        OsPart::KernelArguments,
        OsPart::KernelType,
        OsPart::Extensions,
        OsPart::ExtensionsImage,
    ];
    if image.is_none() && !others.into_iter().any(is_changed) {
        return None;
    }
    let (remove_arguments, append_arguments) = kernel_arguments::edits(to, observed, capabilities);
    Some(OsUpdate {
        image,
        remove_arguments,
        append_arguments,
        packages: capabilities.extensions.then(|| OsPackages {
            adopted: observed.os.adopted_packages.clone(),
            ..packages(to)
        }),
    })
}

fn extensions(from: &MachineConfig, to: &MachineConfig, observed: &MachineFacts) -> Vec<OsChange> {
    let os = &observed.os;
    let after: BTreeSet<&String> = to.extensions.iter().collect();
    let mut before: BTreeSet<&String> = from.extensions.iter().collect();
    // If a provider reports what is installed, that is authoritative.
    let present = match &os.extensions {
        Some(present) => present.iter().collect(),
        None => before.clone(),
    };
    // An unknown one that was accepted before is no reason to refuse a config now.
    let is_new = |name: &&&String| extension_packages(name).is_some() || !before.contains(**name);
    let added: Vec<&String> = after.difference(&present).filter(is_new).copied().collect();
    before.retain(|name| present.contains(name));
    let change = |name: &str, change| OsChange::new(OsPart::Extensions, name, change);
    let added = added.into_iter();
    let added = added.map(|name| change(name, ChangeKind::Create));
    let removed = before.difference(&after).map(|name| OsChange {
        of_host: os.extensions.is_some() && !os.own_extensions.contains(*name),
        ..change(name, ChangeKind::Remove)
    });
    added.chain(removed).collect()
}
