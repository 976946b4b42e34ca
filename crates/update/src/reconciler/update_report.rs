//! Defines the reconciler's report, for status, gates, and metrics.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;

use super::{BlockReason, planning};
use crate::{
    journal::{ConfigName, DeviceUsers, UpdateFailure, UpdateRecord},
    node_port::Blocker,
    os::FetchProgress,
    phase::Phase,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::Refusal;
use machinist_plan::DriftEntry;

/// The state of the machine's updates. Published on every change; only the progress of a download is
/// looked up on a timer.
#[derive(Clone, Debug, Default)]
pub struct UpdateReport {
    /// The phase.
    pub phase: Phase,
    /// When the phase began.
    pub since: Timestamp,
    /// The configs.
    pub config: UpdateConfigState,
    /// Why no update may begin for the desired config.
    pub blocked: Option<BlockedUpdate>,
    /// Why the last update failed.
    pub failure: Option<UpdateFailure>,
    /// Refusals of the last config that was read; the machine keeps the last accepted config.
    pub refused: Arc<Vec<Refusal>>,
    /// Warnings about the desired config that do not prevent its use.
    pub warnings: Vec<String>,
    /// Warnings of the plan for the desired config, until the machine is on it.
    pub plan_warnings: Vec<String>,
    /// Drift from the config.
    pub drift: Vec<DriftEntry>,
    /// The drifted paths that another writer changed again after several repairs.
    pub suspended_repairs: BTreeSet<AbsPath>,
    /// Paths whose labels could not be set.
    pub labels_pending: Vec<AbsPath>,
    /// The journal cannot be read, so the machine's config is unknown.
    pub unknown: bool,
    /// There are unverified changes on the disk.
    pub unverified: bool,
    /// These changes only repair a path that a user controls.
    pub repairs_users_path: bool,
    /// The running boot; `None` for an offline root.
    pub boot: Option<String>,
    /// The boot in which a reboot became necessary, until the boot after it is verified.
    pub reboot_needed_in: Option<String>,
    /// Allocatable devices by resource before the last update that rebooted, and the time of that count.
    pub devices_before: Option<(BTreeMap<String, usize>, Timestamp)>,
    /// Units that had already failed before the last update, or at the first start if there was no update.
    pub failed_units_before: Vec<String>,
    /// What blocks an update in the cluster.
    pub blockers: Vec<Blocker>,
    /// Since when the node is cordoned for an update.
    pub cordoned: Option<Timestamp>,
    /// The state of device allocation.
    pub device_users: DeviceUsers,
    /// When the maintenance window opens for which an update waits.
    pub opens: Option<Timestamp>,
    /// The update waits for the time that the cluster has set, not for a window.
    pub opens_for_the_cluster: bool,
    /// The progress of the download of an OS image.
    pub download: Option<FetchProgress>,
    /// The last operator request that was received.
    pub requested: u64,
    /// Finished updates, newest first.
    pub updates: Vec<UpdateRecord>,
}

/// Why no update may begin for the desired config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedUpdate {
    /// The cause.
    pub cause: Arc<BlockReason>,
    /// The machine is unchanged by this config. If false, the update has begun and continues to its end.
    pub stands: bool,
}

/// The current and the desired config of the machine.
#[derive(Clone, Debug, Default)]
pub struct UpdateConfigState {
    /// The verified config.
    pub current: Option<ConfigName>,
    /// The desired config.
    pub desired: Option<ConfigName>,
}

impl UpdateReport {
    /// Returns whether a boot is being judged: a machine that is not healthy yet may become so, or
    /// the config is rolled back.
    pub const fn is_boot_judged(&self) -> bool {
        matches!(self.phase, Phase::Booted | Phase::Verifying)
    }

    /// Returns whether a failure may pass: a boot is being judged, and the machine is not healthy yet, or another program
    /// changes the boot loader. The machine recovers, or the config is rolled back.
    pub fn may_pass(&self, failure: &UpdateFailure) -> bool {
        let is_temporary = failure.retryable || failure.code == Reason::HealthRegressed;
        is_temporary && self.is_boot_judged()
    }

    /// Returns what prevents the machine from reaching its config: the update's failure, or else the refusal of the
    /// config that was read last. A refusal belongs to no update and disappears with the next config that is read.
    pub fn blocking_failure(&self) -> Option<UpdateFailure> {
        let refused = || {
            let first = self.refused.first()?;
            Some(UpdateFailure {
                code: first.reason,
                message: crate::bounded(
                    planning::PlanRefusedError(self.refused.to_vec()).to_string(),
                ),
                retryable: false,
                digest: None,
                refusals: crate::bounded_refusals(&self.refused),
            })
        };
        self.failure.clone().or_else(refused)
    }
}
