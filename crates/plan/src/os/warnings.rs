//! Warns of parts of the operating system that are not compared or not changed.

use super::{OsCapabilities, all_changes, disk_layout};
use crate::MachineFacts;
use machinist_ignition::MachineConfig;

/// The boot loader returns to the previous deployment only if it runs again.
const HANG_WARNING: &str = "a boot of the new deployment that hangs is not rolled back, unless a hardware watchdog \
                            restarts the machine";

/// The warnings about parts that cannot be compared, and about those that leave the config and stay
/// on the machine.
pub(crate) fn warnings(
    from: &MachineConfig,
    to: &MachineConfig,
    observed: &MachineFacts,
    capabilities: OsCapabilities,
) -> Vec<String> {
    let all = all_changes(from, to, observed, capabilities);
    let mut tried = all.iter().filter(|change| {
        !change.removes_preexisting(capabilities) && change.part.can_be_changed(capabilities)
    });
    let hang = tried.next().map(|_| HANG_WARNING.to_owned());
    let kept = all.into_iter();
    let kept = kept.filter(|change| change.removes_preexisting(capabilities));
    let kept = kept.map(|change| {
        let why = match change.part.can_be_changed(capabilities) {
            true => "machinist has not added it".to_owned(),
            false => capabilities.missing(change.part),
        };
        format!(
            "{} is no longer in the config, but stays: {why}",
            change.entry
        )
    });
    let odd = observed.base_unreadable.as_ref().map(|path| {
        format!("{path} is not a MachineConfig and is not compared with the new config")
    });
    disk_layout::warning(to, &observed.base)
        .into_iter()
        .chain(odd)
        .chain(kept)
        .chain(hang)
        .collect()
}
