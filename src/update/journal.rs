//! The record that survives a crash: what the machine is on, what is being done to it.
//!
//! Data and its text form only; [`super::store`] reads and writes it. The text is two lines: a header
//! that every version can read, and a body whose SHA-256 the header holds. Unknown body fields are
//! ignored, so a version may add fields; one that changes what a field *means* raises `min_reader`.

mod operation;

pub use operation::{Below, Keep, ObjectId, OperationRecord, OperationRecordKind};

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{digest::Digest, path::AbsPath, plan::ActionKind, reason::Reason};

/// The layout this version writes.
const SCHEMA: u32 = 1;
/// The oldest reader that understands what this version writes.
const MIN_READER: u32 = 1;
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
    /// Paths that stood as asked when a config first named them: they stay when they leave it.
    pub adopted: BTreeSet<AbsPath>,
    /// Units that had failed before the last update, or at the first start where there was none.
    pub failed_units: Vec<String>,
    /// Allocatable devices by resource before the last update that rebooted, and when that was.
    pub devices_before: Option<(BTreeMap<String, usize>, Timestamp)>,
    /// Unverified transactions, oldest first.
    pub transactions: Vec<Transaction>,
    /// Why the last update did not succeed; cleared by the next one that does.
    pub failure: Option<Failure>,
    /// Finished updates, oldest first, at most [`HISTORY`].
    pub history: Vec<UpdateRecord>,
}

/// A config by name and content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigName {
    /// What people call it.
    pub name: String,
    /// What it holds; the key below `configs/`.
    pub digest: Digest,
}

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
    /// What is done to the tree, in commit order.
    pub operations: Vec<OperationRecord>,
    /// Paths that stood as asked already and that this config names first.
    pub adopted: BTreeSet<AbsPath>,
    /// Paths of the configs before that this config does not name: whatever is found there later is
    /// somebody else's.
    #[serde(default)]
    pub released: BTreeSet<AbsPath>,
    /// What is done afterwards, in order.
    pub actions: Vec<ActionRecord>,
    /// The boot in which `Committed` was reached; a reboot since means another one.
    pub committed_boot: Option<String>,
    /// Boots begun while this transaction was committed and not verified.
    pub boots: u32,
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

/// A finished update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateRecord {
    /// The transaction.
    pub id: String,
    /// The config before, by name.
    pub from: String,
    /// The config after, by name.
    pub to: String,
    /// Digest of the config after.
    pub digest: Digest,
    /// When it began.
    pub started: Timestamp,
    /// When it ended.
    pub finished: Timestamp,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, unless it is done.
    pub reason: Option<Reason>,
    /// When each phase began and ended.
    pub phases: Vec<PhaseRecord>,
}

/// How an update ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The machine is on the new config and was verified.
    Done,
    /// The tree is on the new config; nobody runs there to act on it.
    AppliedOffline,
    /// The machine is back on the config before.
    RolledBack,
    /// The config was taken back before it was in force.
    Withdrawn,
    /// The machine could not be brought back; a person must look.
    Failed,
}

/// One phase of an update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseRecord {
    /// Its name.
    pub name: String,
    /// When it began.
    pub started: Timestamp,
    /// When it ended; none while it lasts.
    pub finished: Option<Timestamp>,
}

/// Why a text is no journal we may act on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadJournal {
    /// Torn, edited or something else.
    #[error("the journal is unreadable: {0}")]
    Unreadable(String),
    /// Written by a version whose meaning we do not know.
    #[error("the journal needs a reader of schema {needed}; this version reads up to {SCHEMA}")]
    TooNew {
        /// The reader it asks for.
        needed: u32,
    },
}

impl BadJournal {
    /// The reason code of the failure.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Unreadable(_) => Reason::JournalUnreadable,
            Self::TooNew { .. } => Reason::JournalTooNew,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    machinist_journal: u32,
    min_reader: u32,
    checksum: Digest,
}

impl Journal {
    /// The text that is kept on disk.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let body = serde_json::to_vec(self)?;
        let header = Header {
            machinist_journal: SCHEMA,
            min_reader: MIN_READER,
            checksum: Digest::of(&body),
        };
        let mut text = serde_json::to_vec(&header)?;
        text.push(b'\n');
        text.extend(body);
        text.push(b'\n');
        Ok(text)
    }

    /// Reads what [`Journal::encode`] wrote, by this version or another.
    pub fn decode(text: &[u8]) -> Result<Self, BadJournal> {
        let unreadable = |why: String| BadJournal::Unreadable(why);
        let split = text.iter().position(|byte| *byte == b'\n');
        let (header, rest) =
            text.split_at(split.ok_or_else(|| unreadable("it has no header".into()))?);
        let header: Header = serde_json::from_slice(header)
            .map_err(|error| unreadable(format!("its header: {error}")))?;
        if header.min_reader > SCHEMA {
            return Err(BadJournal::TooNew {
                needed: header.min_reader,
            });
        }
        let body = rest
            .strip_prefix(b"\n")
            .and_then(|rest| rest.strip_suffix(b"\n"))
            .unwrap_or_default();
        if Digest::of(body) != header.checksum {
            return Err(unreadable("its checksum does not match".into()));
        }
        serde_json::from_slice(body).map_err(|error| unreadable(format!("its body: {error}")))
    }

    /// The transaction being worked on.
    pub fn top(&self) -> Option<&Transaction> {
        self.transactions.last()
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

impl Transaction {
    /// Whether an action asks for a reboot.
    pub fn wants_reboot(&self) -> bool {
        self.actions
            .iter()
            .any(|action| action.kind == ActionKind::Reboot)
    }

    /// Whether the machine has started anew since the commit.
    pub fn rebooted_since(&self, boot: &str) -> bool {
        self.committed_boot
            .as_deref()
            .is_some_and(|committed| committed != boot)
    }

    /// Begins a phase in the record and ends the one before.
    pub fn enter(&mut self, name: &str, now: Timestamp) {
        if self
            .phases
            .last()
            .is_some_and(|phase| phase.name == name && phase.finished.is_none())
        {
            return;
        }
        self.leave(now);
        self.phases.push(PhaseRecord {
            name: name.to_owned(),
            started: now,
            finished: None,
        });
    }

    /// Ends the phase that lasts.
    pub fn leave(&mut self, now: Timestamp) {
        if let Some(phase) = self.phases.last_mut() {
            phase.finished.get_or_insert(now);
        }
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_read_back_and_a_torn_one_never_believed() {
        let journal = Journal {
            machine_id: Some("m".into()),
            ..Journal::default()
        };
        let text = journal.encode().unwrap();
        assert_eq!(Journal::decode(&text).as_ref(), Ok(&journal));
        for cut in 0..text.len() {
            assert!(
                matches!(
                    Journal::decode(&text[..cut]),
                    Err(BadJournal::Unreadable(_))
                ),
                "{cut}"
            );
        }
        for at in 0..text.len() {
            let mut flipped = text.clone();
            flipped[at] ^= 1;
            // A flip in the header's version number can go unnoticed, one in the body cannot.
            let read = Journal::decode(&flipped);
            assert!(
                read.is_err() || read.as_ref() == Ok(&journal),
                "{at}: {read:?}"
            );
        }
    }

    #[test]
    fn a_journal_of_a_newer_version_is_named_as_such() {
        let text = br#"{"machinistJournal":9,"minReader":2,"checksum":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
"#;
        assert_eq!(Journal::decode(text), Err(BadJournal::TooNew { needed: 2 }));
    }
}
