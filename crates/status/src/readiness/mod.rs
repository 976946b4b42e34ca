//! Readiness: a list of named gates, computed in one place from plain facts.
//!
//! `/readyz`, `status`, `STATUS=` and the metrics all use this list, and readiness is not computed
//! anywhere else. The evaluation is pure, without files, clock or tokio: observations are passed as
//! [`GateInputs`], the time as an argument.

mod custom_gate_evaluation;
mod custom_gates;
mod facts;
mod gate_evaluation;
mod gate_policy;
mod gate_result;
mod host_gates;

pub use custom_gates::{CustomGate, CustomProbe, Endpoint, GateId, ProbeResult, ProbeResults};
pub use facts::{
    ConfigFacts, DeviceManager, DevicesReturn, FailedUnits, Failure, FreeInodes, FreeSpace,
    GateInputs, KubeletReadiness, MemorySettings, Pressure, RebootFacts,
};
pub use gate_policy::{GatePolicy, MinFree};

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use machinist_base::reason::Reason;

/// The built-in gates, in display order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum GateName {
    /// No config is partly applied, no update has failed, and no drift awaits repair.
    Config,
    /// The requested reboot has happened, and the boot is verified.
    BootProven,
    /// The kubelet has reported ready since this boot.
    Kubelet,
    /// The kubelet's device manager is running, so that devices can be advertised.
    DeviceManagerAbsent,
    /// All resources that existed before the update exist again.
    Devices,
    /// No systemd unit has failed since before the update.
    FailedUnits,
    /// No other daemon manages this machine's config.
    OtherDaemon,
    /// CPU, memory and I/O are not under pressure.
    Pressure,
    /// Enough disk space is free.
    DiskSpace,
    /// Enough inodes are free.
    Inodes,
    /// The clock is synchronised.
    TimeSync,
    /// `/` is writable.
    ReadOnlyRoot,
    /// The kernel's memory settings are suitable for a kubelet.
    KernelMemorySettings,
    /// The settings and the disruption policies on the machine are valid.
    Settings,
}

impl GateName {
    /// All gates, in display order.
    pub const ALL: [Self; 14] = [
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
        Self::Settings,
    ];

    /// The gate's name as text.
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
            Self::Settings => "Settings",
        }
    }
}

impl fmt::Display for GateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The effect of a closed gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GateEffect {
    /// `/readyz` fails.
    Hold,
    /// It is listed, without further effect.
    Warn,
    /// It is evaluated and shown, but never counts as closed.
    Off,
}

/// One gate with its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gate {
    /// Its name.
    pub name: GateId,
    /// Whether it is open.
    pub open: bool,
    /// Its effect while closed.
    pub effect: GateEffect,
    /// When it last opened or closed.
    pub since: Timestamp,
    /// The reason for its state; [`Reason::Ok`] if there is none.
    pub reason: Reason,
    /// One sentence for people.
    pub message: String,
}

/// All gates, each exactly once: those of [`GateName::ALL`] in their order, then the
/// administrator's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Gates(Vec<Gate>);

impl Gates {
    /// Evaluates all gates. A gate whose state does not change keeps its `since`.
    #[must_use]
    pub fn evaluate(&self, inputs: &GateInputs, policy: &GatePolicy, now: Timestamp) -> Self {
        let judged = |name: GateId, effect, verdict: gate_result::GateResult| {
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
            let verdict = gate_evaluation::of(name, inputs, policy, now);
            judged(name.into(), policy.effect(name), verdict)
        });
        let custom = policy.custom_gates.iter().map(|gate| {
            let verdict = custom_gate_evaluation::verdict(&gate.probe, inputs);
            judged(GateId::Custom(gate.name.clone()), gate.effect, verdict)
        });
        Self(known.chain(custom).collect())
    }

    /// Whether the machine is ready: no blocking gate is closed.
    pub fn ready(&self) -> bool {
        self.closed(GateEffect::Hold).next().is_none()
    }

    /// The closed gates with this effect.
    pub fn closed(&self, effect: GateEffect) -> impl Iterator<Item = &Gate> {
        let concerned = move |gate: &&Gate| !gate.open && gate.effect == effect;
        self.0.iter().filter(concerned)
    }

    /// A summary in one sentence, the same for `STATUS=`, `/readyz` and `status`.
    pub fn summary(&self) -> String {
        let named = |effect| {
            let all: Vec<_> = self
                .closed(effect)
                .map(|gate| format!("{} ({})", gate.name, gate.message))
                .collect();
            all.join(", ")
        };
        let (held, warned) = (named(GateEffect::Hold), named(GateEffect::Warn));
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
