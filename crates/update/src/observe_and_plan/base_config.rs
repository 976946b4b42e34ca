//! Finds the config with which the first config is compared.

use crate::journal::Journal;
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{ClusterBaseline, MachineConfig};
use machinist_plan::BaseConfig;
use machinist_rootfs::Root;

/// The file in which OpenShift's machine-config-daemon keeps the config of the disk, and the file in which the
/// first boot finds the parts of its config that Ignition does not handle.
const MCD_CURRENT_CONFIG_PATH: &str = "/etc/machine-config-daemon/currentconfig";
const ENCAPSULATED_CONFIG_PATH: &str = "/etc/ignition-machine-config-encapsulated.json";

/// The API server limits a MachineConfig to 1.5 MiB; its JSON may be escaped.
const MAX_MACHINE_CONFIG_BYTES: u64 = 32 << 20;

/// Returns the base against which changes are judged: machinist's current config; else the config that another
/// daemon reports, on the disk or on the Node; else the config of the first boot. The second part names a file that
/// should hold such a config and does not.
pub(super) fn of(
    root: &Root,
    journal: &Journal,
    to: &MachineConfig,
) -> (BaseConfig, Option<AbsPath>) {
    if super::current(journal).is_some() {
        return (BaseConfig::Config, None);
    }
    let mut odd = None;
    let mut read = |path: &str| {
        let path = AbsPath::new(path).ok()?;
        let text = root.read(&path, MAX_MACHINE_CONFIG_BYTES);
        let declared = machinist_ignition::declared(text.as_deref().ok()?).map(Box::new);
        if declared.is_none() {
            odd.get_or_insert(path);
        }
        declared
    };
    let on_node = || match &to.before {
        ClusterBaseline::Node(declared) => declared.clone(),
        ClusterBaseline::SingleMachine => None,
    };
    let found = read(MCD_CURRENT_CONFIG_PATH)
        .or_else(on_node)
        .or_else(|| read(ENCAPSULATED_CONFIG_PATH));
    let base = found.map_or(BaseConfig::Unknown, BaseConfig::Declared);
    (base, odd)
}
