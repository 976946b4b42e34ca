//! Defines the journal, which survives a crash: the config that the machine is on, and the transactions in
//! progress.
//!
//! This module contains only the data and its text form; [`super::store`] reads and writes it.

mod action;
mod encoding;
mod history;
mod operation;
mod os_trial;
mod transaction;

pub use action::{ActionRecord, ActionState};
pub use encoding::BadJournal;
pub use history::{Outcome, PhaseRecord, UpdateRecord};
pub use operation::{
    BackupPolicy, ContentState, NestedObject, ObjectId, OperationRecord, OperationRecordKind,
};
pub use os_trial::{OsTrial, OsTrialState};
pub use transaction::{Direction, RebootRecord, Transaction, TransactionState, kernel_of};

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use machinist_base::{abs_path::AbsPath, digest::Digest, reason::Reason};
use machinist_ignition::Refusal;
use machinist_plan::{Attributes, Edit, TargetFailures};
use machinist_rootfs::ObjectIdentity;

/// Number of finished updates that are kept for `history`.
pub const MAX_HISTORY_UPDATES: usize = 20;

/// Number of repairs of drift that are kept beside these updates.
pub const MAX_HISTORY_REPAIRS: usize = 5;

/// Number of undone updates among [`MAX_HISTORY_UPDATES`], once there are so many.
const MAX_HISTORY_UNDONE: usize = 10;

/// Number of targets that are remembered because another writer made an update fail there.
const MAX_CHANGED_TARGETS: usize = 256;

/// How long they are remembered.
const CHANGED_TARGET_AGE: SignedDuration = SignedDuration::from_hours(24);

/// How long after a failure entries are skipped at its target and in a contested directory. The next update tries them
/// again: a user who stopped must not delay it, and one who did not makes one update fail.
const RECENT_FAILURE_AGE: SignedDuration = SignedDuration::from_mins(15);

fn is_within(since: Timestamp, now: Timestamp, age: SignedDuration) -> bool {
    now.duration_since(since).abs() < age
}

/// The persistent state of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Journal {
    /// `/etc/machine-id` of the machine on which this was written; a different one means a cloned image.
    pub machine_id: Option<String>,
    /// The last verified config.
    pub base: Option<ConfigName>,
    /// Canonical paths that the base owns, with the requested owner if an offline root could only record it.
    pub owned: BTreeMap<AbsPath, Option<(u32, u32)>>,
    /// Directories that machinist created because a path that it owns is below them.
    pub made: BTreeSet<AbsPath>,
    /// Originals: objects that existed at an owned path before machinist first changed it, with the path where each
    /// is kept.
    pub originals: BTreeMap<AbsPath, AbsPath>,
    /// Directories that machinist created at mount points, for staging and originals.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub holders: BTreeMap<AbsPath, ObjectIdentity>,
    /// Mode and owner before machinist changed them, for files whose content the config does not define.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub modes: BTreeMap<AbsPath, Attributes>,
    /// Files that another user than root could write while a config without their content set their owner: a later
    /// config must not set set-ID bits on them.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub user_written: BTreeSet<AbsPath>,
    /// The objects whose mode or owner was changed in place.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub changed_objects: BTreeMap<AbsPath, ObjectIdentity>,
    /// Targets at which an update failed because another writer changed them, with the time. For a day, entries in
    /// users' directories that do not change are skipped there, so that they block no other entry again.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub changed_targets: BTreeMap<AbsPath, Timestamp>,
    /// How many updates failed at these targets; one where it is missing.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub changed_target_failures: BTreeMap<AbsPath, u32>,
    /// Paths of entries that the last update skipped, because of what users did there.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub skipped: BTreeSet<AbsPath>,
    /// Paths that already matched when a config first named them. They stay when a config no longer names them.
    pub adopted: BTreeSet<AbsPath>,
    /// Entries of users and groups that machinist changed: the value before the first change, and the last value
    /// that machinist wrote. They contain password hashes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<Edit>,
    /// SELinux labels of owned paths.
    #[serde(skip_serializing_if = "GivenLabels::is_empty")]
    pub labels: GivenLabels,
    /// Units that had already failed before the last update, or at the first start if there was no update.
    pub failed_units: Vec<String>,
    /// State of the machine before the oldest open transaction, or before the last update.
    pub machine_before: Option<MachineBefore>,
    /// Allocatable devices by resource before the last update that rebooted, and the time of that count.
    pub devices_before: Option<(BTreeMap<String, usize>, Timestamp)>,
    /// The cordon and drain for an update in progress; `None` while pods can be scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cordon: Option<CordonRecord>,
    /// Kernel arguments that machinist has appended to those of the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kernel_arguments: String,
    /// OS packages that another daemon has added, whose work machinist continues; those that its kernel replaces follow a
    /// `-`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub adopted_packages: BTreeSet<String>,
    /// The deployment of the operating system that the unverified transactions have staged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os_trial: Option<OsTrial>,
    /// Unverified transactions, oldest first.
    pub transactions: Vec<Transaction>,
    /// Why the last update failed; cleared by the next successful update.
    pub failure: Option<UpdateFailure>,
    /// Finished updates, oldest first, at most [`MAX_HISTORY_UPDATES`] and [`MAX_HISTORY_REPAIRS`] repairs.
    pub history: Vec<UpdateRecord>,
}

