//! Runs path lookups with a timeout, since a file system behind a link may hang forever. The number
//! of hanging threads is limited for each source.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

/// The timeout of a lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of concurrent lookups of one source.
const MAX_CONCURRENT_LOOKUPS: usize = 4;

/// Why a lookup failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathCheckError {
    /// The file system does not respond.
    #[error("path lookup took more than {} s", LOOKUP_TIMEOUT.as_secs())]
    TooLong,
    /// Other lookups of the source hang.
    #[error("{MAX_CONCURRENT_LOOKUPS} path lookups are already in progress")]
    TooMany,
    /// The agent is shutting down.
    #[error("path lookup aborted")]
    Interrupted,
}

/// The lookups of one source; for declarations, of one resource. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PathChecker(Arc<Semaphore>);

impl Default for PathChecker {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_CONCURRENT_LOOKUPS)))
    }
}

impl PathChecker {
    /// Runs `check_path` on a blocking thread. After a timeout it goes on and keeps its permit until it
    /// ends.
    pub async fn check_path<T: Send + 'static>(
        &self,
        check: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PathCheckError> {
        let slot = timeout(LOOKUP_TIMEOUT, Arc::clone(&self.0).acquire_owned()).await;
        let slot = slot.map_err(|_| PathCheckError::TooMany)?;
        let slot = slot.map_err(|_| PathCheckError::Interrupted)?;
        let lookup = spawn_blocking(move || {
            let _slot = slot;
            check()
        });
        match timeout(LOOKUP_TIMEOUT, lookup).await {
            Ok(result) => result.map_err(|_| PathCheckError::Interrupted),
            Err(_) => Err(PathCheckError::TooLong),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use super::*;

    /// Blocks until the sender is dropped.
    fn hangs(on: &Arc<Mutex<mpsc::Receiver<()>>>) -> impl FnOnce() + Send + 'static {
        let on = Arc::clone(on);
        move || drop(on.lock().map(|on| on.recv()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_lookup_times_out_and_few_run_concurrently() {
        let checker = PathChecker::default();
        let (end, on) = mpsc::channel::<()>();
        let on = Arc::new(Mutex::new(on));
        let mut hung = tokio::task::JoinSet::new();
        for _ in 0..MAX_CONCURRENT_LOOKUPS {
            let (checker, hangs) = (checker.clone(), hangs(&on));
            hung.spawn(async move { checker.check_path(hangs).await });
        }
        // The paused clock does not advance while a thread is busy, so advance it explicitly.
        while checker.0.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let late = checker.check_path(|| ());
        let (late, ()) = tokio::join!(late, tokio::time::advance(LOOKUP_TIMEOUT + LOOKUP_TIMEOUT));
        assert_eq!(late, Err(PathCheckError::TooMany));
        for hung in hung.join_all().await {
            assert_eq!(hung, Err(PathCheckError::TooLong));
        }
        drop(end);
        while checker.0.available_permits() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(checker.check_path(|| 1).await, Ok(1));
    }
}
