//! Evaluates each gate as a pure function of the inputs.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{
    ConfigFacts, DeviceManager, DevicesReturn, FailedUnits, FreeSpace, GateInputs, GateName,
    GatePolicy, KubeletReadiness, MinFree, Pressure, RebootFacts,
    facts::SOCKET_GRACE,
    gate_result::{GateResult, few},
    host_gates,
};
use machinist_base::reason::Reason;

pub(super) fn of(
    name: GateName,
    inputs: &GateInputs,
    policy: &GatePolicy,
    now: Timestamp,
) -> GateResult {
    match name {
        GateName::Config => config(&inputs.config),
        GateName::BootProven => boot(&inputs.boot),
        GateName::Kubelet => kubelet(&inputs.kubelet),
        GateName::DeviceManagerAbsent => device_manager(&inputs.device_manager, now),
        GateName::Devices => devices(inputs.devices.as_ref(), policy.return_limit, now),
        GateName::FailedUnits => failed_units(inputs.failed_units.as_ref()),
        GateName::OtherDaemon => other_daemon(inputs.other_daemon.as_deref()),
        GateName::Pressure => pressure(inputs.pressure, policy),
        GateName::DiskSpace => disk_space(&inputs.disk, policy.min_free),
        GateName::Inodes => host_gates::inodes(&inputs.disk, policy.min_inodes),
        GateName::TimeSync => time_sync(inputs.synchronised),
        GateName::ReadOnlyRoot => host_gates::root(inputs.root_read_only),
        GateName::KernelMemorySettings => host_gates::memory(inputs),
        GateName::Settings => settings(inputs.settings_mistake.as_deref()),
    }
}

/// A failure takes precedence over the update it belongs to; a rejected config and reported drift
/// are only notes.
fn config(state: &ConfigFacts) -> GateResult {
    if let Some(failed) = &state.failed {
        let message = format!("{}: {}", failed.reason, failed.message);
        return GateResult::closed(Reason::UpdateFailed, message);
    }
    if let Some(name) = &state.unverified {
        // While an update is undone, or after the last config was removed, none is desired.
        let message = match name.as_str() {
            "" => "changes of files are applied, not verified yet".to_owned(),
            name => format!("{name} is applied, not verified yet"),
        };
        return GateResult::closed(Reason::UpdateInProgress, message);
    }
    if !state.drifted.is_empty() {
        let message = format!("not as configured: {}", few(state.drifted.iter()));
        return match state.drift_holds {
            true => GateResult::closed(Reason::Drifted, message),
            false => GateResult::note(Reason::Drifted, message),
        };
    }
    match &state.refused {
        Some(refused) => {
            let message = format!("keeping the last valid config: {}", refused.message);
            let reason = match refused.reason {
                Reason::RolesMixed => Reason::RolesMixed,
                _ => Reason::ConfigRefused,
            };
            GateResult::note(reason, message)
        }
        None => GateResult::ok("no partially applied update"),
    }
}

fn boot(boot: &RebootFacts) -> GateResult {
    match (&boot.ordered_at, &boot.current) {
        (None, _) => GateResult::ok("no reboot pending"),
        (Some(_), None) => GateResult::no_signal("cannot read the boot ID"),
        (Some(before), Some(now)) if before == now => GateResult::closed(
            Reason::RebootPending,
            "a reboot was requested and has not happened yet",
        ),
        (Some(_), Some(_)) => GateResult::closed(
            Reason::BootUnverified,
            "the machine has rebooted; the boot is not verified yet",
        ),
    }
}

/// Unknown does not close the gate: before the node is uncordoned, the API server is read first,
/// and that read is waited for.
fn kubelet(state: &KubeletReadiness) -> GateResult {
    let closed = |message: &str| GateResult::closed(Reason::KubeletDown, message);
    match state {
        KubeletReadiness::NotRequired => GateResult::ok("not a node of a cluster"),
        KubeletReadiness::Unknown => GateResult::no_signal("API server unreachable"),
        KubeletReadiness::NoNode => closed("Node not found: the kubelet has not registered it"),
        KubeletReadiness::OldBoot => closed("the kubelet has not reported since this boot"),
        KubeletReadiness::NotReady(why) => closed(&format!("the kubelet is not ready: {why}")),
        KubeletReadiness::Ready => GateResult::ok("the kubelet is ready"),
    }
}

fn other_daemon(seen: Option<&str>) -> GateResult {
    match seen {
        None => GateResult::ok("no other daemon manages this machine"),
        Some(seen) => GateResult::closed(
            Reason::OtherDaemon,
            format!("{seen}; machinist applies no config while it is present"),
        ),
    }
}

