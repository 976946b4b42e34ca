//! Waiting on conditions with deadlines; nothing in the lab sleeps for a guessed time.

use std::thread;
use std::time::{Duration, Instant};

/// Short against what is waited for, long against the cost of asking: a question to a machine is several
/// processes, and machines that are asked all the time have no time for what they are asked about.
fn step(waited: Duration) -> Duration {
    (waited / 10).clamp(Duration::from_millis(20), Duration::from_millis(250))
}

/// Asks until `condition` holds and returns how long that took; panics at the deadline.
pub fn until(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    value(what, deadline, || condition().then_some(()));
    start.elapsed()
}

/// Asks until there is a value; panics at the deadline, naming `what` it waited for.
pub fn value<T>(what: &str, deadline: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ask() {
            return value;
        }
        assert!(
            start.elapsed() < deadline,
            "waited {deadline:?} in vain for {what}"
        );
        thread::sleep(step(start.elapsed()));
    }
}

/// Asks all the time, what costs nothing to ask, until `condition` holds; panics at the deadline.
pub fn closely(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < deadline,
            "waited {deadline:?} in vain for {what}"
        );
        thread::sleep(Duration::from_millis(2));
    }
}

/// So many seconds, the lab's usual unit for deadlines.
pub const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}
