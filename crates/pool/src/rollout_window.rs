//! Decides whether a node may start now, so that it is finished when its maintenance window closes.

use jiff::{SignedDuration, Timestamp};

use machinist_base::maintenance_window::{MaintenanceWindows, OpenSpan};

/// How long after the opening of a window that is too short for any node one node may start in it.
const OPENING_GRACE: SignedDuration = SignedDuration::from_mins(15);

/// Whether a node may start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowPermit {
    /// It may.
    Open,
    /// No window is long enough. One node may start now, at the opening.
    TooShort {
        /// When the window opened.
        opened: Timestamp,
    },
    /// It may not.
    Closed {
        /// When it may; `None` if no window opens within a week.
        opens: Option<Timestamp>,
        /// Whether no window is long enough.
        too_short: bool,
    },
}

impl WindowPermit {
    /// Returns the stricter of two permits.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Open, other) | (other, Self::Open) => other,
            (Self::TooShort { opened: a }, Self::TooShort { opened: b }) => {
                Self::TooShort { opened: a.max(b) }
            }
            (
                Self::Closed {
                    opens: a,
                    too_short: c,
                },
                Self::Closed {
                    opens: b,
                    too_short: d,
                },
            ) => Self::Closed {
                opens: a.max(b),
                too_short: c || d,
            },
            (closed @ Self::Closed { .. }, _) | (_, closed) => closed,
        }
    }
}

/// The open times of some windows around one point in time. Computing them takes longer than a question about them.
#[derive(Clone, Debug)]
pub struct WindowTimes {
    spans: Vec<OpenSpan>,
    now: Timestamp,
    always: bool,
}

impl WindowTimes {
    /// Computes the open times around `now`.
    pub fn new(windows: &MaintenanceWindows, now: Timestamp) -> Self {
        Self {
            spans: windows.spans(now),
            now,
            always: windows.windows.is_empty(),
        }
    }

    /// Decides whether a node that needs the time `needed` may start.
    pub fn permit(&self, needed: SignedDuration) -> WindowPermit {
        if self.always {
            return WindowPermit::Open;
        }
        let now = self.now;
        let lengths = self
            .spans
            .iter()
            .map(|it| it.closes.duration_since(it.opens));
        let too_short = lengths.max().is_none_or(|longest| longest < needed);
        let upcoming = self.spans.iter().find(|it| it.opens > now);
        let closed = WindowPermit::Closed {
            opens: upcoming.map(|it| it.opens),
            too_short,
        };
        let Some(open) = self.spans.iter().find(|it| it.contains(now)) else {
            return closed;
        };
        let passed = now.duration_since(open.opens);
        match too_short {
            true if passed <= OPENING_GRACE => WindowPermit::TooShort { opened: open.opens },
            false if open.closes.duration_since(now) >= needed => WindowPermit::Open,
            _ => closed,
        }
    }
}