fn settings(mistake: Option<&str>) -> GateResult {
    match mistake {
        None => GateResult::ok("the settings are valid"),
        Some(mistake) => GateResult::closed(
            Reason::SettingsInvalid,
            format!("keeping the last valid ones: {mistake}"),
        ),
    }
}

fn device_manager(state: &DeviceManager, now: Timestamp) -> GateResult {
    match state {
        DeviceManager::NotRequired => GateResult::ok("no devices to advertise"),
        DeviceManager::Listening => GateResult::ok("the kubelet accepts device plugins"),
        DeviceManager::Absent(since) if lasted(*since, now, SOCKET_GRACE) => GateResult::closed(
            Reason::KubeletDown,
            "no kubelet socket: the device manager is off or the kubelet is down",
        ),
        DeviceManager::Absent(_) => GateResult::ok("waiting for the kubelet socket"),
    }
}

fn devices(wait: Option<&DevicesReturn>, limit: Duration, now: Timestamp) -> GateResult {
    let Some(wait) = wait else {
        return GateResult::ok("not waiting for any device");
    };
    let short: Vec<_> = wait
        .before
        .iter()
        .filter_map(|(resource, before)| {
            let now = wait.now.get(resource).copied().unwrap_or(0);
            (now < *before).then(|| format!("{resource} {now} of {before}"))
        })
        .collect();
    if short.is_empty() {
        return GateResult::ok("all devices are allocatable again");
    }
    let short = few(short.iter());
    match lasted(wait.since, now, limit) {
        true => GateResult::note(
            Reason::DevicesMissing,
            format!("gave up waiting after {} s: {short}", limit.as_secs()),
        ),
        false => GateResult::closed(
            Reason::DevicesMissing,
            format!("not allocatable again yet: {short}"),
        ),
    }
}

fn failed_units(units: Option<&FailedUnits>) -> GateResult {
    let Some(units) = units else {
        return GateResult::no_signal("no service manager");
    };
    let new: Vec<_> = units.now.difference(&units.before).collect();
    match (new.is_empty(), units.now.is_empty()) {
        (true, true) => GateResult::ok("no unit has failed"),
        (true, false) => GateResult::ok(format!(
            "no unit has failed since the update; failed before it: {}",
            few(units.now.iter())
        )),
        (false, _) => GateResult::closed(
            Reason::UnitsFailed,
            format!("failed: {}", few(new.into_iter())),
        ),
    }
}

fn pressure(stall: Option<Pressure>, policy: &GatePolicy) -> GateResult {
    let Some(stall) = stall else {
        return GateResult::no_signal("the kernel has no pressure information");
    };
    let above: Vec<_> = [
        ("cpu", stall.cpu, policy.cpu_pressure),
        ("memory", stall.memory, policy.memory_pressure),
        ("io", stall.io, policy.io_pressure),
    ]
    .into_iter()
    .filter(|(_, share, limit)| *share > f64::from(*limit))
    .map(|(what, share, limit)| format!("{what} {share:.0}% above {limit}%"))
    .collect();
    match above.is_empty() {
        true => GateResult::ok("below the thresholds"),
        false => GateResult::closed(Reason::UnderPressure, above.join(", ")),
    }
}

fn disk_space(disks: &[FreeSpace], min: MinFree) -> GateResult {
    let short: Vec<_> = disks
        .iter()
        .filter(|disk| min.is_short(disk.free, disk.size))
        .map(|disk| format!("{} has {} free", disk.path, share(disk)))
        .collect();
    match (disks.is_empty(), short.is_empty()) {
        (true, _) => GateResult::no_signal("no file system is monitored"),
        (false, true) => GateResult::ok("enough free space"),
        (false, false) => GateResult::closed(Reason::DiskSpaceLow, few(short.iter())),
    }
}

fn share(disk: &FreeSpace) -> String {
    let percent = (u128::from(disk.free) * 100).checked_div(u128::from(disk.size));
    let mebibytes = disk.free >> 20;
    match percent {
        Some(percent) => format!("{percent}% ({mebibytes} MiB)"),
        None => format!("{mebibytes} MiB"),
    }
}

fn time_sync(synchronised: Option<bool>) -> GateResult {
    match synchronised {
        Some(true) => GateResult::ok("the clock is synchronised"),
        Some(false) => {
            GateResult::closed(Reason::TimeUnsynchronised, "the clock is not synchronised")
        }
        None => GateResult::no_signal("cannot determine whether the clock is synchronised"),
    }
}

/// If the clock was set back the wait appears negative, and does not count as over.
fn lasted(since: Timestamp, now: Timestamp, limit: Duration) -> bool {
    let limit = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
    now.duration_since(since) >= limit
}
