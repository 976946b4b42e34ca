//! Rate limits, waiting for an optional deadline, and suppression of repeated log messages.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

/// A token bucket that fills by `per_second` up to twice as many.
#[derive(Debug)]
pub struct RateLimiter {
    each: Duration,
    burst: u32,
    /// When it was, or will be, empty.
    empty: Instant,
}

impl RateLimiter {
    /// Creates a full bucket: twice as many as `per_second` can be taken at once.
    pub fn new(per_second: u32) -> Self {
        Self::per_interval(
            Duration::from_secs(1) / per_second.max(1),
            2 * per_second.max(1),
        )
    }

    /// Allows one per `each`, and up to `burst` at once.
    pub fn per_interval(each: Duration, burst: u32) -> Self {
        Self {
            each,
            burst,
            empty: Instant::now()
                .checked_sub(each * burst)
                .unwrap_or_else(Instant::now),
        }
    }

    /// When the next one can be taken; in the past if one can be taken now.
    pub fn ready(&self) -> Instant {
        let now = Instant::now();
        let full = now.checked_sub(self.each * self.burst).unwrap_or(now);
        self.empty.max(full) + self.each
    }

    /// Takes one; false if there is none.
    pub fn take(&mut self) -> bool {
        let next = self.ready();
        if next > Instant::now() {
            return false;
        }
        self.empty = next;
        true
    }

    /// Whether nothing was taken lately, so that it is like a new one.
    pub fn is_full(&self) -> bool {
        let now = Instant::now();
        now.checked_sub(self.each * self.burst)
            .is_none_or(|full| self.empty <= full)
    }

    /// Takes one as soon as possible. Safe to drop while waiting.
    pub async fn wait(&mut self) {
        while !self.take() {
            sleep_until(self.ready()).await;
        }
    }
}

