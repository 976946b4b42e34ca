//! Liveness of the work loop.
//!
//! The loop records a beat whenever it has done something. An idle loop has nothing to do, so a
//! probe wakes it and waits for a beat: neither side needs a timer.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};

/// How long an idle loop may take to respond: half of the second that a kubelet's probe waits.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

/// The loop's side.
#[derive(Debug)]
pub struct Heartbeat {
    last: watch::Sender<Instant>,
    asked: Arc<Notify>,
}

/// The probes' side. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Liveness {
    last: watch::Receiver<Instant>,
    asked: Arc<Notify>,
    limit: Duration,
}

/// Creates both sides. A loop that has not beaten for `limit` and does not respond either counts as
/// stuck.
pub fn heartbeat(limit: Duration) -> (Heartbeat, Liveness) {
    let (sender, last) = watch::channel(Instant::now());
    let asked = Arc::new(Notify::new());
    let pulse = Heartbeat {
        last: sender,
        asked: Arc::clone(&asked),
    };
    (pulse, Liveness { last, asked, limit })
}

impl Heartbeat {
    /// Records a beat.
    pub fn record_beat(&self) {
        self.last.send_replace(Instant::now());
    }

    /// Waits until a probe asks for a beat. Safe to drop: the request stays pending.
    pub async fn wait_for_probe(&self) {
        self.asked.notified().await;
    }
}

impl Liveness {
    /// Checks that the loop runs; the error is the time since its last beat.
    pub async fn check(&self) -> Result<(), Duration> {
        let mut last = self.last.clone();
        let silent = last.borrow_and_update().elapsed();
        let running = last.has_changed().is_ok();
        if running && silent <= self.limit {
            return Ok(());
        }
        self.asked.notify_one();
        match timeout(RESPONSE_TIMEOUT, last.changed()).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(silent),
        }
    }
}
