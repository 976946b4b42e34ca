//! Evaluates the gates for inodes, the root file system and the kernel's memory settings.

use super::{
    DeviceManager, FreeSpace, GateInputs, KubeletReadiness,
    gate_result::{GateResult, few},
};
use machinist_base::reason::Reason;

pub(super) fn inodes(disks: &[FreeSpace], least: u8) -> GateResult {
    let mut counted = false;
    let mut short = Vec::new();
    for disk in disks {
        let Some(inodes) = disk.inodes else {
            continue;
        };
        counted = true;
        // Multiplied instead of divided, so that the limit is exact.
        if u128::from(inodes.free) * 100 < u128::from(inodes.all) * u128::from(least) {
            short.push(format!(
                "{} has {} of {} free",
                disk.path, inodes.free, inodes.all
            ));
        }
    }
    match (counted, short.is_empty()) {
        (false, _) => GateResult::no_signal("no monitored file system has an inode limit"),
        (true, true) => GateResult::ok("enough free inodes"),
        (true, false) => GateResult::closed(Reason::InodesLow, few(short.iter())),
    }
}

pub(super) fn root(read_only: Option<bool>) -> GateResult {
    match read_only {
        Some(false) => GateResult::ok("/ is writable"),
        Some(true) => GateResult::closed(Reason::RootReadOnly, "/ is mounted read-only"),
        None => GateResult::no_signal("cannot read the mount table"),
    }
}

/// Only relevant if there is a kubelet; the settings are never changed.
pub(super) fn memory(inputs: &GateInputs) -> GateResult {
    let kubelet = inputs.kubelet != KubeletReadiness::NotRequired
        || inputs.device_manager == DeviceManager::Listening;
    if !kubelet {
        return GateResult::ok("no kubelet: not checked");
    }
    let Some(memory) = inputs.memory else {
        return GateResult::no_signal("cannot read the kernel's memory settings");
    };
    let wrong: Vec<_> = [
        ("vm.overcommit_memory", memory.overcommit, 1),
        ("vm.panic_on_oom", memory.panic_on_oom, 0),
    ]
    .into_iter()
    .filter(|(_, is, wanted)| is != wanted)
    .map(|(name, is, wanted)| format!("{name} is {is}, the kubelet requires {wanted}"))
    .collect();
    match wrong.is_empty() {
        true => GateResult::ok("as required by the kubelet"),
        false => GateResult::closed(Reason::KernelMemorySettings, wrong.join(", ")),
    }
}
