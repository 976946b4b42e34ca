//! The current time as a value that is passed down, so that tests can set it.

use std::{fmt, sync::Arc};

use jiff::Timestamp;

/// The wall clock of the machine, or one that a test sets. Cheap to clone.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The machine's own clock.
    pub fn system() -> Self {
        Self::from_fn(Timestamp::now)
    }

    /// A clock that returns what `now` returns.
    pub fn from_fn(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The time, truncated to whole milliseconds, for storing and comparing.
    pub fn now(&self) -> Timestamp {
        let now = (self.0)();
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_truncated_to_milliseconds() {
        let fixed = Timestamp::new(1_800_000_000, 123_999_999).unwrap();
        let clock = Clock::from_fn(move || fixed);
        assert_eq!(clock.now().to_string(), "2027-01-15T08:00:00.123Z");
    }
}
