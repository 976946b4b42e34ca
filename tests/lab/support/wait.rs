//! Waiting on conditions with deadlines; nothing in the lab sleeps for a guessed time.

use std::thread;
use std::time::{Duration, Instant};

/// Short against everything the lab waits for, long against the cost of asking.
const STEP: Duration = Duration::from_millis(20);

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
        thread::sleep(STEP);
    }
}

/// So many seconds, the lab's usual unit for deadlines.
pub const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}
