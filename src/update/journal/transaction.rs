//! One transaction, as it is written down.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    ConfigName, Failure, GivenLabels, OperationRecord, Outcome, PhaseRecord, UpdateRecord,
};
use crate::{
    path::AbsPath,
    plan::{ActionKind, EditPlace},
    root::Identity,
};

/// Most phases that are kept of one transaction: an undo that gets stuck is tried again for ever, and
/// the journal must not grow with it. How it began and how it goes now are kept, the middle is not.
const MOST_PHASES: usize = 64;

/// One attempt to take the tree from one config to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Transaction {
    /// Names staging directories and log fields.
    pub id: String,
    /// How far it is.
    pub mark: Mark,
    /// Where it goes. An undo is never undone.
    pub direction: Direction,
    /// The config before; none on first contact.
    pub from: Option<ConfigName>,
    /// The config after.
    pub to: ConfigName,
    /// When the intent was recorded.
    pub started: Timestamp,
    /// Staging directories, to be emptied when the transaction ends.
    pub staging: Vec<AbsPath>,
    /// Directories at the tops of mounts that hold staging directories, made by machinist. Known from
    /// `Staged` on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub holders: BTreeMap<AbsPath, Identity>,
    /// Paths that were left as a user made them, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<String>,
    /// What is done to the tree, in commit order.
    pub operations: Vec<OperationRecord>,
    /// Paths that stood as asked already and that this config names first.
    pub adopted: BTreeSet<AbsPath>,
    /// Paths of the configs before that this config does not name: whatever is found there later is
    /// somebody else's.
    #[serde(default)]
    pub released: BTreeSet<AbsPath>,
    /// Entries of users and groups that this config does not speak of: what was there before them does
    /// not come back any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub let_go: Vec<EditPlace>,
    /// The labels of what it brings, known from `Staged` on.
    #[serde(default, skip_serializing_if = "GivenLabels::is_empty")]
    pub labels: GivenLabels,
    /// What is done afterwards, in order.
    pub actions: Vec<ActionRecord>,
    /// The boot in which `Committed` was reached, as [`boot_id`](crate::update::store::boot_id) names it;
    /// a reboot since means another one.
    pub committed_boot: Option<String>,
    /// Boots begun while this transaction was committed and not verified; the one in which it was
    /// committed is none of them.
    pub boots: u32,
    /// The last boot that was counted: no boot counts twice.
    #[serde(default)]
    pub counted_boot: Option<String>,
    /// The reboot that was ordered.
    pub reboot: Option<RebootRecord>,
    /// Why it is undone, once it is.
    pub undo_reason: Option<Failure>,
    /// An undo has brought everything back and that is durable; only its reboot may be missing.
    pub reverted: bool,
    /// The machine had booted into the config that is undone: it must boot once more.
    pub booted_into: bool,
    /// The config was applied to a root that no manager runs below.
    pub offline: bool,
    /// When each phase began and ended.
    pub phases: Vec<PhaseRecord>,
}

/// How far a transaction is. What a crash leaves is judged by this alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mark {
    /// The operation list is durable; nothing of the machine has changed. A crash drops it.
    Intent,
    /// Every new object is durable in staging. A crash goes forward.
    Staged,
    /// Every operation is done and durable. A crash acts on.
    Committed,
    /// The disk and the boot were checked. A crash repeats the tidying.
    Verified,
}

/// Which way a transaction goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// Towards `to`.
    Forward,
    /// Back to `from`.
    Undo,
}

/// One action and how far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActionRecord {
    /// What is done.
    pub kind: ActionKind,
    /// To which unit.
    pub unit: Option<String>,
    /// Whether it was begun, under which circumstances, and whether it ended well.
    pub state: ActionState,
}

/// How far an action is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "state",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum ActionState {
    /// Not begun.
    Pending,
    /// Recorded just before it was done. Done after all when the unit's invocation has changed or the
    /// machine has rebooted since.
    Started {
        /// The boot it was begun in.
        boot: String,
        /// The unit's invocation before.
        invocation: Option<String>,
    },
    /// Ended well.
    Done,
}

/// A reboot that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RebootRecord {
    /// The boot that should end.
    pub boot: String,
    /// How often it was asked for.
    pub attempts: u32,
    /// When it was asked for last.
    pub ordered: Timestamp,
    /// Only userspace was to start anew.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub soft: bool,
}

pub(super) fn enter(phases: &mut Vec<PhaseRecord>, name: &str, now: Timestamp) {
    let lasts = |phase: &PhaseRecord| phase.name == name && phase.finished.is_none();
    if phases.last().is_some_and(lasts) {
        return;
    }
    leave(phases, now);
    if phases.len() >= MOST_PHASES {
        phases.remove(MOST_PHASES / 2);
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

/// The kernel's boot id in the name of a boot: a soft reboot adds `+N`.
pub fn kernel_of(boot: &str) -> &str {
    boot.split_once('+').map_or(boot, |(kernel, _)| kernel)
}

impl Transaction {
    /// Whether an action asks for a reboot, of userspace at least.
    pub fn wants_reboot(&self) -> bool {
        let mut kinds = self.actions.iter().map(|action| action.kind);
        kinds.any(|kind| kind >= ActionKind::SoftReboot)
    }

    /// Whether an action asks for a reboot of the machine, the kernel included.
    pub fn wants_full_reboot(&self) -> bool {
        let mut kinds = self.actions.iter().map(|action| action.kind);
        kinds.any(|kind| kind == ActionKind::Reboot)
    }

    /// Whether the machine has booted since the commit, as the update needs it: somebody's soft reboot
    /// is none for an update that the kernel must see.
    pub fn rebooted_since(&self, boot: &str) -> bool {
        let committed = self.committed_boot.as_deref();
        match self.wants_full_reboot() {
            true => committed.is_some_and(|committed| kernel_of(committed) != kernel_of(boot)),
            false => self.restarted_since(boot),
        }
    }

    /// Whether everything in userspace has started anew since the commit, by whatever reboot.
    pub fn restarted_since(&self, boot: &str) -> bool {
        let committed = self.committed_boot.as_deref();
        committed.is_some_and(|committed| committed != boot)
    }

    /// Begins a phase in the record and ends the one before.
    pub fn enter(&mut self, name: &str, now: Timestamp) {
        enter(&mut self.phases, name, now);
    }

    /// Ends the phase that lasts.
    pub fn leave(&mut self, now: Timestamp) {
        leave(&mut self.phases, now);
    }

    /// What `history` keeps of it.
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
            actions: self.actions.clone(),
            left_behind: self.left_behind.clone(),
        }
    }
}
