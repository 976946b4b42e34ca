//! The grace period of a vendor, after which its unconfirmed devices lapse.

use std::time::Duration;

use tokio::time::Instant;

/// When and why unconfirmed devices lapse.
struct LapseDeadline {
    at: Instant,
    reason: String,
}

/// The grace period, if it runs, and the reason of the last one that has ended.
#[derive(Default)]
pub(super) struct GracePeriod {
    deadline: Option<LapseDeadline>,
    lapsed_reason: Option<String>,
}

impl GracePeriod {
    /// Starts the grace period: offers that the vendor does not send again before its end lapse.
    pub(super) fn start(&mut self, length: Duration, reason: &str) {
        self.deadline = Some(LapseDeadline {
            at: Instant::now() + length,
            reason: reason.to_owned(),
        });
    }

    pub(super) const fn is_running(&self) -> bool {
        self.deadline.is_some()
    }

    pub(super) fn cancel(&mut self) {
        self.deadline = None;
    }

    pub(super) fn ends_at(&self) -> Option<Instant> {
        self.deadline.as_ref().map(|deadline| deadline.at)
    }

    /// Why it runs.
    pub(super) fn reason(&self) -> Option<&str> {
        let deadline = self.deadline.as_ref();
        deadline.map(|deadline| deadline.reason.as_str())
    }

    /// Ends the grace period; returns why it was running.
    pub(super) fn take_reason(&mut self) -> Option<String> {
        self.deadline.take().map(|deadline| deadline.reason)
    }

    pub(super) fn record_lapsed(&mut self, reason: String) {
        self.lapsed_reason = Some(reason);
    }

    /// Why devices have lapsed; `None` while none have.
    pub(super) fn lapsed_reason(&self) -> Option<&str> {
        self.lapsed_reason.as_deref()
    }
}
