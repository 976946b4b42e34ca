//! Waiting on conditions with deadlines; nothing in the lab sleeps for a guessed time.

use std::thread;
use std::time::{Duration, Instant};

/// No wait gives up earlier. A deadline only decides a failure; a test whose subject is a time
/// compares the time that the wait took.
const SHORTEST_DEADLINE: Duration = Duration::from_secs(60);

/// The poll interval: short against the awaited duration, long against the cost of a query, because
/// a query of a machine starts several processes, and frequent polling slows down the machine under
/// test.
fn step(waited: Duration) -> Duration {
    (waited / 10).clamp(Duration::from_millis(20), Duration::from_millis(250))
}

/// Polls until `condition` holds and returns how long that took; panics at the deadline.
pub fn until(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    value(what, deadline, || condition().then_some(()));
    start.elapsed()
}

/// Polls until there is a value; panics at the deadline, naming `what` it waited for.
pub fn value<T>(what: &str, deadline: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = deadline.max(SHORTEST_DEADLINE);
    let start = Instant::now();
    loop {
        if let Some(value) = ask() {
            return value;
        }
        assert!(
            start.elapsed() < deadline,
            "timed out after {deadline:?} waiting for {what}"
        );
        thread::sleep(step(start.elapsed()));
    }
}

/// Polls without pause, for cheap conditions, until `condition` holds; panics at the deadline.
pub fn closely(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = deadline.max(SHORTEST_DEADLINE);
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < deadline,
            "timed out after {deadline:?} waiting for {what}"
        );
        thread::sleep(Duration::from_millis(2));
    }
}

/// A duration of `n` seconds, the lab's usual unit for deadlines.
pub const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}
