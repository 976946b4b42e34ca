//! What only a provider for the operating system can change: image, kernel, extensions; and what is
//! refused of them on every host.

mod arguments;
mod host;
mod image;
mod kubelet;
mod layout;
mod version;

use std::collections::BTreeSet;

pub use self::{
    host::{Base, HostKind, OsCapabilities, OsFacts},
    image::{Image, NotByDigest},
    version::is_lower,
};
use super::{
    ChangeKind, Observed,
    desired::{Entry, Layout},
};
use crate::{
    machine_config::{self, EntryKind, MachineConfig, Origin, Refusal},
    reason::Reason,
};

/// One difference of the operating system.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OsChange {
    pub(super) entry: Entry,
    pub(super) change: ChangeKind,
    part: Part,
}

/// Of which part of the operating system.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Image,
    ExtensionsImage,
    KernelArguments,
    KernelType,
    Extensions,
    /// What it needs is decided when a machine is installed (initramfs, keys): no provider changes it.
    Fips,
}

impl Part {
    const fn words(self) -> &'static str {
        match self {
            Self::Image => "the OS image",
            Self::ExtensionsImage => "the image of OS extensions",
            Self::KernelArguments => "kernel arguments",
            Self::KernelType => "the kernel's type",
            Self::Extensions => "OS extensions",
            Self::Fips => "FIPS mode",
        }
    }

    const fn kind(self) -> EntryKind {
        match self {
            Self::Image | Self::ExtensionsImage | Self::KernelType => EntryKind::OSImage,
            Self::KernelArguments | Self::Fips => EntryKind::KernelArgument,
            Self::Extensions => EntryKind::Extension,
        }
    }

    const fn can_be_changed(self, by: OsCapabilities) -> bool {
        match self {
            Self::Image | Self::ExtensionsImage => by.image,
            Self::KernelArguments => by.kernel_arguments,
            Self::KernelType => by.kernel_type,
            Self::Extensions => by.extensions,
            Self::Fips => false,
        }
    }
}

impl OsChange {
    /// Whether something that runs would be taken away which nobody here can have brought: an argument that
    /// was found running when a config first named it stays, as a file does that stood as asked.
    fn takes_away_what_was_found(&self, capabilities: OsCapabilities) -> bool {
        self.change == ChangeKind::Remove && !self.part.can_be_changed(capabilities)
    }

    fn new(part: Part, name: &str, change: ChangeKind) -> Self {
        Self {
            entry: Entry::new(part.kind(), name, &Origin::default()),
            change,
            part,
        }
    }

    /// The refusal of a host whose provider cannot do it, or that has none.
    fn refusal(&self, capabilities: OsCapabilities) -> Option<Refusal> {
        if self.part.can_be_changed(capabilities) {
            return None;
        }
        let message = format!(
            "{}: {}",
            self.entry,
            capabilities.missing(self.part.words())
        );
        let reason = match self.entry.kind {
            EntryKind::KernelArgument => Reason::NoProviderForKernelArguments,
            EntryKind::Extension => Reason::NoProviderForExtensions,
            _ => Reason::NoProviderForOSImage,
        };
        Some(Refusal::new(reason, message).at(&self.entry.origin))
    }
}

/// Everything about the operating system that this host, or any, does not allow. `changes` are those that
/// would be made; the layouts are those of the two configs.
pub(super) fn refusals(
    changes: &[OsChange],
    [from, to]: [&MachineConfig; 2],
    layouts: [&Layout; 2],
    observed: &Observed,
    capabilities: OsCapabilities,
) -> Vec<Refusal> {
    let known = base(from, observed);
    let missing = changes.iter().filter_map(|c| c.refusal(capabilities));
    let mut refusals: Vec<Refusal> = missing.collect();
    refusals.extend(by_tag(known, to));
    refusals.extend(layout::refusals(known, to, &observed.base));
    refusals.extend(arguments::impossible(
        [known, to],
        &observed.kernel_arguments,
    ));
    refusals.extend(downgrades(changes, [from, to], &observed.os));
    if capabilities.host == HostKind::Packages {
        refusals.extend(kubelet::refusals(to, layouts, observed));
    }
    refusals
}

/// A tag names another image tomorrow.
fn by_tag(from: &MachineConfig, to: &MachineConfig) -> Vec<Refusal> {
    let images = [
        (&from.os_image_url, &to.os_image_url),
        (&from.extensions_image, &to.extensions_image),
    ];
    let changed = images.into_iter().filter(|(before, after)| before != after);
    let refuse = |(_, image): (_, &Option<String>)| {
        let image = image.as_deref()?;
        let error = Image::parse(image).err()?;
        let refusal = Refusal::new(Reason::ImageNotByDigest, error.to_string());
        let refusal = refusal.expected("registry/name@sha256:…");
        Some(refusal.at(&origin(to, EntryKind::OSImage, image)))
    };
    changed.filter_map(refuse).collect()
}

