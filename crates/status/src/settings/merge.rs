//! Merges fragments into settings: defines the keys, their valid values and their defaults.

use std::{collections::BTreeMap, time::Duration};

use jiff::tz::TimeZone;

use super::{
    cluster::{Kubeconfig, NodeName, TimeLimit},
    enums::{
        AgentRole, CdiAnswer, DataLossPolicy, DrainBy, DriftPolicy, LogFormat, LogLevel, Owners,
        Reboot, Registration, SoftReboot,
    },
    error::SettingsError,
    extract::{FragmentReader, Mismatches, Setting, ValueMismatch, has_duplicates},
    fragment::{Fragment, ValueNode, ValueShape},
    model::{
        ActionSettings, AdminSettings, ClusterSettings, DeviceSettings, DrainSettings, DriftRule,
        DriftSettings, LogSettings, ReadinessSettings, Settings, UpdateSettings,
    },
    pinned_images::PinnedImageSettings,
    roles::Roles,
    value_types::{GroupName, Percent, SourceSetting, UserName},
};
use crate::readiness::{GateEffect, GateName, GatePolicy, MinFree};
use machinist_base::{abs_path::AbsPath, maintenance_window::MaintenanceWindows};

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

impl Settings {
    /// Merges fragments key by key; later ones win.
    pub fn from_fragments(
        fragments: impl IntoIterator<Item = Fragment>,
    ) -> Result<Self, SettingsError> {
        let mut read = FragmentReader::new(fragments);
        let some = |roles: &Vec<AgentRole>| distinct(roles, "at least one role, each once");
        let source = read.take("source", SourceSetting::Auto);
        let source_roles = read.take("source.role", Roles::default());
        let roles = read.take_if("roles", AgentRole::ALL.to_vec(), some);
        let owners = read.take("owners", Owners::Auto);
        let users = read.take("users.allowed", vec![UserName("core".to_owned())]);
        let groups = read.take("groups.allowed", Vec::<GroupName>::new());
        let devices = DeviceSettings::read(&mut read);
        let mut settings = Self {
            source,
            source_roles: source_roles.0,
            roles,
            owners,
            cluster: ClusterSettings::read(&mut read),
            update: UpdateSettings::read(&mut read),
            drain: DrainSettings::read(&mut read),
            actions: ActionSettings::read(&mut read),
            drift: DriftSettings::read(&mut read),
            pinned_images: PinnedImageSettings::read(&mut read),
            users_allowed: users.into_iter().map(|user| user.0).collect(),
            groups_allowed: groups.into_iter().map(|group| group.0).collect(),
            readiness: ReadinessSettings::read(&mut read, devices.return_limit),
            devices,
            admin: AdminSettings::read(&mut read),
            log: LogSettings::read(&mut read),
            effective: Vec::new(),
        };
        let (effective, problems) = read.finish();
        settings.effective = effective;
        match problems.is_empty() {
            true => Ok(settings),
            false => Err(SettingsError::new(problems)),
        }
    }
}

impl ClusterSettings {
    fn read(read: &mut FragmentReader) -> Self {
        let node = read.take("cluster.node", NodeName(String::new())).0;
        Self {
            node: (!node.is_empty()).then_some(node),
            kubeconfig: read.take("cluster.kubeconfig", Kubeconfig::None),
        }
    }
}

impl DrainSettings {
    fn read(read: &mut FragmentReader) -> Self {
        let some = |count: &u32| match count {
            1..=100 => Ok(()),
            _ => Err("a number from 1 to 100"),
        };
        // Elsewhere zero means no limit; here it would delete pods without one attempt to evict them.
        let limited = |limit: &TimeLimit| match limit.0 {
            Some(limit) if limit.is_zero() => Err("never, or a duration above 0, such as 30m"),
            _ => Ok(()),
        };
        Self {
            by: read.take("drain.by", DrainBy::Auto),
            force_after: read.take_if("drain.forceAfter", TimeLimit(None), limited).0,
            force_chosen: read.is_set("drain.forceAfter"),
            unmanaged: read.take("drain.unmanaged", DataLossPolicy::Evict),
            empty_dir: read.take("drain.emptyDir", DataLossPolicy::Evict),
            parallel: read.take_if("drain.parallel", 20, some),
        }
    }
}

impl UpdateSettings {
    fn read(read: &mut FragmentReader) -> Self {
        let attempts = |count: &u32| match count {
            1..=10 => Ok(()),
            _ => Err("a number from 1 to 10"),
        };
        let policies = AbsPath::new("/etc/machinist/policies.yaml");
        let boot_attempts = read.take_if("update.bootAttempts", 2, attempts);
        Self {
            reboot: read.take("update.reboot", Reboot::Auto),
            soft_reboot: read.take("update.softReboot", SoftReboot::Never),
            policies: read.take(
                "update.policies",
                policies.unwrap_or_else(|_| AbsPath::root()),
            ),
            policies_chosen: read.is_set("update.policies"),
            windows: MaintenanceWindows {
                windows: read.take("update.windows", Vec::new()),
                zone: read.take("update.timeZone", TimeZone::UTC),
            },
            verify_timeout: read.take_if("update.verifyTimeout", minutes(30), positive),
            boot_attempts,
            os_boot_attempts: match read.is_set("update.bootAttempts") {
                true => boot_attempts,
                false => 1,
            },
            reboot_timeout: read.take_if("update.rebootTimeout", minutes(30), positive),
            os_step_timeout: read.take_if("update.osStepTimeout", minutes(60), positive),
        }
    }
}

