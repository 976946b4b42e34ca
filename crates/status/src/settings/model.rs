//! Defines the validated settings. Every field has a value, and every value is in range.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use super::{
    cluster::Kubeconfig,
    enums::{
        AgentRole, CdiAnswer, DataLossPolicy, DrainBy, DriftPolicy, LogFormat, LogLevel, Owners,
        Reboot, Registration, SoftReboot,
    },
    extract::EffectiveSetting,
    pinned_images::PinnedImageSettings,
    value_types::SourceSetting,
};
use crate::readiness::GatePolicy;
use machinist_base::{abs_path::AbsPath, maintenance_window::MaintenanceWindows};

/// The effective settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `source`: the source of the desired config. Default `auto`.
    pub source: SourceSetting,
    /// `source.role`: the roles of the machine, which select MachineConfigs of a directory. Default
    /// none: then all MachineConfigs must have the same role.
    pub source_roles: Vec<String>,
    /// `roles`: the tasks of this agent. Default all three.
    pub roles: Vec<AgentRole>,
    /// `owners`: how file owners are handled. Default `auto`.
    pub owners: Owners,
    /// `cluster`.
    pub cluster: ClusterSettings,
    /// `update`.
    pub update: UpdateSettings,
    /// `drain`.
    pub drain: DrainSettings,
    /// `actions`.
    pub actions: ActionSettings,
    /// `drift`.
    pub drift: DriftSettings,
    /// `pinnedImages`.
    pub pinned_images: PinnedImageSettings,
    /// `users.allowed`: the users that a config may manage. Default `core`, as in OpenShift.
    pub users_allowed: Vec<String>,
    /// `groups.allowed`: the groups that a config may create, change or remove. Default none.
    pub groups_allowed: Vec<String>,
    /// `devices`.
    pub devices: DeviceSettings,
    /// `readiness`.
    pub readiness: ReadinessSettings,
    /// `admin`.
    pub admin: AdminSettings,
    /// `log`.
    pub log: LogSettings,
    /// Every key with its value and origin, by name.
    pub effective: Vec<EffectiveSetting>,
}

/// How to find the cluster of this machine's Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSettings {
    /// `cluster.node`: the Node's name. Default: `NODE_NAME` of the environment, which the
    /// DaemonSet sets, otherwise the host's name, like the kubelet's default.
    pub node: Option<String>,
    /// `cluster.kubeconfig`. Default none: a pod has its service account.
    pub kubeconfig: Kubeconfig,
}

/// How the node is drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainSettings {
    /// `drain.by`. Default `auto`.
    pub by: DrainBy,
    /// `drain.forceAfter`: how long a drain evicts before it deletes pods. Default never: a
    /// PodDisruptionBudget is the application owner's decision.
    pub force_after: Option<Duration>,
    /// `drain.forceAfter` is set explicitly: the cluster's UpgradeConfig does not override it.
    pub force_chosen: bool,
    /// `drain.unmanaged`: pods that no controller recreates. Default `evict`, as in OpenShift.
    pub unmanaged: DataLossPolicy,
    /// `drain.emptyDir`: pods with data that is lost on eviction. Default `evict`, as in OpenShift.
    pub empty_dir: DataLossPolicy,
    /// `drain.parallel`: parallel evictions, 1 to 100. Default 20: four times what kubectl's own
    /// throttle allows, and no load for an API server.
    pub parallel: u32,
}

/// How updates are carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateSettings {
    /// `update.reboot`. Default `auto`: a machine that is managed by config is expected to follow
    /// it; the plan shows beforehand which change costs a reboot.
    pub reboot: Reboot,
    /// `update.softReboot`. Default `never`: then a config costs the same as under OpenShift, whose
    /// policies have no soft reboot, and kernel settings never survive an update.
    pub soft_reboot: SoftReboot,
    /// `update.policies`: the file with the user's disruption policies, below the root. Default
    /// `/etc/machinist/policies.yaml`, in the settings directory.
    pub policies: AbsPath,
    /// The file is set explicitly, so it must exist.
    pub policies_chosen: bool,
    /// `update.windows` and `update.timeZone`: when updates may start. Default at any time, and
    /// UTC: the one zone that is the same on every machine.
    pub windows: MaintenanceWindows,
    /// `update.verifyTimeout`: how long a boot may take to be as healthy as before. Default 30 min:
    /// kubelets and runtimes of large nodes take minutes, file system checks take more.
    pub verify_timeout: Duration,
    /// `update.bootAttempts`: unhealthy boots before the update is rolled back, 1 to 10. Default 2:
    /// a single failed boot may be a coincidence.
    pub boot_attempts: u32,
    /// The same for an update that changes the operating system. Default 1, unless `update.bootAttempts` is set: the
    /// boot loader has returned to the previous deployment by then.
    pub os_boot_attempts: u32,
    /// `update.rebootTimeout`: the time after which an accepted reboot is overdue. Default 30 min:
    /// services are stopped one after another, with 90 s each by default.
    pub reboot_timeout: Duration,
    /// `update.osStepTimeout`: the time limit of a download and of a change of the operating system. Default 1 h:
    /// images have gigabytes, so twenty minutes over a slow line are not a failure.
    pub os_step_timeout: Duration,
}