/// Waits until the deadline; for ever without one. Safe to drop: the caller has the deadline.
pub async fn sleep_until_opt(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Limits log messages that another program can cause: a repeated message is logged once, and ever
/// new messages are logged a few times and then from time to time.
#[derive(Debug)]
pub struct LogOnce {
    logged_sentences: VecDeque<String>,
    rate: RateLimiter,
    suppressed: u64,
}

/// Number of messages remembered; more kinds of mistakes than one program makes.
const MAX_REMEMBERED_MESSAGES: usize = 32;
/// Interval at which new messages are still logged beyond that.
const NEW_MESSAGE_LOG_INTERVAL: Duration = Duration::from_secs(30);

impl Default for LogOnce {
    fn default() -> Self {
        Self {
            logged_sentences: VecDeque::new(),
            rate: RateLimiter::per_interval(NEW_MESSAGE_LOG_INTERVAL, 16),
            suppressed: 0,
        }
    }
}

impl LogOnce {
    /// Whether to log the message now; if so, the number of messages suppressed since the last one.
    pub fn take(&mut self, sentence: &str) -> Option<u64> {
        if self
            .logged_sentences
            .iter()
            .any(|logged_sentences| logged_sentences == sentence)
        {
            return None;
        }
        if !self.rate.take() {
            self.suppressed += 1;
            return None;
        }
        if self.logged_sentences.len() == MAX_REMEMBERED_MESSAGES {
            self.logged_sentences.pop_front();
        }
        self.logged_sentences.push_back(sentence.to_owned());
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Forgets the messages after the problem was solved, so that its return is logged again.
    pub fn forget(&mut self) {
        self.logged_sentences.clear();
    }
}

/// Limits log lines that other programs can cause at will, whatever their text: each cause may add some
/// at once, and then one from time to time. Clones share the limits.
#[derive(Clone, Debug)]
pub struct LogRates {
    each: Duration,
    burst: u32,
    causes: Arc<Mutex<LogCauses>>,
}

#[derive(Debug, Default)]
struct LogCauses {
    by_name: BTreeMap<String, LogRate>,
    /// When causes were last forgotten.
    tidied: Option<Instant>,
}

/// The limit of one cause.
#[derive(Debug)]
struct LogRate {
    rate: RateLimiter,
    suppressed: u64,
}

/// The number of causes that are limited one by one. A program that invents names cannot cause more.
const MAX_LOG_CAUSES: usize = 1024;

impl Default for LogRates {
    /// A session that begins and ends all the time is worth a line now and then.
    fn default() -> Self {
        Self::new(Duration::from_secs(10), 50)
    }
}

impl LogRates {
    /// Allows one line per `each` and cause, and up to `burst` at once.
    pub fn new(each: Duration, burst: u32) -> Self {
        Self {
            each,
            burst,
            causes: Arc::default(),
        }
    }

    /// Whether to log a line now; if so, the number of lines of this cause that were suppressed since
    /// the last one.
    pub fn take(&self, cause: &str) -> Option<u64> {
        // No code panics while it has the lock.
        let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        if !causes.by_name.contains_key(cause) && !causes.has_room(self.each) {
            return None;
        }
        let known = causes
            .by_name
            .entry(cause.to_owned())
            .or_insert_with(|| LogRate {
                rate: RateLimiter::per_interval(self.each, self.burst),
                suppressed: 0,
            });
        if known.rate.take() {
            return Some(std::mem::take(&mut known.suppressed));
        }
        known.suppressed += 1;
        None
    }
}

impl LogCauses {
    /// Makes room for one more cause, at most once per `every`, since it looks at all of them. A limit
    /// is forgotten only when it is like a new one, so that no cause gets more lines by it.
    fn has_room(&mut self, every: Duration) -> bool {
        let is_due = self.tidied.is_none_or(|then| then.elapsed() >= every);
        if self.by_name.len() >= MAX_LOG_CAUSES && is_due {
            self.by_name.retain(|_, known| !known.rate.is_full());
            self.tidied = Some(Instant::now());
        }
        self.by_name.len() < MAX_LOG_CAUSES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rate_limiter_allows_a_burst_and_then_a_fixed_rate() {
        tokio::time::advance(Duration::from_secs(60)).await;
        let mut rate = RateLimiter::new(10);
        assert_eq!((0..100).filter(|_| rate.take()).count(), 20);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..100).filter(|_| rate.take()).count(), 10);
        let before = Instant::now();
        rate.wait().await;
        assert_eq!(before.elapsed(), Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn log_lines_are_limited_for_each_cause_and_the_suppressed_are_counted() {
        tokio::time::advance(Duration::from_secs(3600)).await;
        let rates = LogRates::new(Duration::from_secs(10), 5);
        let logged = |cause: &str| (0..100).filter(|_| rates.take(cause).is_some()).count();
        assert_eq!((logged("a"), logged("b")), (5, 5));
        assert_eq!(rates.clone().take("a"), None, "clones share the limit");
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(rates.take("a"), Some(96));
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_invents_causes_gets_no_more_lines_by_it() {
        tokio::time::advance(Duration::from_secs(3600)).await;
        let rates = LogRates::new(Duration::from_secs(10), 5);
        let invented = (0..10_000).map(|number| rates.take(&number.to_string()));
        assert_eq!(invented.filter(Option::is_some).count(), MAX_LOG_CAUSES);
        assert!(rates.take("0").is_some(), "a known cause keeps its lines");
        tokio::time::advance(Duration::from_secs(50)).await;
        assert!(rates.take("new").is_some(), "old causes are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn log_once_logs_repeats_once_and_rate_limits_new_messages() {
        tokio::time::advance(Duration::from_secs(3600)).await;
        let mut complaints = LogOnce::default();
        let logged = |complaints: &mut LogOnce, all: &mut dyn Iterator<Item = String>| {
            all.filter(|one| complaints.take(one).is_some()).count()
        };
        let mut two = (0..100).map(|n| format!("{}", n % 2));
        assert_eq!(logged(&mut complaints, &mut two), 2);
        let mut new = (2..1000).map(|n| n.to_string());
        assert_eq!(logged(&mut complaints, &mut new), 14);
        tokio::time::advance(NEW_MESSAGE_LOG_INTERVAL).await;
        assert_eq!(complaints.take("again"), Some(998 - 14));
        complaints.forget();
        tokio::time::advance(NEW_MESSAGE_LOG_INTERVAL).await;
        assert_eq!(complaints.take("again"), Some(0));
    }
}
