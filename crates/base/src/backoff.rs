//! Computes delays between retries.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// Delays that double from a first to a longest one, each shortened by up to a quarter, so that
/// many agents that failed together do not retry together.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// `first` is the delay after the first failure.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The delay after failure number `failure` (from 0), without jitter.
    pub fn step(&self, failure: u32) -> Duration {
        let factor = 1_u32.checked_shl(failure).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }

    /// As [`Backoff::step`], shortened by `jitter` / 4 of itself; `jitter` is 0 to 1.
    pub fn wait(&self, failure: u32, jitter: f64) -> Duration {
        self.step(failure)
            .mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 4.0)
    }
}

/// A number from 0 to 1, different on every call. It is not for secrets: it comes from the keys
/// that the standard library draws for its hash maps.
pub fn jitter() -> f64 {
    let drawn = RandomState::new().hash_one(()) >> 32;
    f64::from(u32::try_from(drawn).unwrap_or_default()) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

    #[test]
    fn backoff_doubles_up_to_the_maximum() {
        let waits: Vec<_> = (0..8).map(|n| BACKOFF.step(n).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(BACKOFF.step(u32::MAX), Duration::from_secs(60));
    }

    #[test]
    fn jitter_shortens_the_backoff_by_at_most_a_quarter() {
        assert_eq!(BACKOFF.wait(2, 0.0), Duration::from_secs(4));
        assert_eq!(BACKOFF.wait(2, 1.0), Duration::from_secs(3));
        let drawn: Vec<_> = std::iter::repeat_with(jitter).take(16).collect();
        assert!(
            drawn.iter().all(|one| (0.0..=1.0).contains(one)),
            "{drawn:?}"
        );
        assert!(drawn.iter().any(|one| *one != drawn[0]), "{drawn:?}");
    }
}
