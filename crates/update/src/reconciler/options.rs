//! Defines the input of the reconciler (desired config and settings) and the interface to its caller.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use machinist_base::{
    abs_path::AbsPath, digest::Digest, maintenance_window::MaintenanceWindows, reason::Reason,
};
use machinist_ignition::{MachineConfig, Refusal};
use machinist_plan::{Capabilities, OsCapabilities, Plan, Policies};
use machinist_rootfs::Root;

/// The desired config, as the config source returns it.
#[derive(Clone, Debug, Default)]
pub enum DesiredConfig {
    /// The source was not read yet.
    #[default]
    Unknown,
    /// The source was read and requests no config: a Node that no pool includes.
    Nothing,
    /// The config was refused; the machine keeps its current one.
    Refused(Arc<Vec<Refusal>>),
    /// A config that is valid in itself.
    Config(Arc<MachineConfig>, Digest),
    /// A config for which no update may begin: an update that has not changed the machine yet is abandoned and the
    /// node uncordoned; one that has continues to its end.
    Blocked(Arc<MachineConfig>, Digest, Arc<BlockReason>),
}

/// Why no update may begin for the desired config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockReason {
    /// The stable reason code.
    pub reason: Reason,
    /// One sentence.
    pub message: String,
}

impl DesiredConfig {
    /// Returns the digest of the config, if there is a valid one.
    pub fn digest(&self) -> Option<Digest> {
        match self {
            Self::Config(_, digest) | Self::Blocked(_, digest, _) => Some(*digest),
            Self::Unknown | Self::Nothing | Self::Refused(_) => None,
        }
    }

    /// Returns whether `other` is equal for all readers.
    pub fn is_equal_for_readers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unknown, Self::Unknown) | (Self::Nothing, Self::Nothing) => true,
            (Self::Refused(mine), Self::Refused(other)) => mine == other,
            (Self::Config(mine, digest), Self::Config(other, other_digest)) => {
                digest == other_digest && mine.name == other.name
            }
            (
                Self::Blocked(mine, digest, reason),
                Self::Blocked(other, other_digest, other_reason),
            ) => digest == other_digest && mine.name == other.name && reason == other_reason,
            _ => false,
        }
    }

    /// Returns the desired config, blocked or not.
    pub const fn config(&self) -> Option<(&Arc<MachineConfig>, Digest)> {
        match self {
            Self::Config(config, digest) | Self::Blocked(config, digest, _) => {
                Some((config, *digest))
            }
            Self::Unknown | Self::Nothing | Self::Refused(_) => None,
        }
    }

    /// Returns why no update may begin.
    pub const fn block_reason(&self) -> Option<&Arc<BlockReason>> {
        match self {
            Self::Blocked(_, _, reason) => Some(reason),
            _ => None,
        }
    }
}

/// Settings of the reconciler.
#[derive(Clone, Debug)]
pub struct ReconcilerOptions {
    /// Who requests a reboot that an update needs.
    pub reboot: RebootPolicy,
    /// How long after a boot the machine may take to be as healthy as before the update.
    pub verify_timeout: Duration,
    /// Number of boots with an unverified update after which the update is undone.
    pub boot_attempts: u32,
    /// The same for an update that changes the operating system.
    pub os_boot_attempts: u32,
    /// How long an accepted reboot may take to happen.
    pub reboot_timeout: Duration,
    /// Time limit of one step of the provider of the operating system.
    pub os_step_timeout: Duration,
    /// Time limit of a systemd job.
    pub job_timeout: Duration,
    /// How long a restarted unit is watched.
    pub settle: Duration,
    /// Interval between two full scans for drift.
    pub full_pass: Duration,
    /// Maintenance windows in which updates may begin.
    pub windows: MaintenanceWindows,
    /// How drift is handled.
    pub drift: DriftHandling,
    /// Capabilities of this root and this process.
    pub capabilities: Capabilities,
    /// Policies that map changes to actions.
    pub policies: Arc<Policies>,
}

/// How drifted paths are handled.
#[derive(Clone, Debug, Default)]
pub struct DriftHandling {
    /// The default without a matching rule.
    pub default: DriftAction,
    /// Rules for a path and everything below it; the longest matching path applies.
    pub rules: Vec<(AbsPath, DriftAction)>,
}

/// How a drifted path is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriftAction {
    /// Reports the drift.
    #[default]
    Report,
    /// Reports and repairs the drift.
    Repair,
    /// Ignores the drift.
    Ignore,
}

impl DriftHandling {
    /// Returns how drift of `path` is handled.
    pub fn act(&self, path: &AbsPath) -> DriftAction {
        let rules = self.rules.iter().filter(|(at, _)| path.is_under(at));
        let nearest = rules.max_by_key(|(at, _)| at.components().count());
        nearest.map_or(self.default, |(_, act)| *act)
    }
}

/// Who reboots the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebootPolicy {
    /// The agent reboots.
    Auto,
    /// An operator approves the reboot.
    Ask,
    /// An operator reboots the machine. This does not try a deployment: it is unlocked only for a reboot that the agent
    /// requests.
    Never,
}

/// The reconciler's interface to its caller, besides its reports.
pub trait ReconcilerHooks: Send + Sync + 'static {
    /// Shows a plan before it begins; `false` leaves the machine unchanged.
    fn approve(&self, plan: &Plan) -> bool;
    /// Signals that the loop is alive. Called at least every [`ReconcilerHooks::tick`] while it is healthy.
    fn record_beat(&self);
    /// Returns the interval of liveness signals when nothing happens.
    fn tick(&self) -> Duration {
        TICK_INTERVAL
    }
    /// Waits for a liveness probe; the loop then calls `record_beat`. Cancel-safe.
    fn probe_requested(&self) -> impl Future<Output = ()> + Send;
    /// Returns the addresses of default gateways that answer; empty by default.
    fn gateways(&self) -> impl Future<Output = BTreeSet<String>> + Send {
        async { BTreeSet::new() }
    }
    /// Returns what can be changed in the operating system, as it was `known` when the process started. An administrator may
    /// have removed an obstacle since.
    fn os_capabilities(&self, _root: &Root, known: OsCapabilities) -> OsCapabilities {
        known
    }
    /// Returns the currently allocatable devices by resource.
    fn allocatable(&self) -> BTreeMap<String, usize>;
}

/// Default interval of liveness signals: two within the watchdog timeout of the unit file (five minutes), with few
/// wake-ups while idle. A liveness probe is answered at once.
pub const TICK_INTERVAL: Duration = Duration::from_secs(120);