/// The SELinux labels that objects should have, if the root has a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GivenLabels {
    /// Labels that were set.
    pub given: BTreeMap<AbsPath, String>,
    /// Labels that could not be set here ([`Reason::LabelPending`]).
    pub pending: BTreeMap<AbsPath, String>,
}

impl GivenLabels {
    /// Returns whether there are no labels.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty() && self.pending.is_empty()
    }

    /// Keeps the labels of the paths for which `fits` returns true.
    pub fn retain(&mut self, fits: impl Fn(&AbsPath) -> bool) {
        self.given.retain(|path, _| fits(path));
        self.pending.retain(|path, _| fits(path));
    }

    /// Adds the labels of `others`.
    pub fn extend(&mut self, others: &Self) {
        let clone = |(path, label): (&AbsPath, &String)| (path.clone(), label.clone());
        self.given.extend(others.given.iter().map(clone));
        self.pending.extend(others.pending.iter().map(clone));
    }
}

/// State of the machine before an update, which it must reach again after the update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineBefore {
    /// The boot had finished normally.
    pub up: bool,
    /// Node services (kubelet, container runtime) that were running.
    pub running: BTreeSet<String>,
    /// Default gateways that answered.
    pub gateways: BTreeSet<String>,
}

/// The cordon and drain of an update. It is written before the node is cordoned, and deleted once the node is
/// uncordoned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CordonRecord {
    /// The config of the update.
    pub to: ConfigName,
    /// When the cordon began.
    pub since: Timestamp,
    /// Seconds spent on draining, summed over restarts of the agent.
    pub drained_for: u64,
    /// Seconds of them during which pods blocked the drain.
    #[serde(default)]
    pub blocked_for: u64,
    /// When each phase before staging began and ended.
    pub phases: Vec<PhaseRecord>,
    /// Allocatable devices before allocation was disabled.
    #[serde(default, rename = "lent", skip_serializing_if = "Option::is_none")]
    pub devices_before: Option<DevicesBeforeUpdate>,
    /// The last requested state of device allocation.
    #[serde(default, rename = "lending")]
    pub device_users: DeviceUsers,
    /// Units that the update stopped and must start again; no other units.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopped: Vec<String>,
}

/// Which pods may be allocated this machine's devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceUsers {
    /// Devices are allocatable to every pod.
    #[default]
    Open,
    /// Allocation is disabled: devices stay listed as unhealthy. Pods that hold devices keep them, and pods that
    /// the kubelet has already admitted still get theirs.
    #[serde(rename = "Withheld")]
    Disabled,
    /// Allocation is disabled, no pod that the drain evicts holds a device any more, and host units that use
    /// devices are stopped.
    Quiesced,
}

/// The device allocation before an update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DevicesBeforeUpdate {
    /// Allocatable devices by resource.
    pub counts: BTreeMap<String, usize>,
    /// Devices per resource of each container, by `namespace/pod/container`; `None` if the allocation is unknown.
    pub holders: Option<BTreeMap<String, BTreeMap<String, usize>>>,
}

impl CordonRecord {
    /// Begins a phase and ends the previous one.
    pub fn enter(&mut self, name: &str, now: Timestamp) {
        transaction::enter(&mut self.phases, name, now);
    }
}

/// Identifies a config by name and content.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
pub struct ConfigName {
    /// The config's name.
    pub name: String,
    /// Digest of its content; also its key below `configs/`.
    pub digest: Digest,
    /// It was stored by a version that distinguishes absent fields from empty or default ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tells_absent: bool,
}

