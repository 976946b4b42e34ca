//! The config that a first config is compared with.

use crate::{
    machine_config::{self, Before, MachineConfig},
    path::AbsPath,
    plan::Base,
    root::Root,
    update::journal::Journal,
};

/// Where OpenShift's daemon keeps the config that the disk is on, and where a first boot finds what of its config
/// is not Ignition's.
const CURRENT_CONFIG: &str = "/etc/machine-config-daemon/currentconfig";
const ENCAPSULATED: &str = "/etc/ignition-machine-config-encapsulated.json";

/// The API server takes no larger MachineConfig than 1.5 MiB; its JSON may be escaped.
const LARGEST_CONFIG: u64 = 32 << 20;

/// What changes are judged against: the config that the machine is on for us, else the one that another daemon says it
/// is on, on the disk or on the Node, else what the first boot was told.
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