/// The config that changes are judged against.
fn base<'a>(from: &'a MachineConfig, observed: &'a Observed) -> &'a MachineConfig {
    match &observed.base {
        Base::Declared(declared) => &declared.config,
        Base::Config | Base::Unknown => from,
    }
}

/// What cannot be compared, as a warning.
pub(super) fn warning(to: &MachineConfig, observed: &Observed) -> Option<String> {
    layout::warning(to, &observed.base)
}

/// The refusals of what is lower than what is installed. Undo is no plan, so that going back to the config
/// before is never held up by this; configs that are on the machine are not judged again.
fn downgrades(changes: &[OsChange], [from, to]: [&MachineConfig; 2], os: &OsFacts) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let release = to.release.as_ref();
    if release.is_some_and(|release| release.may_be_lower) {
        return refusals;
    }
    let mut refuse = |what: &str, wanted: &str, installed: &str, origin: &Origin| {
        let message = format!("{what} {wanted} is lower than the installed {installed}");
        let refusal = Refusal::new(Reason::DowngradeRefused, message).at(origin);
        refusals.push(refusal.expected(
            "a version that is not lower, or the annotation machinist.dev/allow-downgrade: \"true\"",
        ));
    };
    if let (Some(release), Some(installed)) = (release, &os.release)
        && is_lower(&release.version, installed)
        // Costly, and asked only where the answer counts.
        && machine_config::digest(from) != machine_config::digest(to)
    {
        refuse("the release", &release.version, installed, &release.origin);
    }
    let image = changes.iter().find(|change| change.part == Part::Image);
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

/// Where a part of the operating system is asked for.
fn origin(config: &MachineConfig, kind: EntryKind, name: &str) -> Origin {
    let key = (kind, name.to_owned());
    config.os_origins.0.get(&key).cloned().unwrap_or_default()
}

/// The differences between what runs and what is asked.
pub(super) fn changes(
    from: &MachineConfig,
    to: &MachineConfig,
    observed: &Observed,
    capabilities: OsCapabilities,
) -> Vec<OsChange> {
    let from = base(from, observed);
    let running = &observed.kernel_arguments;
    let mut changes = arguments::changes(from, to, running);
    // The machine is the truth, where a provider can tell it.
    let runs = observed
        .os
        .image
        .as_deref()
        .or(from.os_image_url.as_deref());
    if let Some(image) = to.os_image_url.as_deref()
        && runs != Some(image)
    {
        changes.push(OsChange::new(Part::Image, image, ChangeKind::Modify));
    }
    if let Some(image) = to.extensions_image.as_deref()
        && from.extensions_image.as_deref() != Some(image)
    {
        let change = OsChange::new(Part::ExtensionsImage, image, ChangeKind::Modify);
        changes.push(change);
    }
    changes.extend(extensions(from, to));
    let kernel = |config: &MachineConfig| match config.kernel_type.as_deref() {
        None | Some("" | "default") => "default".to_owned(),
        Some(other) => other.to_owned(),
    };
    let runs = observed.os.kernel_type.as_ref();
    if kernel(from) != kernel(to) && runs != Some(&kernel(to)) {
        let name = format!("kernelType {}", kernel(to));
        changes.push(OsChange::new(Part::KernelType, &name, ChangeKind::Modify));
    }
    let fips_runs = observed.os.fips || running.iter().any(|one| one.as_str() == "fips=1");
    if from.fips != to.fips && to.fips != fips_runs {
        let change = if to.fips {
            ChangeKind::Create
        } else {
            ChangeKind::Remove
        };
        changes.push(OsChange::new(Part::Fips, "fips=1", change));
    }
    changes.retain(|change| !change.takes_away_what_was_found(capabilities));
    for change in &mut changes {
        change.entry.origin = origin(to, change.entry.kind, &change.entry.name);
    }
    changes
}

fn extensions(from: &MachineConfig, to: &MachineConfig) -> Vec<OsChange> {
    let (before, after): (BTreeSet<&String>, BTreeSet<&String>) = (
        from.extensions.iter().collect(),
        to.extensions.iter().collect(),
    );
    let change = |name: &str, change| OsChange::new(Part::Extensions, name, change);
    let added = after
        .difference(&before)
        .map(|name| change(name, ChangeKind::Create));
    let removed = before
        .difference(&after)
        .map(|name| change(name, ChangeKind::Remove));
    added.chain(removed).collect()
}
