//! Maps changes to the actions they need: the built-in tables and the user's overrides.

mod builtin;
mod merged_status;
mod parse;
pub(super) mod registries_conf;

use std::collections::{BTreeMap, BTreeSet};

pub use merged_status::cluster_policies;
pub use registries_conf::same_images;

use super::ActionKind;
use machinist_base::abs_path::AbsPath;

/// The unit that systemd (254 and newer) provides if it supports soft reboots.
pub(super) const SOFT_REBOOT: &str = "soft-reboot.target";

/// All rules that apply on a machine. A user's rule replaces the built-in rule of the same path,
/// unit or key; the built-in rules are OpenShift's table and one for ordinary distributions.
#[derive(Clone, Debug, PartialEq)]
pub struct Policies {
    files: BTreeMap<AbsPath, DisruptionPolicy>,
    units: BTreeMap<String, DisruptionPolicy>,
    ssh_key: DisruptionPolicy,
    /// Soft reboots are allowed if one is sufficient and no rule demands a reboot.
    soft_reboots: bool,
}

/// One rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DisruptionPolicy {
    /// Its name in a plan: `builtin:/etc/chrony.conf`, `user:…`.
    pub(super) name: String,
    /// The demanded actions; empty if no action is needed.
    pub(super) demands: Vec<RequiredAction>,
    /// A note for the operator when a matching object is removed.
    pub(super) on_removal: Option<&'static str>,
    /// Files with this suffix below the path are exempt.
    except: Option<&'static str>,
}

/// One demand of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RequiredAction {
    /// An action for the whole machine: reboot, drain, daemon-reload.
    Machine(ActionKind),
    /// An action for a unit.
    Unit {
        /// Reload or restart.
        kind: ActionKind,
        /// The unit; the first of these names that exists on this machine is used.
        names: Vec<String>,
        /// The unit is a oneshot whose run makes the change effective, so it need not be active.
        once: bool,
        /// A reload becomes a restart if the unit cannot reload.
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
    /// No rules at all, for callers that do not need actions.
    pub fn none() -> Self {
        let ssh_key = DisruptionPolicy {
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

    /// Sets whether a soft reboot replaces a reboot if no rule demands a reboot and restarting
    /// userspace is sufficient.
    #[must_use]
    pub fn with_soft_reboots(mut self, allowed: bool) -> Self {
        self.soft_reboots = allowed;
        self
    }

    pub(super) fn soft_reboots(&self) -> bool {
        self.soft_reboots
    }

    /// The rule for a path: its own, otherwise that of its nearest parent directory.
    pub(super) fn for_path(&self, path: &AbsPath) -> Option<&DisruptionPolicy> {
        std::iter::once(path.clone())
            .chain(path.ancestors())
            .find_map(|at| self.files.get(&at).filter(|policy| policy.means(path)))
    }

    /// The rule for a path, if the rule's path is `above` or below it.
    pub(super) fn for_path_within(
        &self,
        path: &AbsPath,
        above: &AbsPath,
    ) -> Option<&DisruptionPolicy> {
        std::iter::once(path.clone())
            .chain(path.ancestors())
            .take_while(|at| at.is_under(above))
            .find_map(|at| self.files.get(&at))
    }

    /// The rule for a unit, by its exact name.
    pub(super) fn for_unit(&self, name: &str) -> Option<&DisruptionPolicy> {
        self.units.get(name)
    }

    /// The rule for changed SSH keys.
    pub(super) fn for_ssh_key(&self) -> &DisruptionPolicy {
        &self.ssh_key
    }

    /// The units in all rules; their existence and state must be observed.
    pub fn unit_names(&self) -> BTreeSet<String> {
        let policies = self
            .files
            .values()
            .chain(self.units.values())
            .chain([&self.ssh_key]);
        policies
            .flat_map(|policy| &policy.demands)
            .filter_map(|demand| match demand {
                RequiredAction::Machine(_) => None,
                RequiredAction::Unit { names, .. } => Some(names),
            })
            .flatten()
            .cloned()
            .chain(self.soft_reboots.then(|| SOFT_REBOOT.to_owned()))
            .collect()
    }
}

impl DisruptionPolicy {
    fn means(&self, path: &AbsPath) -> bool {
        self.except
            .is_none_or(|suffix| !path.as_str().ends_with(suffix))
    }
}
