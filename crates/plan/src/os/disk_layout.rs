//! Compares disks, file systems, RAID and LUKS of the desired config with those of the base config.

use std::collections::BTreeSet;

use super::{BaseConfig, origin};
use machinist_base::reason::Reason;
use machinist_ignition::{ClusterBaseline, EntryKind, MachineConfig, Refusal};

/// The changes of the disk layout that cannot be accepted.
pub(super) fn refusals(
    from: &MachineConfig,
    to: &MachineConfig,
    base: &BaseConfig,
) -> Vec<Refusal> {
    let sections = from.disk_layout.keys().chain(to.disk_layout.keys());
    let sections: BTreeSet<&String> = sections.collect();
    let mut refusals = Vec::new();
    for section in sections {
        let wanted = to.disk_layout.get(section);
        let message = match base.has_disk_layout() {
            true if wanted == from.disk_layout.get(section) => continue,
            true => format!(
                "{section} cannot be changed: the disk layout is set when a machine is installed"
            ),
            false if wanted.is_none() || is_on_node(to) => continue,
            false => format!(
                "{section} are not supported: the disk layout is set when a machine is installed"
            ),
        };
        let refusal = Refusal::new(Reason::FeatureUnsupported, message);
        refusals.push(refusal.at(&origin(to, EntryKind::OSImage, section)));
    }
    refusals
}

/// The warning that the original disk layout of a node is not known.
pub(super) fn warning(to: &MachineConfig, base: &BaseConfig) -> Option<String> {
    if base.has_disk_layout() || to.disk_layout.is_empty() || !is_on_node(to) {
        return None;
    }
    let sections: Vec<&str> = to.disk_layout.keys().map(String::as_str).collect();
    Some(format!(
        "{}: cannot compare {} with this node; the disk layout is set when a machine is installed",
        Reason::NotChecked,
        sections.join(", ")
    ))
}

fn is_on_node(to: &MachineConfig) -> bool {
    matches!(to.before, ClusterBaseline::Node(_))
}
