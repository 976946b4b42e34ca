//! Decides when the Node is published as degraded, with which message, and for how long.

use std::time::Duration;

use tokio::time::Instant;

use machinist_base::{digest::Digest, reason::Reason};
use machinist_kube_api::NodeUpdateState;

/// How long a transient fault may last before it is published. OpenShift's daemon waits about as
/// long.
const DEGRADED_AFTER: Duration = Duration::from_secs(300);

/// How long a machine at rest must be free of faults before the fault is cleared: longer than the
/// gaps of an intermittent fault.
const CLEAR_AFTER: Duration = Duration::from_secs(30);

/// Minimum interval between two messages about retries of the same config.
const RETRY_MESSAGE_INTERVAL: Duration = Duration::from_secs(60);

/// Whether a fault is transient: the previous config is still intact, and a retry may succeed. All
/// other faults are published immediately, as OpenShift's daemon does.
pub const fn is_transient(code: Reason) -> bool {
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
            | Reason::PodTerminating
            | Reason::DevicesMissing
            | Reason::DeviceHeld
            | Reason::HoldersUnknown
    )
}

/// A fault of the machine at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineFault {
    /// The code.
    pub code: Reason,
    /// `Degraded` or `Unreconcilable`.
    pub state: NodeUpdateState,
    /// The message for people; never empty.
    pub text: String,
}

/// Input of the damper.
#[derive(Clone, Debug, Default)]
pub struct DegradedInput {
    /// The desired config; when it changes, messages about the previous one no longer apply.
    pub config: Option<Digest>,
    /// The newest config was rejected; the previous one stays in effect.
    pub refused: bool,
    /// The current fault, if any.
    pub fault: Option<MachineFault>,
    /// No update step is running: the machine is on its config, or an operator ended the update.
    pub at_rest: bool,
}

/// A published fault.
#[derive(Clone, Debug)]
struct PublishedFault {
    fault: MachineFault,
    written: Instant,
}

/// Turns the current fault into the published one. The caller passes the time, which must come from
/// a monotonic clock.
#[derive(Clone, Debug, Default)]
pub struct DegradedDebounce {
    seen: DegradedInput,
    failing: Option<Instant>,
    well: Option<Instant>,
    shown: Option<PublishedFault>,
}

impl DegradedDebounce {
    /// Records the state at `now` and returns the fault to publish.
    pub fn record_state(&mut self, seen: DegradedInput, now: Instant) -> Option<&MachineFault> {
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
        if self.next_change().is_some_and(|turns| turns <= now) {
            let fault = self.seen.fault.clone();
            self.shown = fault.map(|fault| PublishedFault {
                fault,
                written: now,
            });
        }
        self.published()
    }

    /// The published fault.
    pub fn published(&self) -> Option<&MachineFault> {
        self.shown.as_ref().map(|shown| &shown.fault)
    }

    /// When the published fault changes next if no other input arrives.
    pub fn next_change(&self) -> Option<Instant> {
        match (&self.shown, &self.seen.fault) {
            (None, Some(fault)) if is_transient(fault.code) => Some(self.failing? + DEGRADED_AFTER),
            (None, Some(_)) => self.failing,
            (Some(shown), Some(fault)) if shown.fault != *fault => {
                Some(shown.written + RETRY_MESSAGE_INTERVAL)
            }
            (Some(_), None) => Some(self.well? + CLEAR_AFTER),
            _ => None,
        }
    }
}
