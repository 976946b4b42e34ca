//! Degraded is said only of what lasts.

use std::time::Duration;

use tokio::time::Instant;

use crate::reason::Reason;

/// One code must have lasted this long. Retries of what passes by itself fit in it several times.
const RAISED: Duration = Duration::from_secs(300);

/// Health must have lasted this long. Below it a machine that fails every few minutes would be told as
/// many times.
const CLEARED: Duration = Duration::from_secs(120);

/// Turns what fails now into what is told. Time is handed in, and is that of a clock that nobody sets.
#[derive(Clone, Debug, Default)]
pub struct Damper {
    failing: Option<(Reason, Instant)>,
    well: Option<Instant>,
    degraded: bool,
    /// The machine got where it was to get: that is told in `state` at once.
    settled: bool,
}

impl Damper {
    /// Takes note of what fails at `now`, and whether the machine is where it is to be. Returns whether
    /// the state is Degraded.
    pub fn look(&mut self, failing: Option<Reason>, settled: bool, now: Instant) -> bool {
        self.settled = settled;
        match failing {
            Some(code) => {
                self.well = None;
                match self.failing {
                    Some((known, _)) if known == code => {}
                    _ => self.failing = Some((code, now)),
                }
            }
            None => {
                self.failing = None;
                self.well.get_or_insert(now);
            }
        }
        if self.turns().is_some_and(|turns| turns <= now) {
            self.degraded = !self.degraded;
        }
        self.degraded && !self.settled
    }

    /// Whether the condition of degradation stands.
    pub const fn is_degraded(&self) -> bool {
        self.degraded
    }

    /// When it will turn if nothing changes.
    pub fn turns(&self) -> Option<Instant> {
        match (self.degraded, self.failing, self.well) {
            (false, Some((_, since)), _) => Some(since + RAISED),
            (true, None, Some(since)) => Some(since + CLEARED),
            _ => None,
        }
    }
}
