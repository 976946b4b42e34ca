//! The inputs of the gates.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::{GatePolicy, ProbeResults};
use machinist_base::reason::Reason;

/// All inputs of the gates. Inputs that are not observed keep their default, which leaves the gate
/// open.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GateInputs {
    /// State of the update and of the disk.
    pub config: ConfigFacts,
    /// State of the boot.
    pub boot: RebootFacts,
    /// Readiness reported by the kubelet.
    pub kubelet: KubeletReadiness,
    /// State of the kubelet's device plugin socket.
    pub device_manager: DeviceManager,
    /// Devices that are expected to return; none if no update has disabled devices.
    pub devices: Option<DevicesReturn>,
    /// Failed units; none without a service manager.
    pub failed_units: Option<FailedUnits>,
    /// Where another daemon was detected that manages this machine's config; none if `config` is not
    /// a role of this agent.
    pub other_daemon: Option<String>,
    /// Pressure stall information; none if the kernel does not provide it.
    pub pressure: Option<Pressure>,
    /// The watched file systems, each one once.
    pub disk: Vec<FreeSpace>,
    /// Whether the kernel's clock is synchronised; none if unknown.
    pub synchronised: Option<bool>,
    /// Whether `/` is read-only; none if the mounts cannot be read.
    pub root_read_only: Option<bool>,
    /// The kernel's memory settings; none if they cannot be read.
    pub memory: Option<MemorySettings>,
    /// The mistake in the settings or policies on the machine, because of which the last valid ones are in use.
    pub settings_mistake: Option<String>,
    /// The Node's taints, each as `key:effect`; none if the Node is unknown.
    pub taints: Option<BTreeSet<String>>,
    /// Results of the probes of custom gates.
    pub custom_probes: ProbeResults,
}

impl GateInputs {
    /// When a gate next opens or closes through the passing of time alone, after `now`.
    pub fn next_change_at(&self, policy: &GatePolicy, now: Timestamp) -> Option<Timestamp> {
        let socket = match &self.device_manager {
            DeviceManager::Absent(since) => Some((*since, SOCKET_GRACE)),
            _ => None,
        };
        let devices = self.devices.as_ref();
        let devices = devices.map(|wait| (wait.since, policy.return_limit));
        let turns = [socket, devices].into_iter().flatten();
        turns
            .filter_map(|(since, limit)| since.checked_add(limit).ok())
            .filter(|turn| *turn > now)
            .min()
    }
}

/// State of the update and of the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigFacts {
    /// The config that is partly applied on this machine but not verified.
    pub unverified: Option<String>,
    /// The last update failed and was not completely rolled back.
    pub failed: Option<Failure>,
    /// Paths that differ from the config, without those with drift policy `ignore`.
    pub drifted: Vec<String>,
    /// Whether drift closes the gate; false if drift is only reported.
    pub drift_holds: bool,
    /// The desired config was rejected; the machine keeps its current one.
    pub refused: Option<Failure>,
}

/// A stable code and one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The code.
    pub reason: Reason,
    /// The message for people.
    pub message: String,
}

/// Whether a requested reboot has happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebootFacts {
    /// The running boot's ID; none if it cannot be read (an offline root).
    pub current: Option<String>,
    /// The boot ID at which a reboot was requested, until the next boot is verified.
    pub ordered_at: Option<String>,
}

/// The kubelet's readiness, according to the Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KubeletReadiness {
    /// This machine is not a node.
    #[default]
    NotRequired,
    /// The API server is unreachable, so that the last reported state may be outdated.
    Unknown,
    /// The Node does not exist.
    NoNode,
    /// The kubelet has not reported since this boot.
    OldBoot,
    /// The kubelet reports that it is not ready, with this message.
    NotReady(String),
    /// The kubelet is ready.
    Ready,
}

/// The kubelet's device manager, judged by its socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceManager {
    /// Not needed: no devices are declared, or the agent does not have that role.
    #[default]
    NotRequired,
    /// The socket exists.
    Listening,
    /// The socket has been missing since this time.
    Absent(Timestamp),
}

/// Numbers of allocatable devices by resource, before an update and now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicesReturn {
    /// Before the update.
    pub before: BTreeMap<String, usize>,
    /// Now. A resource that is not listed has no devices.
    pub now: BTreeMap<String, usize>,
    /// Since when their return is expected.
    pub since: Timestamp,
}

/// Failed systemd units, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedUnits {
    /// Before the update.
    pub before: BTreeSet<String>,
    /// Now.
    pub now: BTreeSet<String>,
}

/// `some avg60` of `/proc/pressure/*`: the share of the last minute in percent in which a task
/// waited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// For the CPU.
    pub cpu: f64,
    /// For memory.
    pub memory: f64,
    /// For I/O.
    pub io: f64,
}

/// One file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    /// The watched path, relative to the root.
    pub path: String,
    /// Bytes available to unprivileged processes (`f_bavail`).
    pub free: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Its inodes; none if the file system allocates them dynamically.
    pub inodes: Option<FreeInodes>,
}

/// The inodes of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeInodes {
    /// Inodes available to unprivileged processes (`f_favail`).
    pub free: u64,
    /// Total number of inodes.
    pub all: u64,
}

/// Kernel settings that a kubelet depends on: it expects memory overcommit, and that the kernel
/// kills a process instead of panicking when memory runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// `vm.overcommit_memory`.
    pub overcommit: u32,
    /// `vm.panic_on_oom`.
    pub panic_on_oom: u32,
}

/// How long the kubelet's socket may be missing before the gate closes.
///
/// A restarting kubelet removes and re-creates it; 30 s is longer than any successful restart, and
/// short enough that an operator notices a kubelet that is down.
pub(super) const SOCKET_GRACE: Duration = Duration::from_secs(30);
