//! Which change needs which action: the built-in tables and what users say instead.

mod builtin;
mod parse;
pub(super) mod registries;

use std::collections::{BTreeMap, BTreeSet};

pub use registries::same_images;

use super::ActionKind;
use crate::path::AbsPath;

/// The unit by which systemd (254 and newer) offers soft reboots.
pub(super) const SOFT_REBOOT: &str = "soft-reboot.target";

/// All rules that apply on a machine. A user's rule replaces the built-in one of the same path,
/// unit or key; built-in are OpenShift's table and one for ordinary distributions.
#[derive(Clone, Debug, PartialEq)]
pub struct Policies {
    files: BTreeMap<AbsPath, Policy>,
    units: BTreeMap<String, Policy>,
    ssh_key: Policy,
    /// Userspace alone may be restarted where that is enough and no rule says reboot.
    soft_reboots: bool,
}

/// One rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Policy {
    /// What a plan calls it: `builtin:/etc/chrony.conf`, `user:…`.
    pub(super) name: String,
    /// What it asks for; nothing when empty.
    pub(super) demands: Vec<Demand>,
    /// What an operator should know when something leaves.
    pub(super) on_removal: Option<&'static str>,
    /// Files of this kind below the path are not meant.
    except: Option<&'static str>,
}

/// One thing a rule asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Demand {
    /// Something for the whole machine: reboot, drain, daemon-reload.
    Machine(ActionKind),
    /// Something for a unit.
    Unit {
        /// Reload or restart.
        kind: ActionKind,
        /// The unit; of several names the first that this machine has.
        names: Vec<String>,
        /// The unit runs once and has its effect by running, so that it need not be active.
        once: bool,
        /// A reload becomes a restart where the unit cannot reload.
        flexible: bool,
    },
}

impl Default for Policies {
    /// The built-in tables alone.
    fn default() -> Self {
        builtin::policies()
    }
}

impl Policies {
    /// No rules at all: for questions that no action depends on.
    pub fn none() -> Self {
        let ssh_key = Policy {
            name: "none".to_owned(),
            demands: Vec::new(),
            on_removal: None,
            except: None,
        };
        Self {
            files: BTreeMap::new(),
            units: BTreeMap::new(),
            ssh_key,
            soft_reboots: false,
        }
    }

    /// The same, with a soft reboot instead of a reboot where no rule asks for one and userspace is all
    /// that must start anew; or without.
    #[must_use]
    pub fn with_soft_reboots(mut self, allowed: bool) -> Self {
        self.soft_reboots = allowed;
        self
    }

    pub(super) fn soft_reboots(&self) -> bool {
        self.soft_reboots
    }

    /// The rule for a path: its own, else that of the nearest directory above it.
    pub(super) fn for_path(&self, path: &AbsPath) -> Option<&Policy> {
        std::iter::once(path.clone())
            .chain(path.ancestors())
            .find_map(|at| self.files.get(&at).filter(|policy| policy.means(path)))
    }

    /// The rule for a path that `above` or something below it names.
    pub(super) fn for_path_within(&self, path: &AbsPath, above: &AbsPath) -> Option<&Policy> {
        std::iter::once(path.clone())
            .chain(path.ancestors())
            .take_while(|at| at.is_under(above))
            .find_map(|at| self.files.get(&at))
    }

    /// The rule for a unit, by its exact name.
    pub(super) fn for_unit(&self, name: &str) -> Option<&Policy> {
        self.units.get(name)
    }

    /// The rule for changed SSH keys.
    pub(super) fn for_ssh_key(&self) -> &Policy {
        &self.ssh_key
    }

    /// The units that any rule names: whether they exist and run must be observed.
    pub fn unit_names(&self) -> BTreeSet<String> {
        let policies = self
            .files
            .values()
            .chain(self.units.values())
            .chain([&self.ssh_key]);
        policies
            .flat_map(|policy| &policy.demands)
            .filter_map(|demand| match demand {
                Demand::Machine(_) => None,
                Demand::Unit { names, .. } => Some(names),
            })
            .flatten()
            .cloned()
            .chain(self.soft_reboots.then(|| SOFT_REBOOT.to_owned()))
            .collect()
    }
}

impl Policy {
    fn means(&self, path: &AbsPath) -> bool {
        self.except
            .is_none_or(|suffix| !path.as_str().ends_with(suffix))
    }
}
