//! How long this process may act as the leader.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How long after its last renewal a leader acts. It is shorter than [`LEASE_DURATION`], after which others take over.
pub(crate) const ACTING_LIMIT: Duration = Duration::from_secs(10);

/// How long a Lease that is not renewed is respected.
pub(crate) const LEASE_DURATION: Duration = Duration::from_secs(15);

/// The leadership of this process, by its own monotonic clock.
#[derive(Debug)]
pub(crate) struct Leadership(Mutex<Instant>);

impl Leadership {
    /// Begins at the time at which the request that acquired the Lease was sent.
    pub(crate) fn new(renewed: Instant) -> Self {
        Self(Mutex::new(renewed))
    }

    /// Extends the leadership after a renewal that was sent at `renewed`.
    pub(crate) fn renew(&self, renewed: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = renewed;
    }

    /// When it ends unless it is renewed.
    pub(crate) fn ends(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) + ACTING_LIMIT
    }

    /// Returns at once while this process may act, else never: the task that acts is dropped then.
    pub(crate) async fn permit(&self) {
        if Instant::now() >= self.ends() {
            std::future::pending().await
        }
    }
}
