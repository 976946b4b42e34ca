//! Defines the journal's record of one action after the commit.

use serde::{Deserialize, Serialize};

use machinist_plan::ActionKind;

/// One action and its progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActionRecord {
    /// The kind of action.
    pub kind: ActionKind,
    /// The unit it acts on, if any.
    pub unit: Option<String>,
    /// Its progress.
    pub state: ActionState,
}

/// Progress of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "state",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum ActionState {
    /// Not started.
    Pending,
    /// Recorded just before the action is carried out. After a crash it counts as done if the unit's invocation ID
    /// has changed or the machine has rebooted.
    Started {
        /// The boot in which it was started.
        boot: String,
        /// The unit's invocation ID before the action.
        invocation: Option<String>,
    },
    /// Succeeded.
    Done,
}
