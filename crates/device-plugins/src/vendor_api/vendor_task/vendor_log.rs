//! Logs and counts the faults of a vendor.

use std::time::Duration;

use machinist_base::rate_limit::{LogOnce, RateLimiter};

/// Average interval of log lines about a vendor that keeps connecting and disconnecting.
const SESSION_LOG_INTERVAL: Duration = Duration::from_secs(10);

pub(super) struct VendorLog {
    faults: LogOnce,
    /// Limits log lines about the beginning and end of sessions.
    sessions: RateLimiter,
    refused: u64,
    last_reason: Option<String>,
}

impl Default for VendorLog {
    fn default() -> Self {
        Self {
            faults: LogOnce::default(),
            sessions: RateLimiter::per_interval(SESSION_LOG_INTERVAL, 20),
            refused: 0,
            last_reason: None,
        }
    }
}

impl VendorLog {
    /// Counts and logs a fault of the vendor; a repeated one is logged once.
    pub(super) fn record_fault(&mut self, vendor: &str, fault: String) {
        self.refused += 1;
        if let Some(suppressed) = self.faults.take(&fault) {
            tracing::warn!(vendor = %vendor, suppressed, "{fault}");
        }
        self.last_reason = Some(fault);
    }

    /// Whether one more session event may be logged.
    pub(super) fn take_session_line(&mut self) -> bool {
        self.sessions.take()
    }

    pub(super) fn set_last_reason(&mut self, reason: String) {
        self.last_reason = Some(reason);
    }

    /// Number of sessions and messages refused.
    pub(super) const fn refused(&self) -> u64 {
        self.refused
    }

    /// The reason of the last refusal, or of the last session's end.
    pub(super) fn last_reason(&self) -> Option<&str> {
        self.last_reason.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_vendor_that_reconnects_again_and_again_causes_few_log_lines() {
        tokio::time::advance(Duration::from_secs(3600)).await;
        let mut log = VendorLog::default();
        assert_eq!((0..1000).filter(|_| log.take_session_line()).count(), 20);
        tokio::time::advance(SESSION_LOG_INTERVAL).await;
        assert_eq!((0..1000).filter(|_| log.take_session_line()).count(), 1);
    }
}
