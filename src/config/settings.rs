//! What the rest of the program may rely on. Nothing here is optional, everything is in range.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use super::{
    cluster::Kubeconfig,
    reader::Effective,
    value::Source,
    words::{
        CdiAnswer, DrainBy, DriftPolicy, Job, LogFormat, LogLevel, Losing, Owners, Reboot,
        Registration, SoftReboot,
    },
};
use crate::{path::AbsPath, readiness::Policy, window::Windows};

/// The effective settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `source`: where the desired config comes from. Default `auto`.
    pub source: Source,
    /// `source.role`: the roles of the machine, by which MachineConfigs of a directory are chosen. Default
    /// none: all of them must have the same.
    pub source_roles: Vec<String>,
    /// `jobs`: what the agent does here. Default all three.
    pub jobs: Vec<Job>,
    /// `owners`: whose files the agent makes. Default `auto`.
    pub owners: Owners,
    /// `cluster`.
    pub cluster: Cluster,
    /// `update`.
    pub update: Update,
    /// `drain`.
    pub drain: Drain,
    /// `actions`.
    pub actions: Actions,
    /// `drift`.
    pub drift: Drift,
    /// `users.allowed`: whom a config may manage. Default `core`, as OpenShift has it.
    pub users_allowed: Vec<String>,
    /// `groups.allowed`: which groups a config may make, change or remove. Default none.
    pub groups_allowed: Vec<String>,
    /// `devices`.
    pub devices: Devices,
    /// `readiness`.
    pub readiness: Readiness,
    /// `admin`.
    pub admin: Admin,
    /// `log`.
    pub log: Log,
    /// Every key with its value and origin, by name.
    pub effective: Vec<Effective>,
}

/// How the cluster is found that this machine is a node of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// `cluster.node`: the Node's name. Default: `NODE_NAME` of the environment, as the DaemonSet sets it,
    /// else the host's name, as kubelets take it.
    pub node: Option<String>,
    /// `cluster.kubeconfig`. Default none: a pod has its service account.
    pub kubeconfig: Kubeconfig,
}

/// How pods are taken off the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// `drain.by`. Default `auto`.
    pub by: DrainBy,
    /// `drain.forceAfter`: for how long a drain asks before it deletes. Default never: a budget is an
    /// application's word.
    pub force_after: Option<Duration>,
    /// Somebody set it: what the cluster's UpgradeConfig says does not count.
    pub force_chosen: bool,
    /// `drain.unmanaged`: pods that nobody makes anew. Default `evict`, as OpenShift does.
    pub unmanaged: Losing,
    /// `drain.emptyDir`: pods with data that goes with them. Default `evict`, as OpenShift does.
    pub empty_dir: Losing,
    /// `drain.parallel`: evictions on their way at a time, 1 to 100. Default 20: four times what kubectl's
    /// own throttle leaves, and nothing to an API server.
    pub parallel: u32,
}

/// How updates go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// `update.reboot`. Default `auto`: a machine that is configured by config is expected to follow
    /// it; the plan tells beforehand which change costs a reboot.
    pub reboot: Reboot,
    /// `update.softReboot`. Default `never`: what a config costs is then what it costs under OpenShift,
    /// whose policies know no soft reboot, and what the kernel was told never outlives an update.
    pub soft_reboot: SoftReboot,
    /// `update.policies`: the file with the user's disruption policies, below the root. Default
    /// `/etc/machinist/policies.yaml`, beside the settings.
    pub policies: AbsPath,
    /// Somebody named the file: it must be there.
    pub policies_chosen: bool,
    /// `update.windows` and `update.timeZone`: when updates may begin. Default at any time, and UTC:
    /// the one zone that means the same on every machine.
    pub windows: Windows,
    /// `update.verifyTimeout`: how long a boot may take to be as well as before. Default 30 min:
    /// kubelets and runtimes of large nodes take minutes, storage that is checked takes more.
    pub verify_timeout: Duration,
    /// `update.bootAttempts`: boots that may be unwell before the update is undone, 1 to 10.
    /// Default 2: one bad boot can be bad luck.
    pub boot_attempts: u32,
    /// `update.rebootTimeout`: how long after it was accepted a reboot counts as overdue. Default
    /// 30 min: services are stopped one after another, with 90 s each by default.
    pub reboot_timeout: Duration,
}

