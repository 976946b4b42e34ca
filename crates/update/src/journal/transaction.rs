//! Defines the journal's record of one transaction.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    ActionRecord, ConfigName, GivenLabels, OperationRecord, Outcome, PhaseRecord, UpdateFailure,
    UpdateRecord,
};
use machinist_base::abs_path::AbsPath;
use machinist_plan::{ActionKind, EditTarget};
use machinist_rootfs::ObjectIdentity;

/// Maximum number of phases that are kept of one transaction. A failing undo is retried forever, and the journal
/// must not grow with it. The oldest and the newest phases are kept; those in the middle are dropped.
const MAX_PHASES: usize = 64;

/// One attempt to change the tree from one config to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Transaction {
    /// Identifier, used in the names of staging directories and in log fields.
    pub id: String,
    /// Its progress.
    pub mark: TransactionState,
    /// Its direction. An undo is never undone.
    pub direction: Direction,
    /// The previous config; `None` if the machine had none.
    pub from: Option<ConfigName>,
    /// The new config.
    pub to: ConfigName,
    /// When `Intent` was recorded.
    pub started: Timestamp,
    /// Staging directories, to be emptied when the transaction ends.
    pub staging: Vec<AbsPath>,
    /// Directories at mount points that machinist created for staging directories. Known from `Staged` on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub holders: BTreeMap<AbsPath, ObjectIdentity>,
    /// Paths whose objects were left as a user had changed them, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<String>,
    /// The entries among them that are in the config, by the path in it and by the canonical path.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub skipped: BTreeSet<AbsPath>,
    /// The operations on the tree, in commit order.
    pub operations: Vec<OperationRecord>,
    /// Paths that already matched and that this config is the first to name.
    pub adopted: BTreeSet<AbsPath>,
    /// Paths of previous configs that this config does not name: objects found there later belong to another
    /// writer.
    #[serde(default)]
    pub released: BTreeSet<AbsPath>,
    /// Entries of users and groups that this config does not name: their previous values are no longer restored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub let_go: Vec<EditTarget>,
    /// SELinux labels of the new objects. Known from `Staged` on.
    #[serde(default, skip_serializing_if = "GivenLabels::is_empty")]
    pub labels: GivenLabels,
    /// The actions after the commit, in order.
    pub actions: Vec<ActionRecord>,
    /// The boot in which `Committed` was reached, as [`current`](crate::boot_id::current) names it. A
    /// different name means that the machine has rebooted since.
    pub committed_boot: Option<String>,
    /// Number of boots since the commit, while the transaction is not verified. The boot of the commit does not
    /// count.
    pub boots: u32,
    /// The last boot that was counted, so that no boot counts twice.
    #[serde(default)]
    pub counted_boot: Option<String>,
    /// The last reboot that was requested.
    pub reboot: Option<RebootRecord>,
    /// Why it is being undone, if it is.
    pub undo_reason: Option<UpdateFailure>,
    /// An undo has durably restored everything; only its reboot may be missing.
    pub reverted: bool,
    /// The machine had booted into the config that is being undone, so it must boot again.
    pub booted_into: bool,
    /// The config was applied to an offline root, where no service manager runs.
    pub offline: bool,
    /// Warnings of the plan, for the status of a process that starts before the update has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// When each phase began and ended.
    pub phases: Vec<PhaseRecord>,
}

/// Progress of a transaction. Recovery after a crash depends on this alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TransactionState {
    /// The list of operations is durable, and the machine is unchanged. Recovery drops the transaction.
    Intent,
    /// Every new object is durable in staging. Recovery commits the transaction.
    Staged,
    /// Every operation is done and durable. After a crash, the agent continues with the actions.
    Committed,
    /// The disk and the boot were verified. Recovery repeats the cleanup.
    Verified,
}

/// Direction of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// Towards `to`.
    Forward,
    /// Back to `from`.
    Undo,
}

/// A requested reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RebootRecord {
    /// The boot that should end.
    pub boot: String,
    /// Number of requests.
    pub attempts: u32,
    /// When it was last requested.
    pub ordered: Timestamp,
    /// It is a soft reboot, which restarts only userspace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub soft: bool,
}

pub(super) fn enter(phases: &mut Vec<PhaseRecord>, name: &str, now: Timestamp) {
    let lasts = |phase: &PhaseRecord| phase.name == name && phase.finished.is_none();
    if phases.last().is_some_and(lasts) {
        return;
    }
    leave(phases, now);
    if phases.len() >= MAX_PHASES {
        phases.remove(MAX_PHASES / 2);
    }
    phases.push(PhaseRecord {
        name: name.to_owned(),
        started: now,
        finished: None,
    });
}

fn leave(phases: &mut [PhaseRecord], now: Timestamp) {
    if let Some(phase) = phases.last_mut() {
        phase.finished.get_or_insert(now);
    }
}

/// Returns the kernel's boot ID from the name of a boot, to which a soft reboot adds `+N`.
pub fn kernel_of(boot: &str) -> &str {
    boot.split_once('+').map_or(boot, |(kernel, _)| kernel)
}

impl Transaction {
    /// Returns whether an action requires a reboot, at least a soft one.
    pub fn wants_reboot(&self) -> bool {
        let mut kinds = self.actions.iter().map(|action| action.kind);
        kinds.any(|kind| kind >= ActionKind::SoftReboot)
    }

    /// Returns whether an action requires a full reboot, which restarts the kernel.
    pub fn wants_full_reboot(&self) -> bool {
        let mut kinds = self.actions.iter().map(|action| action.kind);
        kinds.any(|kind| kind == ActionKind::Reboot)
    }

    /// Returns whether the machine has rebooted since the commit in the way that the update needs: if it needs a
    /// full reboot, a soft reboot does not count.
    pub fn rebooted_since(&self, boot: &str) -> bool {
        let committed = self.committed_boot.as_deref();
        match self.wants_full_reboot() {
            true => committed.is_some_and(|committed| kernel_of(committed) != kernel_of(boot)),
            false => self.restarted_since(boot),
        }
    }

    /// Returns whether userspace has restarted since the commit, by any kind of reboot.
    pub fn restarted_since(&self, boot: &str) -> bool {
        let committed = self.committed_boot.as_deref();
        committed.is_some_and(|committed| committed != boot)
    }

    /// Begins a phase and ends the previous one.
    pub fn enter(&mut self, name: &str, now: Timestamp) {
        enter(&mut self.phases, name, now);
    }

    /// Ends the current phase.
    pub fn leave(&mut self, now: Timestamp) {
        leave(&mut self.phases, now);
    }

    /// Converts the transaction into a record for `history`.
    pub fn record(&self, outcome: Outcome, now: Timestamp) -> UpdateRecord {
        UpdateRecord {
            id: self.id.clone(),
            from: self
                .from
                .as_ref()
                .map(|from| from.name.clone())
                .unwrap_or_default(),
            to: self.to.name.clone(),
            digest: self.to.digest,
            started: self.started,
            finished: now,
            outcome,
            reason: self.undo_reason.as_ref().map(|failure| failure.code),
            phases: self.phases.clone(),
            // Known once the node is uncordoned.
            blocked_for: 0,
            actions: self.actions.clone(),
            left_behind: self.left_behind.clone(),
            repair: self.from.as_ref() == Some(&self.to),
        }
    }
}
