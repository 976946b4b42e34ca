//! The effect and the thresholds of each gate: defaults, and the administrator's settings.

use std::{collections::BTreeMap, time::Duration};

use super::{CustomGate, GateEffect, GateName};

impl GateName {
    /// The effect of the closed gate, unless configured otherwise.
    ///
    /// Gates for problems that an update can cause block; gates for the load of a machine only
    /// warn.
    pub const fn default_effect(self) -> GateEffect {
        match self {
            Self::Config | Self::BootProven | Self::Kubelet | Self::Devices | Self::FailedUnits => {
                GateEffect::Hold
            }
            Self::DeviceManagerAbsent
            | Self::OtherDaemon
            | Self::Pressure
            | Self::DiskSpace
            | Self::Inodes
            | Self::TimeSync
            | Self::ReadOnlyRoot
            | Self::KernelMemorySettings
            | Self::Settings => GateEffect::Warn,
        }
    }
}

/// The settings of the gates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatePolicy {
    /// Effects that differ from [`GateName::default_effect`].
    pub effects: BTreeMap<GateName, GateEffect>,
    /// Limit of CPU pressure: the share of the last minute, in percent, in which some task waited.
    pub cpu_pressure: u8,
    /// The same for memory.
    pub memory_pressure: u8,
    /// The same for I/O.
    pub io_pressure: u8,
    /// `DiskSpace` closes below this free space.
    pub min_free: MinFree,
    /// `Inodes` closes below this share of free inodes, in percent.
    pub min_inodes: u8,
    /// How long devices may take to return before the gate opens with a report.
    pub return_limit: Duration,
    /// The gates that the administrator defines.
    pub custom_gates: Vec<CustomGate>,
}

impl GatePolicy {
    /// The effect of `name` while closed.
    pub fn effect(&self, name: GateName) -> GateEffect {
        let set = self.effects.get(&name).copied();
        set.unwrap_or_else(|| name.default_effect())
    }
}

/// The minimum free space of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinFree {
    /// Percentage of its size, 0 to 100.
    Percent(u8),
    /// In bytes.
    Bytes(u64),
}

impl MinFree {
    /// Whether a file system of `size` bytes with `free` bytes has less than this.
    ///
    /// Multiplied instead of divided, so that the limit is exact. A size of zero (a pseudo file system)
    /// has no percentage and is never too full by percentage.
    pub fn is_short(self, free: u64, size: u64) -> bool {
        match self {
            Self::Bytes(least) => free < least,
            Self::Percent(least) => u128::from(free) * 100 < u128::from(size) * u128::from(least),
        }
    }
}
