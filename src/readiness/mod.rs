//! Readiness: one list of named gates, computed in one place from plain facts.
//!
//! `/readyz`, `status`, `STATUS=` and the metrics all read this list; nobody computes readiness a
//! second time. Pure: no files, no clock, no tokio. What is watched comes in as [`Inputs`], the time
//! as an argument.

mod host;
mod inputs;
pub mod measure;
mod own;
pub mod probe;
pub mod report;
mod verdict;

pub use inputs::{
    Boot, ConfigState, DeviceManager, DevicesReturn, FailedUnits, Failure, FreeInodes, FreeSpace,
    Inputs, Kubelet, MemorySettings, Pressure,
};
pub use own::{Answer, Answers, Endpoint, Name, OwnGate, Probe};

use std::{collections::BTreeMap, fmt, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::reason::Reason;

/// The gates there are, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum GateName {
    /// The machine holds a verified config.
    Config,
    /// The reboot that was ordered has happened, and the boot is verified.
    BootProven,
    /// The kubelet of this node reports, from this boot, that it is ready.
    Kubelet,
    /// A device manager listens, so that devices can be lent.
    DeviceManagerAbsent,
    /// Every resource that was there before the update is there again.
    Devices,
    /// No systemd unit failed that had not failed before.
    FailedUnits,
    /// Nobody else changes this machine's config.
    OtherDaemon,
    /// CPU, memory and I/O are not under pressure.
    Pressure,
    /// There is free space.
    DiskSpace,
    /// There are free inodes.
    Inodes,
    /// The clock is synchronised.
    TimeSync,
    /// `/` can be written to.
    ReadOnlyRoot,
    /// The kernel's memory settings are those that a kubelet works with.
    KernelMemorySettings,
}

impl GateName {
    /// Every gate, in the order in which they are shown.
    pub const ALL: [Self; 13] = [
        Self::Config,
        Self::BootProven,
        Self::Kubelet,
        Self::DeviceManagerAbsent,
        Self::Devices,
        Self::FailedUnits,
        Self::OtherDaemon,
        Self::Pressure,
        Self::DiskSpace,
        Self::Inodes,
        Self::TimeSync,
        Self::ReadOnlyRoot,
        Self::KernelMemorySettings,
    ];

    /// The name as it is written everywhere.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Config => "Config",
            Self::BootProven => "BootProven",
            Self::Kubelet => "Kubelet",
            Self::DeviceManagerAbsent => "DeviceManagerAbsent",
            Self::Devices => "Devices",
            Self::FailedUnits => "FailedUnits",
            Self::OtherDaemon => "OtherDaemon",
            Self::Pressure => "Pressure",
            Self::DiskSpace => "DiskSpace",
            Self::Inodes => "Inodes",
            Self::TimeSync => "TimeSync",
            Self::ReadOnlyRoot => "ReadOnlyRoot",
            Self::KernelMemorySettings => "KernelMemorySettings",
        }
    }

    /// What a closed gate does when the settings are silent.
    ///
    /// What an update can break holds; what a busy machine does by itself only warns.
    pub const fn default_effect(self) -> Effect {
        match self {
            Self::Config | Self::BootProven | Self::Kubelet | Self::Devices | Self::FailedUnits => {
                Effect::Hold
            }
            Self::DeviceManagerAbsent
            | Self::OtherDaemon
            | Self::Pressure
            | Self::DiskSpace
            | Self::Inodes
            | Self::TimeSync
            | Self::ReadOnlyRoot
            | Self::KernelMemorySettings => Effect::Warn,
        }
    }
}

impl fmt::Display for GateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a closed gate does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// Closes `/readyz`.
    Hold,
    /// Is listed, and nothing else.
    Warn,
    /// Is evaluated and shown, and never counts.
    Off,
}

/// One gate with its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gate {
    /// Which one.
    pub name: Name,
    /// Nothing is in the way.
    pub open: bool,
    /// What it does while closed.
    pub effect: Effect,
    /// When it last opened or closed.
    pub since: Timestamp,
    /// Why it is as it is; [`Reason::Ok`] when there is nothing to say.
    pub reason: Reason,
    /// One sentence for people.
    pub message: String,
}

