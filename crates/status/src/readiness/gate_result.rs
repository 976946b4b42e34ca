//! The result of evaluating one gate.

use machinist_base::{reason::Reason, text};

pub(super) struct GateResult {
    pub(super) open: bool,
    pub(super) reason: Reason,
    pub(super) message: String,
}

impl GateResult {
    pub(super) fn ok(message: impl Into<String>) -> Self {
        Self::note(Reason::Ok, message)
    }

    /// Open, but with a message.
    pub(super) fn note(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            open: true,
            reason,
            message: message.into(),
        }
    }

    pub(super) fn closed(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            open: false,
            reason,
            message: message.into(),
        }
    }

    pub(super) fn no_signal(message: &str) -> Self {
        Self::note(Reason::SignalMissing, message)
    }
}

/// Lists as many items as fit on a status line.
pub(super) fn few<T: AsRef<str>>(all: impl ExactSizeIterator<Item = T>) -> String {
    text::join_limited(all, 3)
}
