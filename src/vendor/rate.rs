//! So many in a second, over time.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// A bucket that fills by `per_second` up to twice as many.
#[derive(Debug)]
pub(super) struct Rate {
    each: Duration,
    burst: u32,
    /// When it was, or will be, empty.
    empty: Instant,
}

impl Rate {
    pub(super) fn new(per_second: u32) -> Self {
        let each = Duration::from_secs(1) / per_second.max(1);
        let burst = 2 * per_second.max(1);
        Self {
            each,
            burst,
            empty: Instant::now()
                .checked_sub(each * burst)
                .unwrap_or_else(Instant::now),
        }
    }

    /// Takes one; false when there is none.
    pub(super) fn take(&mut self) -> bool {
        let now = Instant::now();
        let full = now.checked_sub(self.each * self.burst).unwrap_or(now);
        let next = self.empty.max(full) + self.each;
        if next > now {
            return false;
        }
        self.empty = next;
        true
    }

    /// Takes one as soon as there is one. Safe to drop while waiting.
    pub(super) async fn wait(&mut self) {
        while !self.take() {
            sleep_until(self.empty + self.each).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_let_through_and_then_so_many_in_a_second() {
        tokio::time::advance(Duration::from_secs(60)).await;
        let mut rate = Rate::new(10);
        assert_eq!((0..100).filter(|_| rate.take()).count(), 20);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..100).filter(|_| rate.take()).count(), 10);
        let before = Instant::now();
        rate.wait().await;
        assert_eq!(before.elapsed(), Duration::from_millis(100));
    }
}