/// What the settings say about the gates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Effects that differ from [`GateName::default_effect`].
    pub effects: BTreeMap<GateName, Effect>,
    /// Share of the last minute, in percent, in which some task waited for the CPU.
    pub cpu_pressure: u8,
    /// The same for memory.
    pub memory_pressure: u8,
    /// The same for I/O.
    pub io_pressure: u8,
    /// Free space below this closes `DiskSpace`.
    pub min_free: MinFree,
    /// Free inodes below this share, in percent, close `Inodes`.
    pub min_inodes: u8,
    /// How long devices may take to come back before the gate opens with a report.
    pub return_limit: Duration,
    /// Gates of the administrator's own.
    pub own: Vec<OwnGate>,
}

impl Policy {
    /// What `name` does while closed.
    pub fn effect(&self, name: GateName) -> Effect {
        let set = self.effects.get(&name).copied();
        set.unwrap_or_else(|| name.default_effect())
    }
}

/// The least free space of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinFree {
    /// Of its size, 0 to 100.
    Percent(u8),
    /// In bytes.
    Bytes(u64),
}

/// All gates, each exactly once, in the order of [`GateName::ALL`]; then the administrator's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Gates(Vec<Gate>);

impl Gates {
    /// Judges every gate anew. A gate that neither opened nor closed keeps its `since`.
    #[must_use]
    pub fn evaluate(&self, inputs: &Inputs, policy: &Policy, now: Timestamp) -> Self {
        let judged = |name: Name, effect, verdict: verdict::Verdict| {
            let mut before = self.0.iter().filter(|gate| gate.name == name);
            let before = before.find(|gate| gate.open == verdict.open);
            Gate {
                open: verdict.open,
                effect,
                since: before.map_or(now, |gate| gate.since),
                reason: verdict.reason,
                message: verdict.message,
                name,
            }
        };
        let known = GateName::ALL.into_iter().map(|name| {
            let verdict = verdict::of(name, inputs, policy, now);
            judged(name.into(), policy.effect(name), verdict)
        });
        let own = policy.own.iter().map(|gate| {
            let verdict = own::verdict(&gate.probe, inputs);
            judged(Name::Own(gate.name.clone()), gate.effect, verdict)
        });
        Self(known.chain(own).collect())
    }

    /// Whether the machine is fit for work: no closed gate holds.
    pub fn ready(&self) -> bool {
        self.closed(Effect::Hold).next().is_none()
    }

    /// The closed gates with this effect.
    pub fn closed(&self, effect: Effect) -> impl Iterator<Item = &Gate> {
        let concerned = move |gate: &&Gate| !gate.open && gate.effect == effect;
        self.0.iter().filter(concerned)
    }

    /// One sentence, the same for `STATUS=`, `/readyz` and `status`.
    pub fn summary(&self) -> String {
        let named = |effect| {
            let all: Vec<_> = self
                .closed(effect)
                .map(|gate| format!("{} ({})", gate.name, gate.message))
                .collect();
            all.join(", ")
        };
        let (held, warned) = (named(Effect::Hold), named(Effect::Warn));
        match (held.as_str(), warned.as_str()) {
            ("", "") => "ready".to_owned(),
            ("", warned) => format!("ready; warnings: {warned}"),
            (held, _) => format!("not ready: {held}"),
        }
    }

    /// One gate; none only before the first evaluation.
    pub fn get(&self, name: GateName) -> Option<&Gate> {
        self.0.iter().find(|gate| gate.name == name)
    }

    /// All gates in order.
    pub fn iter(&self) -> impl Iterator<Item = &Gate> {
        self.0.iter()
    }
}

impl FromIterator<Gate> for Gates {
    fn from_iter<I: IntoIterator<Item = Gate>>(gates: I) -> Self {
        Self(gates.into_iter().collect())
    }
}

#[cfg(test)]
mod tests;
