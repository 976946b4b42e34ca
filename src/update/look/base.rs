//! Finds the config with which the first config is compared.

use crate::{
    machine_config::{self, Before, MachineConfig},
    path::AbsPath,
    plan::Base,
    root::Root,
    update::journal::Journal,
};

/// The file in which OpenShift's machine-config-daemon keeps the config of the disk, and the file in which the
/// first boot finds the parts of its config that Ignition does not handle.
const CURRENT_CONFIG: &str = "/etc/machine-config-daemon/currentconfig";
const ENCAPSULATED: &str = "/etc/ignition-machine-config-encapsulated.json";

/// The API server limits a MachineConfig to 1.5 MiB; its JSON may be escaped.
const LARGEST_CONFIG: u64 = 32 << 20;

/// Returns the base against which changes are judged: machinist's current config; else the config that another
/// daemon reports, on the disk or on the Node; else the config of the first boot.
pub(super) fn of(root: &Root, journal: &Journal, to: &MachineConfig) -> Base {
    if super::current(journal).is_some() {
        return Base::Config;
    }
    let read = |path: &str| {
        let text = root.read(&AbsPath::new(path).ok()?, LARGEST_CONFIG).ok()?;
        machine_config::declared(&text).map(Box::new)
    };
    let on_node = || match &to.before {
        Before::Node(declared) => declared.clone(),
        Before::SingleMachine => None,
    };
    let found = read(CURRENT_CONFIG)
        .or_else(on_node)
        .or_else(|| read(ENCAPSULATED));
    found.map_or(Base::Unknown, Base::Declared)
}