impl ActionSettings {
    fn read(read: &mut FragmentReader) -> Self {
        Self {
            settle: read.take("actions.settle", seconds(2)),
            job_timeout: read.take_if("actions.jobTimeout", minutes(5), positive),
        }
    }
}

impl DriftSettings {
    fn read(read: &mut FragmentReader) -> Self {
        let once = |rules: &Vec<DriftRule>| {
            let paths: Vec<_> = rules.iter().map(|rule| &rule.path).collect();
            match has_duplicates(&paths) {
                true => Err("each path once"),
                false => Ok(()),
            }
        };
        Self {
            default: read.take("drift.default", DriftPolicy::Report),
            rules: read.take_if("drift.paths", Vec::new(), once),
            full_pass: read.take_if("drift.fullPass", minutes(6 * 60), positive),
        }
    }
}

impl DeviceSettings {
    fn read(read: &mut FragmentReader) -> Self {
        Self {
            return_limit: read.take_if("devices.returnLimit", minutes(5), positive),
            registration: read.take("devices.registration", Registration::Kubelet),
            rescan: read.take_if("devices.rescan", minutes(10), positive),
            cdi: read.take("devices.cdi", CdiAnswer::Names),
        }
    }
}

impl ReadinessSettings {
    /// Reads the readiness policy. Defaults of the pressure thresholds: a busy CPU is normal, while
    /// waiting for memory in two of five seconds during a minute means that the machine swaps or
    /// reclaims all the time.
    fn read(read: &mut FragmentReader, return_limit: Duration) -> Self {
        let effects: BTreeMap<GateName, GateEffect> = GateName::ALL
            .into_iter()
            .map(|name| (name, read.take(gate_key(name), name.default_effect())))
            .collect();
        let here = |path: &str| AbsPath::new(path).ok();
        let paths = ["/", "/var"].into_iter().filter_map(here).collect();
        Self {
            policy: GatePolicy {
                effects,
                cpu_pressure: read.take("readiness.pressure.cpu", Percent(90)).0,
                memory_pressure: read.take("readiness.pressure.memory", Percent(40)).0,
                io_pressure: read.take("readiness.pressure.io", Percent(80)).0,
                min_free: read.take("readiness.diskSpace.minFree", MinFree::Percent(5)),
                min_inodes: read.take("readiness.inodes.minFree", Percent(5)).0,
                return_limit,
                custom_gates: read.take_if(
                    "readiness.customGates",
                    Vec::new(),
                    |gates: &Vec<_>| super::custom_gates::distinct(gates),
                ),
            },
            startup_taint: read.take("readiness.startupTaint", false),
            disk_paths: read.take("readiness.diskSpace.paths", paths),
        }
    }
}

impl AdminSettings {
    fn read(read: &mut FragmentReader) -> Self {
        Self {
            listen: read.take("admin.listen", Self::DEFAULT_ADDRESS),
            chosen: read.is_set("admin.listen"),
        }
    }
}

impl LogSettings {
    fn read(read: &mut FragmentReader) -> Self {
        Self {
            format: read.take("log.format", LogFormat::Auto),
            level: read.take("log.level", LogLevel::Info),
        }
    }
}

const fn gate_key(name: GateName) -> &'static str {
    match name {
        GateName::Config => "readiness.gates.Config",
        GateName::BootProven => "readiness.gates.BootProven",
        GateName::Kubelet => "readiness.gates.Kubelet",
        GateName::DeviceManagerAbsent => "readiness.gates.DeviceManagerAbsent",
        GateName::Devices => "readiness.gates.Devices",
        GateName::FailedUnits => "readiness.gates.FailedUnits",
        GateName::OtherDaemon => "readiness.gates.OtherDaemon",
        GateName::Pressure => "readiness.gates.Pressure",
        GateName::DiskSpace => "readiness.gates.DiskSpace",
        GateName::Inodes => "readiness.gates.Inodes",
        GateName::TimeSync => "readiness.gates.TimeSync",
        GateName::ReadOnlyRoot => "readiness.gates.ReadOnlyRoot",
        GateName::KernelMemorySettings => "readiness.gates.KernelMemorySettings",
        GateName::Settings => "readiness.gates.Settings",
    }
}

fn positive(limit: &Duration) -> Result<(), &'static str> {
    match limit.is_zero() {
        true => Err("a duration above zero"),
        false => Ok(()),
    }
}

fn distinct<T: PartialEq>(all: &[T], expected: &'static str) -> Result<(), &'static str> {
    match all.is_empty() || has_duplicates(all) {
        true => Err(expected),
        false => Ok(()),
    }
}

impl Setting for DriftRule {
    fn read(node: &ValueNode) -> Result<Self, Vec<ValueMismatch>> {
        let whole = || ValueMismatch::new(node, "a mapping with path and policy");
        let ValueShape::Map(entries) = &node.shape else {
            return Err(vec![whole()]);
        };
        let (mut path, mut policy) = (None, None);
        let mut wrong = Mismatches::default();
        for (key, value) in entries {
            let below = format!(".{key}");
            match key.as_str() {
                "path" => path = wrong.take(&below, Setting::read(value)),
                "policy" => policy = wrong.take(&below, Setting::read(value)),
                _ => wrong.add(&below, value, "only path and policy"),
            }
        }
        let rule = path.zip(policy);
        wrong.or(rule.map(|(path, policy)| Self { path, policy }), whole)
    }

    fn show(&self) -> serde_json::Value {
        serde_json::json!({"path": self.path.as_str(), "policy": self.policy.as_str()})
    }
}
