//! Why a drain did not end well.

use std::{fmt, time::Duration};

use super::{CallError, PodId};
use crate::{
    drain::{Note, Wait},
    reason::Reason,
};

/// A pod that may not be evicted by the rules that were given, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The pod.
    pub pod: PodId,
    /// Every reason.
    pub notes: Vec<Note>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let notes: Vec<_> = self.notes.iter().map(Note::sentence).collect();
        write!(f, "{} {}", self.pod, notes.join(" and "))
    }
}

/// Why a drain did not end well. What was evicted stays evicted; the cordon is the caller's.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// Pods speak against it; if that was found before the first eviction, nobody was evicted.
    #[error("cannot drain the node: {}", list(.0))]
    Refused(Vec<Refusal>),
    /// A permission is missing.
    #[error("cannot {act}")]
    Forbidden {
        /// What must be allowed.
        act: String,
        /// The API server's words.
        #[source]
        source: CallError,
    },
    /// There are no evictions, and deleting was not allowed.
    #[error("the API server serves no evictions")]
    NotServed,
    /// The API server was away for too long.
    #[error("the API server gave no answer of use for {} s", .patience.as_secs())]
    Unreachable {
        /// How long was waited.
        patience: Duration,
        /// What came instead of an answer the last time.
        #[source]
        source: CallError,
    },
    /// The time limit of the drain is over.
    #[error("the drain did not end within {} s: {}", .limit.as_secs(), sentences(.waits))]
    TimedOut {
        /// The limit.
        limit: Duration,
        /// Who was waited for.
        waits: Vec<Wait>,
    },
    /// It was called off.
    #[error("the drain was called off")]
    Stopped,
}

impl DrainError {
    /// Whether the same drain may succeed later without anybody changing its rules.
    pub fn again(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Stopped => true,
            Self::Refused(_) | Self::NotServed => false,
            // Permissions are given by people who see that they are missing.
            Self::Forbidden { .. } => true,
        }
    }

    /// The stable code.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Refused(refusals) => {
                let mut notes = refusals.iter().flat_map(|refusal| &refusal.notes);
                notes
                    .next()
                    .map_or(Reason::DrainEvictionRefused, Note::reason)
            }
            Self::Forbidden { .. } => Reason::ApiServerForbidden,
            Self::NotServed => Reason::DrainNotServed,
            Self::Unreachable { .. } => Reason::ApiServerUnreachable,
            Self::TimedOut { .. } => Reason::DrainTimedOut,
            Self::Stopped => Reason::Withdrawn,
        }
    }
}

fn list(refusals: &[Refusal]) -> String {
    let all: Vec<_> = refusals.iter().map(Refusal::to_string).collect();
    all.join("; ")
}

fn sentences(waits: &[Wait]) -> String {
    let all: Vec<_> = waits.iter().map(Wait::sentence).collect();
    match all.is_empty() {
        true => "its pods were not asked yet".to_owned(),
        false => all.join("; "),
    }
}
