//! Whether the work loop turns.
//!
//! The loop beats whenever it has done something. An idle loop has nothing to do, so a probe asks it
//! and the loop answers: no timer runs on either side.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};

/// How long an idle loop may take to answer: half of the second that a kubelet's probe waits.
const ANSWER: Duration = Duration::from_millis(500);

/// The loop's end.
#[derive(Debug)]
pub struct Pulse {
    last: watch::Sender<Instant>,
    asked: Arc<Notify>,
}

/// The probes' end. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Liveness {
    last: watch::Receiver<Instant>,
    asked: Arc<Notify>,
    limit: Duration,
}

/// The two ends. A loop that has not beaten for `limit` and does not answer either counts as stuck.
pub fn pulse(limit: Duration) -> (Pulse, Liveness) {
    let (sender, last) = watch::channel(Instant::now());
    let asked = Arc::new(Notify::new());
    let pulse = Pulse {
        last: sender,
        asked: Arc::clone(&asked),
    };
    (pulse, Liveness { last, asked, limit })
}

impl Pulse {
    /// The loop turns.
    pub fn beat(&self) {
        self.last.send_replace(Instant::now());
    }

    /// Waits until somebody asks; the loop then beats. Safe to drop: a question stays.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }
}

impl Liveness {
    /// Whether the loop turns; if not, for how long it has been silent.
    pub async fn check(&self) -> Result<(), Duration> {
        let mut last = self.last.clone();
        let silent = last.borrow_and_update().elapsed();
        let running = last.has_changed().is_ok();
        if running && silent <= self.limit {
            return Ok(());
        }
        self.asked.notify_one();
        match timeout(ANSWER, last.changed()).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(silent),
        }
    }
}