impl ConfigName {
    /// Names a config without claiming anything about the version that stored it.
    pub fn new(name: impl Into<String>, digest: Digest) -> Self {
        Self {
            name: name.into(),
            digest,
            tells_absent: false,
        }
    }
}

/// The version that stored a config does not matter for equality.
impl PartialEq for ConfigName {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, self.digest) == (&other.name, other.digest)
    }
}

/// Describes why an update failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateFailure {
    /// The stable reason code.
    pub code: Reason,
    /// The error with its whole chain of causes.
    pub message: String,
    /// Whether a retry may succeed.
    #[serde(alias = "again")]
    pub retryable: bool,
    /// The config that failed.
    pub digest: Option<Digest>,
    /// Why the config is refused; empty for any other failure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<Refusal>,
}

impl Journal {
    /// Returns the newest open transaction.
    pub fn top(&self) -> Option<&Transaction> {
        self.transactions.last()
    }

    /// Returns the digest of the last verified config.
    pub fn base_digest(&self) -> Option<Digest> {
        self.base.as_ref().map(|base| base.digest)
    }

    /// Returns the open update that this desired config withdraws: it is rolled back without a plan.
    pub fn withdrawn_by(&self, desired: Digest) -> Option<&Transaction> {
        let open = self.top().filter(|tx| tx.direction == Direction::Forward)?;
        let is_withdrawn = open.to.digest != desired && self.base_digest() == Some(desired);
        is_withdrawn.then_some(open)
    }

    /// Returns the journal with the values of user and group entries hidden, because they contain password hashes.
    #[must_use]
    pub fn without_secrets(mut self) -> Self {
        let open = self
            .transactions
            .iter_mut()
            .flat_map(|tx| &mut tx.operations);
        let open = open.filter_map(|record| match &mut record.kind {
            OperationRecordKind::Entries { edits, .. } => Some(edits),
            _ => None,
        });
        for edits in open.chain([&mut self.entries]) {
            *edits = std::mem::take(edits)
                .into_iter()
                .map(Edit::hidden)
                .collect();
        }
        self
    }

    /// Records a target at which an update failed because another writer changed it.
    pub fn note_changed_target(&mut self, target: AbsPath, now: Timestamp) {
        self.changed_targets
            .retain(|_, since| is_within(*since, now, CHANGED_TARGET_AGE));
        while self.changed_targets.len() >= MAX_CHANGED_TARGETS {
            let oldest = self.changed_targets.iter().min_by_key(|(_, since)| **since);
            let Some(oldest) = oldest.map(|(path, _)| path.clone()) else {
                break;
            };
            self.changed_targets.remove(&oldest);
        }
        if self.changed_targets.insert(target.clone(), now).is_some() {
            let failures = self.changed_target_failures.entry(target).or_insert(1);
            *failures = failures.saturating_add(1);
        }
        let recent = &self.changed_targets;
        self.changed_target_failures
            .retain(|target, _| recent.contains_key(target));
    }

    /// Remembers the entries that a verified update skipped, and ends the skipping of all others after failures: it
    /// proves that no other writer interferes there any more. How many updates failed there stays known.
    pub fn end_recent_failures(&mut self, now: Timestamp) {
        self.skipped = self.skipped_by_open();
        let skipped = self.skipped.clone();
        self.end_failures_where(now, |target| !skipped.contains(target));
    }

    /// The same for a repair, which proves that only of the paths that it has written.
    pub fn end_repaired_failures(&mut self, now: Timestamp) {
        let operations = self.transactions.iter().flat_map(|tx| &tx.operations);
        let written: BTreeSet<AbsPath> = operations.map(|record| record.target.clone()).collect();
        self.skipped.retain(|path| !written.contains(path));
        self.end_failures_where(now, |target| written.contains(target));
    }

    fn end_failures_where(&mut self, now: Timestamp, ends: impl Fn(&AbsPath) -> bool) {
        let past = now
            .saturating_sub(RECENT_FAILURE_AGE)
            .unwrap_or(Timestamp::MIN);
        let all = self.changed_targets.iter_mut();
        for (_, since) in all.filter(|(target, _)| ends(target)) {
            *since = past.min(*since);
        }
    }

    /// Returns the paths of entries that the open transactions skip.
    pub fn skipped_by_open(&self) -> BTreeSet<AbsPath> {
        let open = self.transactions.iter();
        open.flat_map(|tx| &tx.skipped).cloned().collect()
    }

