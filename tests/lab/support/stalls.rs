//! The times during which the whole host stalled, such as a virtual machine that its hypervisor paused. A limit of a
//! few seconds leaves them out.

use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The interval of the samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// A sample that is late by less than this is no stall: the processors may be busy.
const MIN_STALL: Duration = Duration::from_secs(1);

/// The begin and the end of each stall.
static STALLS: Mutex<Vec<(Instant, Instant)>> = Mutex::new(Vec::new());

/// Records the stalls of this process from now on.
pub fn watch() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        thread::spawn(|| {
            let mut last = Instant::now();
            loop {
                thread::sleep(SAMPLE_INTERVAL);
                let now = Instant::now();
                if now - last > SAMPLE_INTERVAL + MIN_STALL {
                    println!("lab: the host stalled for {:.1?}", now - last);
                    let mut stalls = STALLS.lock().unwrap_or_else(PoisonError::into_inner);
                    stalls.push((last, now));
                }
                last = now;
            }
        });
    });
}

/// Returns the time between two instants without the stalls in it.
pub fn time_between(from: Instant, to: Instant) -> Duration {
    let stalls = STALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let within = stalls.iter().map(|(begun, ended)| {
        (*ended)
            .min(to)
            .saturating_duration_since((*begun).max(from))
    });
    (to - from).saturating_sub(within.sum())
}
