//! The record that survives a crash: what the machine is on, what is being done to it.
//!
//! Data and its text form only; [`super::store`] reads and writes it.

mod history;
mod operation;
mod text;
mod transaction;

pub use history::{Outcome, PhaseRecord, UpdateRecord};
pub use operation::{Below, Keep, ObjectId, OperationRecord, OperationRecordKind};
pub use text::BadJournal;
pub use transaction::{
    ActionRecord, ActionState, Direction, Mark, RebootRecord, Transaction, kernel_of,
};

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    digest::Digest,
    path::AbsPath,
    plan::{Attributes, Edit},
    reason::Reason,
    root::Identity,
};

/// How many finished updates are kept for `history`.
pub const HISTORY: usize = 20;

/// Everything that must survive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Journal {
    /// `/etc/machine-id` of the machine this was written on; another one means a cloned image.
    pub machine_id: Option<String>,
    /// The last verified config.
    pub base: Option<ConfigName>,
    /// Paths that the base owns, canonical, with the owner that was asked for where an offline root
    /// could only record it.
    pub owned: BTreeMap<AbsPath, Option<(u32, u32)>>,
    /// Directories that machinist made because something it owns lies below them.
    pub made: BTreeSet<AbsPath>,
    /// What stood at an owned path before machinist first touched it, and where it is kept.
    pub originals: BTreeMap<AbsPath, AbsPath>,
    /// Directories at the tops of mounts that machinist made for staging and originals.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub holders: BTreeMap<AbsPath, Identity>,
    /// Mode and owner before machinist set them, of files whose content is not the config's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub modes: BTreeMap<AbsPath, Attributes>,
    /// Paths that stood as asked when a config first named them: they stay when they leave it.
    pub adopted: BTreeSet<AbsPath>,
    /// Entries of users and groups that machinist changed: the value before it first did, and the one
    /// it gave last. They hold password hashes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<Edit>,
    /// SELinux labels of what is owned.
    #[serde(skip_serializing_if = "GivenLabels::is_empty")]
    pub labels: GivenLabels,
    /// Units that had failed before the last update, or at the first start where there was none.
    pub failed_units: Vec<String>,
    /// How the machine was before the oldest open transaction, or before the last update.
    pub machine_before: Option<MachineBefore>,
    /// Allocatable devices by resource before the last update that rebooted, and when that was.
    pub devices_before: Option<(BTreeMap<String, usize>, Timestamp)>,
    /// What the node's pods bear for an update; none while they come and go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cordon: Option<CordonRecord>,
    /// Unverified transactions, oldest first.
    pub transactions: Vec<Transaction>,
    /// Why the last update did not succeed; cleared by the next one that does.
    pub failure: Option<Failure>,
    /// Finished updates, oldest first, at most [`HISTORY`].
    pub history: Vec<UpdateRecord>,
}

/// The SELinux labels that objects were to have, where the root has a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GivenLabels {
    /// Those they have got.
    pub given: BTreeMap<AbsPath, String>,
    /// Those that could not be set here ([`Reason::LabelPending`]).
    pub pending: BTreeMap<AbsPath, String>,
}

impl GivenLabels {
    /// Whether there is none at all.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty() && self.pending.is_empty()
    }

    /// Keeps those of the paths that fit.
    pub fn retain(&mut self, fits: impl Fn(&AbsPath) -> bool) {
        self.given.retain(|path, _| fits(path));
        self.pending.retain(|path, _| fits(path));
    }

    /// Adds others.
    pub fn extend(&mut self, others: &Self) {
        let clone = |(path, label): (&AbsPath, &String)| (path.clone(), label.clone());
        self.given.extend(others.given.iter().map(clone));
        self.pending.extend(others.pending.iter().map(clone));
    }
}

/// What the machine had before an update and must have again after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineBefore {
    /// Its boot had come to an end, as it should.
    pub up: bool,
    /// Services of a node that ran.
    pub running: BTreeSet<String>,
    /// Default gateways that answered.
    pub gateways: BTreeSet<String>,
}

/// What was asked of a node for an update: recorded before it is asked, forgotten when pods may come again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CordonRecord {
    /// The config that it is for.
    pub to: ConfigName,
    /// Since when.
    pub since: Timestamp,
    /// Seconds in which the pods were asked to go, in every life of the agent together.
    pub drained_for: u64,
    /// When each phase before staging began and ended.
    pub phases: Vec<PhaseRecord>,
    /// What was lent before anything was withheld.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lent: Option<LentBefore>,
    /// To whom devices are lent, as it was asked for last.
    #[serde(default)]
    pub lending: Lending,
    /// Units that the update stopped and that are to run again after it: exactly these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopped: Vec<String>,
}

/// To whom this machine's devices are lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lending {
    /// To every pod.
    #[default]
    Open,
    /// To those that hold them, and to those whom the kubelet has admitted: devices stay listed, unhealthy.
    Withheld,
    /// To nobody: what was withheld has no holder left whom the drain takes away, and what uses devices
    /// on the host was stopped.
    Quiesced,
}

/// What was lent before an update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LentBefore {
    /// Allocatable devices by resource.
    pub counts: BTreeMap<String, usize>,
    /// Who had how many of which, by `namespace/pod/container`; none where nobody could tell.
    pub holders: Option<BTreeMap<String, BTreeMap<String, usize>>>,
}

impl CordonRecord {
    /// Begins a phase in the record and ends the one before.
    pub fn enter(&mut self, name: &str, now: Timestamp) {
        transaction::enter(&mut self.phases, name, now);
    }
}

/// A config by name and content.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
pub struct ConfigName {
    /// What people call it.
    pub name: String,
    /// What it holds; the key below `configs/`.
    pub digest: Digest,
    /// It was stored by a version that tells what is absent in a config from what is empty or usual.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tells_absent: bool,
}

impl ConfigName {
    /// The name of a config of which nothing is known of how it was stored.
    pub fn new(name: impl Into<String>, digest: Digest) -> Self {
        Self {
            name: name.into(),
            digest,
            tells_absent: false,
        }
    }
}

/// Which version stored it does not matter.
impl PartialEq for ConfigName {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, self.digest) == (&other.name, other.digest)
    }
}

/// Why an update did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The stable code.
    pub code: Reason,
    /// What happened, with the whole chain of causes.
    pub message: String,
    /// Whether trying the same again may help.
    pub again: bool,
    /// The config that failed.
    pub digest: Option<Digest>,
}

impl Journal {
    /// The transaction being worked on.
    pub fn top(&self) -> Option<&Transaction> {
        self.transactions.last()
    }

    /// The journal without what entries of users and groups hold, to be shown: password hashes are in
    /// them.
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

    /// The same, to be changed.
    pub fn top_mut(&mut self) -> Option<&mut Transaction> {
        self.transactions.last_mut()
    }

    /// Adds a finished update and forgets the oldest beyond [`HISTORY`].
    pub fn remember(&mut self, record: UpdateRecord) {
        self.history.push(record);
        let surplus = self.history.len().saturating_sub(HISTORY);
        self.history.drain(..surplus);
    }
}
