//! When the Node says that it is degraded, with which words, and for how long.

use std::time::Duration;

use tokio::time::Instant;

use crate::{crd::State, digest::Digest, reason::Reason};

/// How long a cause that passes by itself may last. OpenShift's daemon gives its own waiting about as long.
const PASSING: Duration = Duration::from_secs(300);

/// How long a machine on its config must be well before it is called so again: longer than a cause that comes and
/// goes stays away.
const CLEARED: Duration = Duration::from_secs(30);

/// Retries of one config change the words at most this often.
const WORDS: Duration = Duration::from_secs(60);

/// Whether a cause goes away without anybody: the config before it is as good as ever, and a retry may succeed. All
/// others are shown at once, as OpenShift's daemon does.
pub const fn passes(code: Reason) -> bool {
    matches!(
        code,
        Reason::SourceUnreadable
            | Reason::ObservedChanged
            | Reason::ImageUnreachable
            | Reason::ManagerUnreachable
            | Reason::RebootInhibited
            | Reason::Withdrawn
            | Reason::Locked
            | Reason::ApiServerUnreachable
            | Reason::ConfigNotFound
            | Reason::NodeMissing
            | Reason::DesiredConfigChanged
            | Reason::DrainBlockedByBudget
            | Reason::DrainThrottled
            | Reason::DrainPodEnding
            | Reason::DevicesMissing
            | Reason::DeviceHeld
            | Reason::HoldersUnknown
    )
}

/// What is wrong with the machine at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The code.
    pub code: Reason,
    /// `Degraded` or `Unreconcilable`.
    pub state: State,
    /// What people read; never empty.
    pub text: String,
}

/// What the damper looks at.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// What the machine is to be on; another one makes every word about the one before untrue.
    pub config: Option<Digest>,
    /// The newest config could not be read; the one before is kept.
    pub refused: bool,
    /// What is wrong.
    pub fault: Option<Fault>,
    /// Nothing goes on: the machine is on its config, or a person has ended the update.
    pub at_rest: bool,
}

/// A fault as it is shown.
#[derive(Clone, Debug)]
struct Shown {
    fault: Fault,
    written: Instant,
}

/// Turns what is wrong now into what is shown. Time is handed in, and is that of a clock that nobody sets.
#[derive(Clone, Debug, Default)]
pub struct Damper {
    seen: Look,
    failing: Option<Instant>,
    well: Option<Instant>,
    shown: Option<Shown>,
}

impl Damper {
    /// Takes note of what is so at `now`. Returns what is to be shown.
    pub fn look(&mut self, seen: Look, now: Instant) -> Option<&Fault> {
        if (seen.config, seen.refused) != (self.seen.config, self.seen.refused) {
            (self.failing, self.shown) = (None, None);
        }
        self.seen = seen;
        self.failing = match &self.seen.fault {
            Some(_) => self.failing.or(Some(now)),
            None => None,
        };
        self.well = match self.seen.fault.is_none() && self.seen.at_rest {
            true => self.well.or(Some(now)),
            false => None,
        };
        if self.turns().is_some_and(|turns| turns <= now) {
            let fault = self.seen.fault.clone();
            self.shown = fault.map(|fault| Shown {
                fault,
                written: now,
            });
        }
        self.shown()
    }

    /// What is shown.
    pub fn shown(&self) -> Option<&Fault> {
        self.shown.as_ref().map(|shown| &shown.fault)
    }

    /// When that changes if nothing else does.
    pub fn turns(&self) -> Option<Instant> {
        match (&self.shown, &self.seen.fault) {
            (None, Some(fault)) if passes(fault.code) => Some(self.failing? + PASSING),
            (None, Some(_)) => self.failing,
            (Some(shown), Some(fault)) if shown.fault != *fault => Some(shown.written + WORDS),
            (Some(_), None) => Some(self.well? + CLEARED),
            _ => None,
        }
    }
}