/// How actions are carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actions {
    /// `actions.settle`: how long a restarted unit is watched for dying again. Default 2 s: services
    /// that cannot read their config exit well within it. Zero watches nothing.
    pub settle: Duration,
    /// `actions.jobTimeout`: how long one systemd job may take. Default 5 min, above the 90 s that
    /// units have by default to start and again to stop.
    pub job_timeout: Duration,
}

/// What happens when the machine is no longer what the config says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// `drift.default`. Default `report`.
    pub default: DriftPolicy,
    /// `drift.paths`: rules for a path and what is below it.
    pub rules: Vec<DriftRule>,
    /// `drift.fullPass`: how often everything is compared, beside the watches. Default 6 h: a safety
    /// net against lost events, not the way drift is found.
    pub full_pass: Duration,
}

/// One entry of `drift.paths`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriftRule {
    /// The path; everything below it is meant too.
    pub path: AbsPath,
    /// What happens there.
    pub policy: DriftPolicy,
}

impl Drift {
    /// What happens to `path`: the rule with the longest path above it decides.
    pub fn policy(&self, path: &AbsPath) -> DriftPolicy {
        let matching = self.rules.iter().filter(|rule| path.is_under(&rule.path));
        let nearest = matching.max_by_key(|rule| rule.path.components().count());
        nearest.map_or(self.default, |rule| rule.policy)
    }
}

/// How devices are lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    /// `devices.returnLimit`: how long devices may take to come back after an update. Default 5 min:
    /// a vendor's own pods must start first.
    pub return_limit: Duration,
    /// `devices.registration`: how the kubelet learns of resources. Default `kubelet`: by its own socket it knows
    /// them again before it tells its Node anything after a restart.
    pub registration: Registration,
    /// `devices.rescan`: how often hardware is looked at anew, beside events. Default 10 min.
    pub rescan: Duration,
    /// `devices.cdi`: what the kubelet is answered for devices of CDI specs. Default by name: the spec is then
    /// applied whole.
    pub cdi: CdiAnswer,
}

/// How readiness is judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// `readiness.gates.*`, `readiness.own`, `readiness.pressure.*`, `readiness.diskSpace.minFree`,
    /// `readiness.inodes.minFree` and `devices.returnLimit`, as the gates take them.
    pub policy: Policy,
    /// `readiness.startupTaint`: the node bears `machinist.dev/not-ready` until it was ready once. Default
    /// off: whoever wants it also lets the kubelet register with it.
    pub startup_taint: bool,
    /// `readiness.diskSpace.paths`: whose file systems are watched. Default `/` and `/var`.
    pub disk_paths: Vec<AbsPath>,
}

/// The administrator's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admin {
    /// `admin.listen`. Default 127.0.0.1:10480: what is served there is for this machine.
    pub listen: SocketAddr,
    /// Somebody chose the address: it is that one or none.
    pub chosen: bool,
}

impl Admin {
    /// The port of the agent, beside the kubelet's and kube-proxy's in the 102xx and 104xx.
    pub const DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10480);
}

/// What is logged, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// `log.format`. Default `auto`.
    pub format: LogFormat,
    /// `log.level`. Default `info`: one line per decision.
    pub level: LogLevel,
}

impl Settings {
    /// Whether `job` is to be done here.
    pub fn does(&self, job: Job) -> bool {
        self.jobs.contains(&job)
    }

    /// The keys whose values differ.
    pub fn changed(&self, other: &Self) -> Vec<&'static str> {
        let pairs = self.effective.iter().zip(&other.effective);
        let differ = pairs.filter(|(a, b)| a.value != b.value);
        differ.map(|(a, _)| a.key).collect()
    }
}
