//! Errors of a drain.

use std::{fmt, time::Duration};

use super::{EvictionCallError, PodId};
use crate::{PodNote, PodWait};
use machinist_base::reason::Reason;

/// A pod that the rules do not allow to evict, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRefusal {
    /// The pod.
    pub pod: PodId,
    /// All reasons.
    pub notes: Vec<PodNote>,
}

impl fmt::Display for PodRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let notes: Vec<_> = self.notes.iter().map(PodNote::sentence).collect();
        write!(f, "{} {}", self.pod, notes.join(" and "))
    }
}

/// Why a drain failed. Evictions are not undone; the cordon is left to the caller.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// Pods that must not be evicted; if they were found before the first eviction, no pod was
    /// evicted.
    #[error("cannot drain the node: {}", list(.0))]
    Refused(Vec<PodRefusal>),
    /// A permission is missing.
    #[error("cannot {act}")]
    Forbidden {
        /// The action that must be allowed.
        act: String,
        /// The API server's response.
        #[source]
        source: EvictionCallError,
    },
    /// The server does not support evictions, and deletion was not allowed.
    #[error("the API server does not serve the eviction API")]
    NotServed,
    /// The API server was unreachable for too long.
    #[error("API server unreachable for {} s", .patience.as_secs())]
    Unreachable {
        /// How long the drain waited.
        patience: Duration,
        /// The last error.
        #[source]
        source: EvictionCallError,
    },
    /// The time limit of the drain was exceeded.
    #[error("the drain did not finish within {} s: {}", .limit.as_secs(), sentences(.waits))]
    TimedOut {
        /// The limit.
        limit: Duration,
        /// The pods that the drain was waiting for.
        waits: Vec<PodWait>,
    },
    /// It was stopped by the caller.
    #[error("the drain was cancelled")]
    Stopped,
}

impl DrainError {
    /// Whether the same drain may succeed later with the same rules.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Stopped => true,
            Self::Refused(_) | Self::NotServed => false,
            // An administrator may grant the permission.
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
                    .map_or(Reason::DrainEvictionRefused, PodNote::reason)
            }
            Self::Forbidden { .. } => Reason::ApiServerForbidden,
            Self::NotServed => Reason::EvictionUnsupported,
            Self::Unreachable { .. } => Reason::ApiServerUnreachable,
            Self::TimedOut { .. } => Reason::DrainTimedOut,
            Self::Stopped => Reason::Withdrawn,
        }
    }
}

fn list(refusals: &[PodRefusal]) -> String {
    let all: Vec<_> = refusals.iter().map(PodRefusal::to_string).collect();
    all.join("; ")
}

fn sentences(waits: &[PodWait]) -> String {
    let all: Vec<_> = waits.iter().map(PodWait::sentence).collect();
    match all.is_empty() {
        true => "no pod was evicted yet".to_owned(),
        false => all.join("; "),
    }
}
