//! What only a provider for the operating system can change: image, kernel, extensions.

use std::collections::{BTreeMap, BTreeSet};

use super::{ChangeKind, Observed, desired::Entry};
use crate::{
    machine_config::{EntryKind, MachineConfig, Origin, Refusal},
    reason::Reason,
};

/// One difference of the operating system.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OsChange {
    pub(super) entry: Entry,
    pub(super) change: ChangeKind,
    what: &'static str,
}

impl OsChange {
    fn new(kind: EntryKind, name: &str, change: ChangeKind, what: &'static str) -> Self {
        Self {
            entry: Entry::new(kind, name, &Origin::default()),
            change,
            what,
        }
    }

    /// The refusal of a host that has no provider.
    pub(super) fn refusal(&self) -> Refusal {
        let message = format!(
            "{}: no provider on this host can change {}",
            self.entry, self.what
        );
        let reason = match self.entry.kind {
            EntryKind::KernelArgument => Reason::NoProviderForKernelArguments,
            EntryKind::Extension => Reason::NoProviderForExtensions,
            _ => Reason::NoProviderForOSImage,
        };
        Refusal::new(reason, message).at(&self.entry.origin)
    }
}

/// The differences between what runs and what is asked.
pub(super) fn changes(
    from: &MachineConfig,
    to: &MachineConfig,
    observed: &Observed,
) -> Vec<OsChange> {
    let mut changes = kernel_arguments(from, to, observed);
    if let Some(image) = to.os_image_url.as_deref()
        && from.os_image_url.as_deref() != Some(image)
    {
        changes.push(OsChange::new(
            EntryKind::OSImage,
            image,
            ChangeKind::Modify,
            "the OS image",
        ));
    }
    changes.extend(extensions(from, to));
    let kernel = |config: &MachineConfig| match config.kernel_type.as_deref() {
        None | Some("" | "default") => "default".to_owned(),
        Some(other) => other.to_owned(),
    };
    if kernel(from) != kernel(to) {
        let name = format!("kernelType {}", kernel(to));
        changes.push(OsChange::new(
            EntryKind::OSImage,
            &name,
            ChangeKind::Modify,
            "the kernel's type",
        ));
    }
    let fips_runs = observed
        .kernel_arguments
        .iter()
        .any(|argument| argument == "fips=1");
    if from.fips != to.fips && to.fips != fips_runs {
        let change = if to.fips {
            ChangeKind::Create
        } else {
            ChangeKind::Remove
        };
        changes.push(OsChange::new(
            EntryKind::KernelArgument,
            "fips=1",
            change,
            "FIPS mode",
        ));
    }
    for change in &mut changes {
        let key = (change.entry.kind, change.entry.name.clone());
        if let Some(origin) = to.os_origins.0.get(&key) {
            change.entry.origin = origin.clone();
        }
    }
    changes
}

/// Arguments asked for must run as often as they are asked for; those that leave must not.
fn kernel_arguments(
    from: &MachineConfig,
    to: &MachineConfig,
    observed: &Observed,
) -> Vec<OsChange> {
    let running = counts(&observed.kernel_arguments);
    let (before, after) = (counts(&from.kernel_arguments), counts(&to.kernel_arguments));
    let has = |map: &BTreeMap<&str, usize>, name| map.get(name).copied().unwrap_or_default();
    let change = |name: &str, change| {
        OsChange::new(EntryKind::KernelArgument, name, change, "kernel arguments")
    };
    let missing = after
        .iter()
        .filter(|(name, count)| has(&running, *name) < **count)
        .map(|(name, _)| change(name, ChangeKind::Create));
    let leaving = before
        .keys()
        .filter(|name| !after.contains_key(*name) && has(&running, *name) > 0)
        .map(|name| change(name, ChangeKind::Remove));
    missing.chain(leaving).collect()
}

fn counts(arguments: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for argument in arguments {
        *counts.entry(argument.as_str()).or_default() += 1;
    }
    counts
}

fn extensions(from: &MachineConfig, to: &MachineConfig) -> Vec<OsChange> {
    let (before, after): (BTreeSet<&String>, BTreeSet<&String>) = (
        from.extensions.iter().collect(),
        to.extensions.iter().collect(),
    );
    let change =
        |name: &str, change| OsChange::new(EntryKind::Extension, name, change, "OS extensions");
    let added = after
        .difference(&before)
        .map(|name| change(name, ChangeKind::Create));
    let removed = before
        .difference(&after)
        .map(|name| change(name, ChangeKind::Remove));
    added.chain(removed).collect()
}
