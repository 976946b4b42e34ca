//! Defines the journal's records of finished updates and their phases.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};

use super::ActionRecord;
use crate::phase::Phase;
use machinist_base::{digest::Digest, reason::Reason};

/// A finished update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateRecord {
    /// The transaction.
    pub id: String,
    /// Name of the previous config.
    pub from: String,
    /// Name of the new config.
    pub to: String,
    /// Digest of the new config.
    pub digest: Digest,
    /// When it began.
    pub started: Timestamp,
    /// When it ended.
    pub finished: Timestamp,
    /// How it ended.
    pub outcome: Outcome,
    /// The reason code, if the update did not succeed.
    pub reason: Option<Reason>,
    /// When each phase began and ended.
    pub phases: Vec<PhaseRecord>,
    /// Seconds during which pods blocked the drain.
    #[serde(default)]
    pub blocked_for: u64,
    /// The actions after the commit, with the state of each.
    #[serde(default)]
    pub actions: Vec<ActionRecord>,
    /// Paths whose objects were left as a user had changed them, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<String>,
    /// The machine was on this config already: only drift was repaired. False in journals of earlier versions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repair: bool,
}

/// How an update ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The machine is on the new config, and the update was verified.
    Done,
    /// The tree is on the new config; no running system has acted on it.
    AppliedOffline,
    /// The machine was rolled back to the previous config.
    RolledBack,
    /// The config was withdrawn before it took effect.
    Withdrawn,
    /// The rollback failed; an administrator must intervene.
    Failed,
}

impl Outcome {
    /// Returns whether the update left the tree on the new config.
    pub const fn is_done(self) -> bool {
        matches!(self, Self::Done | Self::AppliedOffline)
    }
}

/// One phase of an update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseRecord {
    /// Its name; a name that an earlier version wrote is read as that of today.
    #[serde(deserialize_with = "current_phase_name")]
    pub name: String,
    /// When it began.
    pub started: Timestamp,
    /// When it ended; `None` while it lasts.
    pub finished: Option<Timestamp>,
}

fn current_phase_name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let name = String::deserialize(from)?;
    Ok(Phase::named(&name).map_or(name, |phase| phase.name().to_owned()))
}