    /// Returns the targets at which another writer made an update fail during the last day.
    pub fn recently_changed_targets(&self, now: Timestamp) -> BTreeMap<AbsPath, TargetFailures> {
        let remembered = self.changed_targets.iter();
        let remembered =
            remembered.filter(|(_, since)| is_within(**since, now, CHANGED_TARGET_AGE));
        remembered
            .map(|(path, since)| {
                let updates = self.changed_target_failures.get(path);
                let failures = TargetFailures {
                    updates: updates.copied().unwrap_or(1),
                    is_recent: is_within(*since, now, RECENT_FAILURE_AGE),
                };
                (path.clone(), failures)
            })
            .collect()
    }

    /// Returns the newest open transaction for modification.
    pub fn top_mut(&mut self) -> Option<&mut Transaction> {
        self.transactions.last_mut()
    }

    /// Adds a finished update and drops the oldest ones beyond [`MAX_HISTORY_UPDATES`]. Repairs of drift and updates
    /// that were undone are dropped earlier: a user or a program can cause any number of them, and the configs of the
    /// other updates are those to roll back to.
    pub fn remember(&mut self, record: UpdateRecord) {
        self.history.push(record);
        self.drop_oldest(MAX_HISTORY_REPAIRS, |update| update.repair);
        let is_undone = |update: &UpdateRecord| !update.repair && !update.outcome.is_done();
        let updates = self.history.iter().filter(|update| !update.repair).count();
        if updates > MAX_HISTORY_UPDATES {
            self.drop_oldest(MAX_HISTORY_UNDONE, is_undone);
        }
        self.drop_oldest(MAX_HISTORY_UPDATES, |update| !update.repair);
    }

    /// Drops the oldest of these records beyond `most`.
    fn drop_oldest(&mut self, most: usize, is_one: impl Fn(&UpdateRecord) -> bool) {
        let count = self.history.iter().filter(|update| is_one(update)).count();
        let mut surplus = count.saturating_sub(most);
        self.history.retain(|update| {
            let drops = surplus > 0 && is_one(update);
            surplus -= usize::from(drops);
            !drops
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: usize, outcome: Outcome, repair: bool) -> UpdateRecord {
        UpdateRecord {
            id: number.to_string(),
            from: String::new(),
            to: String::new(),
            digest: Digest::of(&number.to_be_bytes()),
            started: Timestamp::UNIX_EPOCH,
            finished: Timestamp::UNIX_EPOCH,
            outcome,
            reason: None,
            phases: Vec::new(),
            blocked_for: 0,
            actions: Vec::new(),
            left_behind: Vec::new(),
            repair,
        }
    }

    fn ids(journal: &Journal) -> Vec<usize> {
        let ids = journal.history.iter().map(|update| update.id.parse());
        ids.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn repairs_do_not_displace_updates_in_the_history() {
        let mut journal = Journal::default();
        for number in 0..25 {
            journal.remember(record(number, Outcome::Done, false));
        }
        for number in 25..125 {
            journal.remember(record(number, Outcome::Done, true));
        }
        let newest: Vec<_> = (5..25).chain(120..125).collect();
        assert_eq!(ids(&journal), newest);
        journal.remember(record(125, Outcome::Done, false));
        assert_eq!(ids(&journal)[0], 6);
    }

    #[test]
    fn updates_that_were_rolled_back_leave_earlier_configs_in_the_history() {
        let mut journal = Journal::default();
        for number in 0..20 {
            journal.remember(record(number, Outcome::Done, false));
        }
        for number in 20..120 {
            journal.remember(record(number, Outcome::RolledBack, false));
        }
        let newest: Vec<_> = (10..20).chain(110..120).collect();
        assert_eq!(ids(&journal), newest);
    }

    #[test]
    fn a_repair_ends_no_skipping_of_other_entries() {
        let at = |path: &str| AbsPath::new(path).unwrap();
        let now = Timestamp::UNIX_EPOCH;
        let mut journal = Journal::default();
        journal.note_changed_target(at("/home/bob/f"), now);
        journal.skipped.insert(at("/home/bob/f"));
        let is_recent =
            |journal: &Journal| journal.recently_changed_targets(now)[&at("/home/bob/f")].is_recent;
        journal.end_repaired_failures(now);
        assert!(is_recent(&journal) && !journal.skipped.is_empty());
        journal.end_recent_failures(now);
        assert!(!is_recent(&journal) && journal.skipped.is_empty());
    }
}
