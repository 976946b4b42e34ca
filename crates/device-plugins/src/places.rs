//! Limits the number of concurrent connections to one socket.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for users who may connect, and a few separate ones for users who may not, so that the
/// latter receive an answer with the cause and never delay an admitted program.
#[derive(Debug)]
pub struct Places {
    admitted: Arc<Semaphore>,
    refused: Arc<Semaphore>,
}

impl Places {
    /// All places are free.
    pub fn new(admitted: usize, refused: usize) -> Self {
        Self {
            admitted: Arc::new(Semaphore::new(admitted)),
            refused: Arc::new(Semaphore::new(refused)),
        }
    }

    /// Returns a place, and waits for one if the user may connect. None: the connection must be
    /// closed. Safe to drop.
    pub async fn take(&self, may_connect: bool) -> Option<OwnedSemaphorePermit> {
        match may_connect {
            // The semaphores are never closed.
            true => Arc::clone(&self.admitted).acquire_owned().await.ok(),
            false => Arc::clone(&self.refused).try_acquire_owned().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refused_callers_use_no_slot_and_do_not_wait() {
        let places = Places::new(2, 1);
        let _refused = places.take(false).await.unwrap();
        for _ in 0..100 {
            assert!(places.take(false).await.is_none());
        }
        let first = places.take(true).await.unwrap();
        let _second = places.take(true).await.unwrap();
        let third = timeout(Duration::from_secs(1), places.take(true)).await;
        assert!(third.is_err(), "there are two places");
        drop(first);
        assert!(places.take(true).await.is_some());
    }
}
