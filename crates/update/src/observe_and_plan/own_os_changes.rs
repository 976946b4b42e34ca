//! What machinist, or another daemon whose work it continues, has added to the operating system.

use std::collections::BTreeSet;

use crate::journal::{Journal, OsTrial, OsTrialState};
use machinist_ignition::KernelCommandLine;
use machinist_plan::BaseConfig;

/// What the config of another daemon has added to the operating system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdoptedOsChanges {
    kernel_arguments: String,
    packages: BTreeSet<String>,
}

impl AdoptedOsChanges {
    /// `None` if machinist has applied a config already, or no other daemon has.
    pub(super) fn of(base: &BaseConfig) -> Option<Self> {
        let BaseConfig::Declared(declared) = base else {
            return None;
        };
        let arguments = KernelCommandLine::of(&declared.config.kernel_arguments);
        Some(Self {
            kernel_arguments: arguments.to_string(),
            packages: machinist_plan::package_names(&declared.config),
        })
    }

    /// Records them as machinist's own, for the configs after the first one.
    pub(crate) fn record(&self, journal: &mut Journal) {
        journal.kernel_arguments.clone_from(&self.kernel_arguments);
        journal.adopted_packages.clone_from(&self.packages);
    }
}

/// Returns the running kernel's arguments that machinist has appended; those of another daemon's config count as well,
/// since machinist continues its work.
pub(super) fn own_arguments(
    journal: &Journal,
    adopted: Option<&AdoptedOsChanges>,
) -> KernelCommandLine {
    let booted = |trial: &&OsTrial| trial.state == OsTrialState::Booted;
    let own = match (journal.os_trial.as_ref().filter(booted), adopted) {
        (Some(trial), _) => &trial.append_arguments,
        (None, Some(adopted)) => &adopted.kernel_arguments,
        (None, None) => &journal.kernel_arguments,
    };
    KernelCommandLine::parse(own)
}

/// Returns the packages of another daemon's config, which machinist removes as its own.
pub(super) fn adopted_packages(
    journal: &Journal,
    adopted: Option<&AdoptedOsChanges>,
) -> BTreeSet<String> {
    let packages = adopted.map_or(&journal.adopted_packages, |adopted| &adopted.packages);
    packages.clone()
}
