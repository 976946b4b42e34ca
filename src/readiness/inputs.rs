//! The facts that the gates are judged by.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::{Answers, Policy};
use crate::reason::Reason;

/// Everything the gates look at. What nobody watches is left at its default, and its gate is open.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// The update and the disk.
    pub config: ConfigState,
    /// The boot.
    pub boot: Boot,
    /// What the kubelet says of its node.
    pub kubelet: Kubelet,
    /// The kubelet's socket.
    pub device_manager: DeviceManager,
    /// Devices that are waited for; none when no update withheld any.
    pub devices: Option<DevicesReturn>,
    /// Failed units; none when there is no service manager to ask.
    pub failed_units: Option<FailedUnits>,
    /// Where another daemon was seen that changes this machine's config, while that is our job, too.
    pub other_daemon: Option<String>,
    /// Pressure stall information; none when the kernel gives none.
    pub pressure: Option<Pressure>,
    /// The watched file systems, each once.
    pub disk: Vec<FreeSpace>,
    /// Whether the kernel's clock is synchronised; none when it cannot be asked.
    pub synchronised: Option<bool>,
    /// Whether `/` is read-only; none when the mounts cannot be read.
    pub root_read_only: Option<bool>,
    /// How the kernel hands out memory; none when it does not say.
    pub memory: Option<MemorySettings>,
    /// The Node's taints, each as `key:effect`; none where it is not seen.
    pub taints: Option<BTreeSet<String>>,
    /// What was answered to the administrator's own gates.
    pub own: Answers,
}

impl Inputs {
    /// When a gate opens or closes by the passing of time alone, next after `now`.
    pub fn turns_at(&self, policy: &Policy, now: Timestamp) -> Option<Timestamp> {
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

/// What the update and the disk say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigState {
    /// The config that has effects on this machine without being verified.
    pub unverified: Option<String>,
    /// The last update failed and was not wholly undone.
    pub failed: Option<Failure>,
    /// Paths that are not what the config says, `ignore`d ones left out.
    pub drifted: Vec<String>,
    /// Whether drift closes the gate. It does not where drift is only reported.
    pub drift_holds: bool,
    /// The desired config was refused; the machine keeps the one it has.
    pub refused: Option<Failure>,
}

/// A stable code and one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The code.
    pub reason: Reason,
    /// For people.
    pub message: String,
}

/// Whether an ordered reboot has happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Boot {
    /// The running boot's id; none where there is none to read (an offline root).
    pub current: Option<String>,
    /// The boot id at which a reboot was ordered, until the boot after it is verified.
    pub ordered_at: Option<String>,
}

/// What the kubelet says of its node, as the cluster shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Kubelet {
    /// This machine is no node of a cluster.
    #[default]
    Unneeded,
    /// The API server does not answer: what it said last may be old.
    Unknown,
    /// There is no such Node.
    NoNode,
    /// It has not reported since this boot.
    OldBoot,
    /// It has, and is not ready: its own words.
    NotReady(String),
    /// It has, and is.
    Ready,
}

/// The kubelet's device manager, as its socket shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceManager {
    /// Nobody needs one: no devices are declared, or the job is off.
    #[default]
    Unneeded,
    /// The socket is there.
    Listening,
    /// The socket is missing since then.
    Absent(Timestamp),
}

/// Resources before an update and now, counted in allocatable devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicesReturn {
    /// Before the update.
    pub before: BTreeMap<String, usize>,
    /// Now. A resource that is not listed has none.
    pub now: BTreeMap<String, usize>,
    /// Since when their return is waited for.
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

/// `some avg60` of `/proc/pressure/*`: percent of the last minute in which a task waited.
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
    /// The path that was asked about, from the root.
    pub path: String,
    /// Bytes that an unprivileged process may still take (`f_bavail`).
    pub free: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Its inodes; none where it makes them as needed.
    pub inodes: Option<FreeInodes>,
}

/// The inodes of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeInodes {
    /// What an unprivileged process may still take (`f_favail`).
    pub free: u64,
    /// All of them.
    pub all: u64,
}

/// Kernel settings that a kubelet depends on: it counts on memory being handed out freely, and on the
/// kernel ending a process and not the machine when there is none left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// `vm.overcommit_memory`.
    pub overcommit: u32,
    /// `vm.panic_on_oom`.
    pub panic_on_oom: u32,
}

/// How long the kubelet's socket may be missing before it is said.
///
/// A restarting kubelet removes and re-creates it; 30 s is longer than any restart that goes well and
/// short enough that a kubelet which is really down shows while somebody still looks.
pub(super) const SOCKET_GRACE: Duration = Duration::from_secs(30);
