//! Finished updates and their phases, as the journal keeps them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::ActionRecord;
use crate::{digest::Digest, reason::Reason};

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
    /// What was to be done after the commit, and how far it came.
    #[serde(default)]
    pub actions: Vec<ActionRecord>,
    /// Paths that were left as a user made them, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<String>,
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

impl Outcome {
    /// Whether the machine was on the config afterwards.
    pub const fn is_done(self) -> bool {
        matches!(self, Self::Done | Self::AppliedOffline)
    }
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
