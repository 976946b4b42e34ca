//! What the driver is told, and whom it tells.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::{
    digest::Digest,
    machine_config::{MachineConfig, Refusal},
    path::AbsPath,
    plan::{Capabilities, Plan, Policies},
    reason::Reason,
    window::Windows,
};

/// What the source says the machine should be.
#[derive(Clone, Debug, Default)]
pub enum Desired {
    /// Nothing was read yet.
    #[default]
    Unknown,
    /// The source was read, and asks for nothing: a Node that no pool has taken up.
    Nothing,
    /// What was read cannot be accepted; the machine keeps what it has.
    Refused(Arc<Vec<Refusal>>),
    /// A config that holds together by itself.
    Config(Arc<MachineConfig>, Digest),
    /// The same, and nothing may be begun for it: an update that has changed nothing of the machine yet
    /// is given up, and the pods may come back; one that has goes to its end.
    Barred(Arc<MachineConfig>, Digest, Arc<Bar>),
}

/// Why nothing is begun for what is desired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    /// The stable code.
    pub reason: Reason,
    /// One sentence.
    pub message: String,
}

impl Desired {
    /// Whether publishing `other` instead would tell nobody anything.
    pub fn says_the_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unknown, Self::Unknown) | (Self::Nothing, Self::Nothing) => true,
            (Self::Refused(known), Self::Refused(other)) => known == other,
            (Self::Config(known, digest), Self::Config(other, same)) => {
                digest == same && known.name == other.name
            }
            (Self::Barred(known, digest, bar), Self::Barred(other, same, bars)) => {
                digest == same && known.name == other.name && bar == bars
            }
            _ => false,
        }
    }

    /// The config that is named, whether or not anything may be begun for it.
    pub const fn config(&self) -> Option<(&Arc<MachineConfig>, Digest)> {
        match self {
            Self::Config(config, digest) | Self::Barred(config, digest, _) => {
                Some((config, *digest))
            }
            Self::Unknown | Self::Nothing | Self::Refused(_) => None,
        }
    }

    /// Why nothing may be begun for it.
    pub const fn bar(&self) -> Option<&Arc<Bar>> {
        match self {
            Self::Barred(_, _, bar) => Some(bar),
            _ => None,
        }
    }
}

/// How the driver behaves.
#[derive(Clone, Debug)]
pub struct Conduct {
    /// Order a reboot when one is needed; otherwise wait for a person.
    pub reboot: RebootConduct,
    /// How long a boot may take to be as well as the one before the update.
    pub verify_timeout: Duration,
    /// Boots with an unverified update, after which it is undone.
    pub boot_attempts: u32,
    /// How long an accepted reboot may take.
    pub reboot_timeout: Duration,
    /// How long a job may take.
    pub job_timeout: Duration,
    /// How long a restarted unit is watched.
    pub settle: Duration,
    /// Time between two full looks for drift.
    pub full_pass: Duration,
    /// When updates may begin.
    pub windows: Windows,
    /// What happens to what drifts.
    pub drift: DriftConduct,
    /// What this root and this process can do.
    pub capabilities: Capabilities,
    /// Which change causes which action.
    pub policies: Arc<Policies>,
}

/// What happens to paths that are no longer as configured.
#[derive(Clone, Debug, Default)]
pub struct DriftConduct {
    /// Where no rule says otherwise.
    pub default: DriftAct,
    /// Rules for a path and what is below it; the longest path decides.
    pub rules: Vec<(AbsPath, DriftAct)>,
}

/// What happens to a path that is no longer as configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriftAct {
    /// It is shown.
    #[default]
    Report,
    /// It is shown and put back.
    Repair,
    /// Nothing.
    Ignore,
}

impl DriftConduct {
    /// What happens to `path`.
    pub fn act(&self, path: &AbsPath) -> DriftAct {
        let rules = self.rules.iter().filter(|(at, _)| path.is_under(at));
        let nearest = rules.max_by_key(|(at, _)| at.components().count());
        nearest.map_or(self.default, |(_, act)| *act)
    }
}

/// Who reboots the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebootConduct {
    /// The agent.
    Auto,
    /// A person, who is told.
    Ask,
    /// A person.
    Never,
}

/// What the driver tells and asks, beside its reports.
pub trait Audience: Send + Sync + 'static {
    /// Shows a plan before it begins; `false` leaves the machine as it is.
    fn approve(&self, plan: &Plan) -> bool;
    /// The loop has turned. Called at least every [`Audience::tick`] while it is well.
    fn beat(&self);
    /// How often a beat is wanted though nothing happens.
    fn tick(&self) -> Duration {
        TICK
    }
    /// Waits until somebody asks whether the loop turns; it then beats. Dropped without harm.
    fn asked(&self) -> impl Future<Output = ()> + Send;
    /// Default gateways that answer, by address. Nobody knows any where this is not told.
    fn gateways(&self) -> impl Future<Output = BTreeSet<String>> + Send {
        async { BTreeSet::new() }
    }
    /// Allocatable devices by resource, as they are now.
    fn allocatable(&self) -> BTreeMap<String, usize>;
}

/// How often the loop shows by itself that it turns: two signs of life within the watchdog that the
/// unit file sets (five minutes), for a wake-up or two an idle minute. A probe asks and is answered.
pub const TICK: Duration = Duration::from_secs(120);