/// How actions are carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionSettings {
    /// `actions.settle`: how long a restarted unit is watched for failing. Default 2 s: services
    /// that cannot read their config exit well within it. Zero disables it.
    pub settle: Duration,
    /// `actions.jobTimeout`: the time limit of one systemd job. Default 5 min, above the 90 s that
    /// units have by default to start and again to stop.
    pub job_timeout: Duration,
}

/// How drift of the machine from its config is handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriftSettings {
    /// `drift.default`. Default `report`.
    pub default: DriftPolicy,
    /// `drift.paths`: rules for a path and everything below it.
    pub rules: Vec<DriftRule>,
    /// `drift.fullPass`: the interval of full comparisons, in addition to the watches. Default 6 h:
    /// a safety net against lost events, not the usual way to detect drift.
    pub full_pass: Duration,
}

/// One entry of `drift.paths`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriftRule {
    /// The path; the rule includes everything below it.
    pub path: AbsPath,
    /// The policy for it.
    pub policy: DriftPolicy,
}

impl DriftSettings {
    /// The policy for `path`: that of the rule with the longest matching path.
    pub fn policy(&self, path: &AbsPath) -> DriftPolicy {
        let matching = self.rules.iter().filter(|rule| path.is_under(&rule.path));
        let nearest = matching.max_by_key(|rule| rule.path.components().count());
        nearest.map_or(self.default, |rule| rule.policy)
    }
}

/// How devices are advertised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSettings {
    /// `devices.returnLimit`: how long devices may take to become allocatable again after an
    /// update. Default 5 min: a vendor's own pods must start first.
    pub return_limit: Duration,
    /// `devices.registration`: how resources are registered with the kubelet. Default `kubelet`:
    /// through its own socket a restarted kubelet has them before its first Node update.
    pub registration: Registration,
    /// `devices.rescan`: the interval of hardware scans, in addition to events. Default 10 min.
    pub rescan: Duration,
    /// `devices.cdi`: the allocate response for devices of CDI specs. Default by name: then the
    /// runtime applies the whole spec.
    pub cdi: CdiAnswer,
}

/// How readiness is evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadinessSettings {
    /// `readiness.gates.*`, `readiness.customGates`, `readiness.pressure.*`, `readiness.diskSpace.minFree`,
    /// `readiness.inodes.minFree` and `devices.returnLimit`, in the form that the gates use.
    pub policy: GatePolicy,
    /// `readiness.startupTaint`: the node has the taint `machinist.dev/not-ready` until it has been
    /// ready once. Default off: it also requires that the kubelet registers the Node with the
    /// taint.
    pub startup_taint: bool,
    /// `readiness.diskSpace.paths`: paths whose file systems are watched. Default `/` and `/var`.
    pub disk_paths: Vec<AbsPath>,
}

/// The port for probes and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminSettings {
    /// `admin.listen`. Default 127.0.0.1:10480: the endpoints are for this machine.
    pub listen: SocketAddr,
    /// The address is set explicitly: no other one is tried.
    pub chosen: bool,
}

impl AdminSettings {
    /// The default port, next to those of kubelet and kube-proxy in 102xx and 104xx.
    pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10480);
}

/// The settings for logging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// `log.format`. Default `auto`.
    pub format: LogFormat,
    /// `log.level`. Default `info`: one line per decision.
    pub level: LogLevel,
}

impl Settings {
    /// Whether the agent has this role.
    pub fn has_role(&self, role: AgentRole) -> bool {
        self.roles.contains(&role)
    }

    /// The keys whose values differ.
    pub fn changed(&self, other: &Self) -> Vec<&'static str> {
        let pairs = self.effective.iter().zip(&other.effective);
        let differ = pairs.filter(|(a, b)| a.value != b.value);
        differ.map(|(a, _)| a.key).collect()
    }
}
