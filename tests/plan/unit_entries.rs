//! Entries for one unit in several parts of a config, and units that are not in the usual directories, compared
//! with `systemctl --root` where it is installed.

use std::process::Command;

use machinist::{
    machine_config::{MachineConfig, Refusal, Unit},
    plan::{self, Plan, Policies},
    update::observe::CallerFacts,
};

use super::support::{OFFLINE, Tree, config, unit};

pub(crate) const UNIT: &str = "[Service]\nExecStart=/x\n[Install]\nWantedBy=m.target\n";

/// An Ignition config with these entries of `storage` and `systemd.units`, in JSON.
pub(crate) fn entries(storage: &str, units: &str) -> MachineConfig {
    config(&format!(
        r#"{{"ignition": {{"version": "3.4.0"}}, "storage": {{{storage}}},
            "systemd": {{"units": [{units}]}}}}"#
    ))
}

pub(crate) fn plan(
    tree: &Tree,
    from: &MachineConfig,
    to: &MachineConfig,
) -> Result<Plan, Vec<Refusal>> {
    let observed = tree.observed(from, to, CallerFacts::default());
    plan::between(from, to, &observed, &Policies::default(), OFFLINE)
}

pub(crate) fn said(name: &str, enabled: bool) -> MachineConfig {
    let mut config = MachineConfig::default();
    let said = Unit {
        enabled: Some(enabled),
        ..Unit::default()
    };
    unit(&mut config, name, said);
    config
}

/// The warnings of a plan about the config.
pub(crate) fn warnings(plan: &Plan) -> Vec<&String> {
    let all = plan.warnings.iter();
    all.filter(|warning| !warning.starts_with("CAP_CHOWN"))
        .collect()
}

/// Runs `systemctl --root` on a tree; `None` if it is not installed.
pub(crate) fn systemctl(tree: &Tree, words: &[&str]) -> Option<bool> {
    let mut command = Command::new("systemctl");
    command.arg(format!("--root={}", tree.dir.path().display()));
    let output = command.args(words).output().ok()?;
    Some(output.status.success())
}
